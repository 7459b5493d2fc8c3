"""Plain eager code: nobody looks at what it applies, so several ops may be one.

Owns that question; what becomes one are fused records (fused.py) and composites (composites.py).
"""

from __future__ import annotations

from jitgrad import dispatch
from jitgrad.runtime.knobs import knobs
from jitgrad.state import defaults, state


def is_unwatched() -> bool:
    """Whether no recorder, vmap, profile or hook on saved tensors is told of each op."""
    modes = state.__dict__
    return (
        modes["recorder"] is None
        and modes["watcher"] is None
        and not modes["abstract"]
        and not modes["levels"]
        and not modes["saved_hooks"]
        and dispatch.timing is None
    )


def is_plain() -> bool:
    """`is_unwatched`, where compiled code may run that is made for no autocast and in full
    precision."""
    return (
        is_unwatched()
        and state.__dict__["casting"] is None
        and knobs.eager == "auto"
        and defaults.settings["cpu_precision"] == "highest"
    )
