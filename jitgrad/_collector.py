"""No garbage collection while jitgrad is imported: that makes much, and drops nothing.

Importing this module, before all others, switches the collector off; `resume` puts it back.
"""

from __future__ import annotations

import gc

_was_on = gc.isenabled()
gc.disable()


def resume() -> None:
    """Puts the collector back as it was."""
    if _was_on:
        gc.enable()
