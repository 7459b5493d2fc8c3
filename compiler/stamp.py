"""A stamp of the compiler's own source, for cache keys: what an image holds depends on every pass.

Names, sizes and modification times of the package's files; cheap, and new whenever one changes.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def source_stamp() -> str:
    """A digest that changes when any file of the compiler does."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        stat = path.stat()
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
