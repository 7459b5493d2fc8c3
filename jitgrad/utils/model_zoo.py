"""The old name of hub.load_state_dict_from_url."""

from typing import Any

from jitgrad import hub
from jitgrad.hub import load_state_dict_from_url as load_url
from jitgrad.missing import no_such

__all__ = ["load_url"]


def __getattr__(name: str) -> Any:
    if name == "tqdm":
        return hub.tqdm
    raise no_such(__name__, name)
