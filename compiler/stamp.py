"""A stamp of the compiler's own source, for cache keys: what an image holds depends on every pass.

Names, sizes and modification times of the package's files; cheap, and new whenever one changes.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache


@lru_cache(maxsize=1)
def source_stamp() -> str:
    """A digest that changes when any file of the compiler does."""
    root = os.path.dirname(__file__)
    found: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                name = folder + entry.name
                if entry.is_dir():
                    folders.append(f"{name}/")
                elif name.endswith(".py"):
                    stat = entry.stat()
                    found.append(f"{name}|{stat.st_size}|{stat.st_mtime_ns}\n")
    return hashlib.sha256("".join(sorted(found)).encode()).hexdigest()[:16]
