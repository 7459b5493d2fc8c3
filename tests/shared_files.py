"""Which files in memory are there: for tests that nothing is left of shared tensors.

Other processes have such files too (pytest-xdist's, another checkout's): tests that count them hold
a lock while they run.
"""

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from jitgrad.runtime import memory_file


def names():
    """Those of ours that have a name."""
    return {n for n in os.listdir(memory_file.FOLDER) if n.startswith("jitgrad-")}


@contextlib.contextmanager
def alone():
    """No other test that counts them runs during the block."""
    with open(Path(tempfile.gettempdir()) / "jitgrad-tests.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
