"""The names of jitgrad.tape.views that the recorder uses."""

from jitgrad.tape.views import put_chain, relative_chain

__all__ = ["put_chain", "relative_chain"]
