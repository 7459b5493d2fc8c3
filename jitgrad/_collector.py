"""No garbage collection while jitgrad is imported: that makes much, and drops nothing.

Importing this module, before all others, switches the collector off; `resume` puts it back.
"""

from __future__ import annotations

import gc

_was_on = gc.isenabled()
gc.disable()


def resume() -> None:
    """Puts the collector back as it was, with all that was made in its oldest generation: it would
    look through it at once, and it stays."""
    if gc.get_freeze_count() == 0:  # else others froze what they want frozen
        gc.freeze()
        gc.unfreeze()
    if _was_on:
        gc.enable()
