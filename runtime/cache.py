"""The disk cache: bytes (machine code, plans) by a string key, shared by all processes of a user.

Owns where entries lie, what makes one trustworthy, and which are evicted. It does not own what is
in them, nor what belongs into a key (versions, CPU features, flags: the compiler's business).

An entry is one file, named by the SHA-256 of its key:

    8 bytes   magic "jitgrad\\0"
    4 bytes   format version, little-endian
    32 bytes  SHA-256 of the key
    32 bytes  SHA-256 of the payload
    8 bytes   length of the payload, little-endian
    payload

What is read becomes code that runs, so the directory must be the user's own and writable by nobody
else, and an entry is used only if every field of it is right; else it is deleted and counts as a
miss. A file appears under its name by rename, so no reader ever sees half of one. Processes need no
lock between them: at worst two of them do the same work.

The cache is never a reason to fail. What goes wrong with it is said once, as a CacheWarning.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import struct
import sys
import tempfile
import threading
import time
from typing import NamedTuple

from jitgrad.runtime.errors import CacheWarning
from jitgrad.runtime.knobs import knobs
from jitgrad.runtime.userline import warn

_MAGIC = b"jitgrad\0"
_VERSION = 1
_HEADER = struct.Struct("<8sI32s32sQ")
_SUFFIX = ".jgc"
_TEMPORARY = ".tmp"

# Eviction lists the directory, so it runs once for this share of the limit written here.
_EVICT_EVERY = 1 / 16
# It goes down to this share of the limit, so that the next one is not near.
_EVICT_TO = 3 / 4
# A process that writes less looks in one case of so many: listing a large directory can take longer
# than what is to be cached.
_LOOK_ONE_IN = 64
# A temporary file older than this was left by a process that died while it wrote.
_STALE_SECONDS = 3600


class CacheStats(NamedTuple):
    """What this process did with the cache, and what is in the directory now."""

    hits: int
    misses: int
    writes: int
    corrupt: int
    entries: int
    nbytes: int
    directory: str
    enabled: bool


def default_directory() -> str:
    """The directory in force: the knob's, else jitgrad in the user's cache directory."""
    if knobs.cache_dir:
        return os.path.abspath(os.path.expanduser(knobs.cache_dir))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: relative paths are to be ignored
        home = os.path.expanduser("~")
        base = os.path.join(home, "Library/Caches" if sys.platform == "darwin" else ".cache")
    return os.path.join(base, "jitgrad")


class DiskCache:
    """The cache in one directory. All methods may be called from any thread."""

    def __init__(self, directory: str, limit: int) -> None:
        self.directory, self.limit = directory, limit
        self._lock = threading.Lock()
        self._usable: bool | None = None  # None: nobody has looked yet
        self._warned: set[str] = set()
        self._hits = self._misses = self._writes = self._corrupt = 0
        self._written_since_eviction = 0

    def get(self, key: str) -> bytes | None:
        """The payload stored under `key`, or None."""
        payload = self._read(key) if self._ready() else None
        with self._lock:
            if payload is None:
                self._misses += 1
            else:
                self._hits += 1
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Stores `payload` under `key`, replacing what was there."""
        if _HEADER.size + len(payload) > self.limit or not self._ready():
            return
        digest = _digest(key)
        header = _HEADER.pack(
            _MAGIC, _VERSION, digest, hashlib.sha256(payload).digest(), len(payload)
        )
        try:
            self._write(self._path(digest), header, payload)
        except OSError as error:
            self._write_failed(error)
            return
        with self._lock:
            self._writes += 1
            self._written_since_eviction += len(header) + len(payload)
            due = self._written_since_eviction > self.limit * _EVICT_EVERY
            if due:
                self._written_since_eviction = 0
            first = self._writes == 1
        # The first write of a process may look too: short processes must not add up past the limit.
        large = len(payload) * _LOOK_ONE_IN > self.limit
        if due or (first and (large or digest[0] % _LOOK_ONE_IN == 0)):
            self.evict()

    def evict(self) -> None:
        """Deletes the least recently used entries if all of them exceed the limit.

        Races are harmless: a file that another process deletes first is as gone as it should be,
        and one that is deleted while somebody reads it stays readable until it is closed.
        """
        entries = self._scan()
        total = sum(size for _, size, _ in entries)
        if total <= self.limit:
            return
        for _, size, path in sorted(entries):
            if total <= self.limit * _EVICT_TO:
                break
            _remove(path)
            total -= size

    def clear(self) -> None:
        """Deletes all entries. Files that are not the cache's stay."""
        for _, _, path in self._scan(all_temporary=True):
            _remove(path)

    def stats(self) -> CacheStats:
        """Counts of this process, and the number and size of all entries."""
        entries = self._scan()
        with self._lock:
            return CacheStats(
                self._hits,
                self._misses,
                self._writes,
                self._corrupt,
                len(entries),
                sum(size for _, size, _ in entries),
                self.directory,
                self._usable is not False,
            )

    # --- entries ---

    def _path(self, digest: bytes) -> str:
        return os.path.join(self.directory, digest.hex() + _SUFFIX)

    def _read(self, key: str) -> bytes | None:
        digest = _digest(key)
        path = self._path(digest)
        try:
            with open(path, "rb") as file:
                if not _is_private(os.fstat(file.fileno())):
                    self._reject(path, "it is not yours alone to write")
                    return None
                data = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("read", f"cannot read {path}: {error}. {_ADVICE}")
            return None
        payload = _payload(data, digest)
        if payload is None:
            self._reject(path, "it is damaged, or not an entry of this version")
            return None
        with contextlib.suppress(OSError):  # a read-only directory, or evicted this instant
            os.utime(path)  # its modification time is when it was last used
        return payload

    def _reject(self, path: str, reason: str) -> None:
        with self._lock:
            self._corrupt += 1
        _remove(path)
        self._warn(
            "corrupt", f"ignored and deleted {path}: {reason}. What it held is compiled again."
        )

    def _write(self, path: str, header: bytes, payload: bytes) -> None:
        """Writes beside the target, then renames: the file appears complete or not at all.

        Without fsync, a power failure can leave a file of the right name and wrong bytes; the
        digest finds that.
        """
        handle, temporary = tempfile.mkstemp(_TEMPORARY, "w", self.directory)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(header)
                file.write(payload)
            os.replace(temporary, path)
        except BaseException:
            _remove(temporary)
            raise

    def _write_failed(self, error: OSError) -> None:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self.evict()
        self._warn("write", f"cannot write to {self.directory}: {error}. {_ADVICE}")

    def _scan(self, all_temporary: bool = False) -> list[tuple[float, int, str]]:
        """(last use, size, path) of every entry, and of temporary files that nobody owns now."""
        found = []
        stale = time.time() - _STALE_SECONDS
        try:
            with os.scandir(self.directory) as files:
                for file in files:
                    temporary = file.name.endswith(_TEMPORARY)
                    if not (temporary or file.name.endswith(_SUFFIX)):
                        continue
                    try:
                        status = file.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if temporary and not all_temporary and status.st_mtime > stale:
                        continue
                    found.append((status.st_mtime, status.st_size, file.path))
        except OSError:
            pass
        return found

    # --- the directory ---

    def _ready(self) -> bool:
        """Whether the directory can be trusted; makes it and looks at the first call."""
        if self._usable is None:
            problem = _prepare_directory(self.directory)
            self._usable = problem is None
            if problem is not None:
                self._warn("directory", f"{problem} {_ADVICE}")
        return self._usable

    def _warn(self, what: str, message: str) -> None:
        with self._lock:
            if what in self._warned:
                return
            self._warned.add(what)
        warn(f"jitgrad's disk cache: {message}", CacheWarning)


_ADVICE = (
    "Work goes on, but code is compiled anew in each process: set JITGRAD_CACHE_DIR to a directory "
    "of your own with mode 0700, or JITGRAD_CACHE=0 to do without."
)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _payload(data: bytes, digest: bytes) -> bytes | None:
    """The payload of a file's bytes if it is an intact entry for the key of that digest."""
    if len(data) < _HEADER.size:
        return None
    magic, version, key_digest, payload_digest, length = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if (magic, version, key_digest, length) != (_MAGIC, _VERSION, digest, len(payload)):
        return None
    return payload if hashlib.sha256(payload).digest() == payload_digest else None


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # gone already, or not ours to delete
        os.unlink(path)


def _is_private(status: os.stat_result) -> bool:
    """Whether nobody but this user can have written to it (Windows: left to its own rules)."""
    if not hasattr(os, "getuid"):
        return True
    shared = stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid == os.getuid() and not status.st_mode & shared


def _prepare_directory(directory: str) -> str | None:
    """Makes the directory with mode 0700 if need be. Returns what is wrong with it, or None."""
    try:
        parent = os.path.dirname(directory)
        os.makedirs(parent, mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        status = os.stat(directory)
    except OSError as error:
        return f"cannot make {directory}: {error}."
    if not stat.S_ISDIR(status.st_mode):
        return f"{directory} is not a directory."
    if not _is_private(status):
        return f"{directory} belongs to another user, or others may write to it, so it is not used."
    return None


_caches: dict[tuple[str, int], DiskCache] = {}
if hasattr(os, "register_at_fork"):
    # The child starts with fresh ones: a lock of these may have been held in the parent.
    os.register_at_fork(after_in_child=_caches.clear)


def disk_cache() -> DiskCache | None:
    """The cache that the knobs ask for, or None if they ask for none (JITGRAD_CACHE=0)."""
    if not knobs.cache or knobs.cache_size == 0:
        return None
    where = default_directory(), knobs.cache_size
    cache = _caches.get(where)
    return cache or _caches.setdefault(where, DiskCache(*where))


def get(key: str) -> bytes | None:
    """The payload stored under `key` in the cache in force, or None."""
    cache = disk_cache()
    return cache.get(key) if cache else None


def put(key: str, payload: bytes) -> None:
    """Stores `payload` under `key` in the cache in force, if there is one."""
    cache = disk_cache()
    if cache:
        cache.put(key, payload)


def clear() -> None:
    """Deletes all entries of the cache in force."""
    cache = disk_cache()
    if cache:
        cache.clear()


def stats() -> CacheStats:
    """What this process did with the cache in force, and what is in it."""
    cache = disk_cache()
    return cache.stats() if cache else CacheStats(0, 0, 0, 0, 0, 0, default_directory(), False)
