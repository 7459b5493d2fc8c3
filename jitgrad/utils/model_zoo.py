"""The old name of hub.load_state_dict_from_url."""

from jitgrad.hub import load_state_dict_from_url as load_url
from jitgrad.missing import missing

__getattr__ = missing(__name__)
__all__ = ["load_url"]
