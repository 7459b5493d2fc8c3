"""The disk cache: what is intact comes back, what is not never does, and nothing makes it fail."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest

from jitgrad.runtime import cache as module
from jitgrad.runtime.cache import DiskCache
from jitgrad.runtime.errors import CacheWarning
from jitgrad.runtime.knobs import knob

PAYLOAD = bytes(range(256)) * 3


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "base" / "cache")


@pytest.fixture
def cache(directory):
    return DiskCache(directory, 2**20)


def entry_path(cache, key):
    return cache._path(module._digest(key))


def test_round_trip(cache):
    assert cache.get("a") is None
    for key, payload in (("a", PAYLOAD), ("b", b""), ("key é\n/..", b"x")):
        cache.put(key, payload)
        assert cache.get(key) == payload
    cache.put("a", b"new")
    assert cache.get("a") == b"new"
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.writes, stats.entries) == (4, 1, 4, 3)
    assert stats.enabled and stats.corrupt == 0
    assert stats.nbytes == 3 * module._HEADER.size + 4
    assert DiskCache(cache.directory, 2**20).get("b") == b""


def test_the_directory_is_private(cache, directory):
    cache.put("a", PAYLOAD)
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert os.stat(os.path.dirname(directory)).st_mode & 0o077 == 0
    assert os.stat(entry_path(cache, "a")).st_mode & 0o777 == 0o600
    assert os.listdir(directory) == [os.path.basename(entry_path(cache, "a"))]


@pytest.mark.parametrize("offset", [0, 7, 8, 11, 12, 43, 44, 75, 76, 83, 84, 84 + 300, -1])
def test_a_flipped_bit_anywhere_is_a_miss(cache, offset):
    cache.put("a", PAYLOAD)
    path = entry_path(cache, "a")
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[offset] ^= 1
        file.seek(0)
        file.write(data)
    with pytest.warns(CacheWarning, match="ignored and deleted"):
        assert cache.get("a") is None
    assert not os.path.exists(path)
    assert cache.stats().corrupt == 1
    cache.put("a", PAYLOAD)
    assert cache.get("a") == PAYLOAD


@pytest.mark.parametrize("length", [0, 1, 50, 84, 85, 800, 851])
def test_a_truncated_entry_is_a_miss(cache, length):
    cache.put("a", PAYLOAD)
    path = entry_path(cache, "a")
    os.truncate(path, length)
    with pytest.warns(CacheWarning):
        assert cache.get("a") is None
    assert not os.path.exists(path)


def test_an_extended_or_renamed_entry_is_a_miss(cache):
    cache.put("a", PAYLOAD)
    os.rename(entry_path(cache, "a"), entry_path(cache, "b"))
    with pytest.warns(CacheWarning):
        assert cache.get("b") is None
    cache.put("a", PAYLOAD)
    with open(entry_path(cache, "a"), "ab") as file:
        file.write(b"\0")
    assert cache.get("a") is None  # and no second warning
    assert cache.stats().corrupt == 2


def test_corruption_is_reported_once(cache):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for key in "abc":
            cache.put(key, PAYLOAD)
            os.truncate(entry_path(cache, key), 3)
            assert cache.get(key) is None
    assert len(caught) == 1


def test_an_entry_that_others_may_write_is_a_miss(cache):
    cache.put("a", PAYLOAD)
    os.chmod(entry_path(cache, "a"), 0o666)
    with pytest.warns(CacheWarning, match="not yours alone"):
        assert cache.get("a") is None


def unusable(cache, match):
    with pytest.warns(CacheWarning, match=match) as caught:
        cache.put("a", PAYLOAD)
        assert cache.get("a") is None
        cache.put("a", PAYLOAD)
        assert cache.get("a") is None
    assert len(caught) == 1
    assert "JITGRAD_CACHE_DIR" in str(caught[0].message)
    assert not cache.stats().enabled


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_may_write_is_refused(cache, directory, mode):
    os.makedirs(directory)
    os.chmod(directory, mode)
    unusable(cache, "others may write to it")
    assert os.listdir(directory) == []


def test_another_users_directory_is_refused(cache, directory, monkeypatch):
    os.makedirs(directory, 0o700)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    unusable(cache, "belongs to another user")


def test_a_file_in_the_place_of_the_directory(cache, directory):
    os.makedirs(os.path.dirname(directory))
    open(directory, "w").close()
    unusable(cache, "is not a directory")


def test_a_file_in_the_place_of_its_parent(cache, directory):
    open(os.path.dirname(directory), "w").close()
    unusable(cache, "cannot make")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_failing_writes(cache, directory, monkeypatch, code):
    cache.put("old", PAYLOAD)

    def fail(*_args, **_kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module.tempfile, "mkstemp", fail)
    with pytest.warns(CacheWarning, match="cannot write") as caught:
        cache.put("a", PAYLOAD)
        cache.put("b", PAYLOAD)
    assert len(caught) == 1
    assert cache.get("a") is None and cache.get("old") == PAYLOAD


def test_a_write_that_fails_midway_leaves_nothing(cache, directory, monkeypatch):
    cache.put("old", PAYLOAD)

    def fail(*_args):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(CacheWarning, match="full"):
        cache.put("a", PAYLOAD)
    assert len(os.listdir(directory)) == 1


def test_the_directory_disappears(cache, directory):
    cache.put("a", PAYLOAD)
    cache.clear()
    os.rmdir(directory)
    assert cache.get("a") is None
    with pytest.warns(CacheWarning, match="cannot write"):
        cache.put("a", PAYLOAD)
    assert cache.stats().entries == 0


def test_eviction_takes_the_least_recently_used(directory):
    cache = DiskCache(directory, 100_000)
    for i in range(90):
        cache.put(f"k{i}", bytes(1000))
        os.utime(entry_path(cache, f"k{i}"), (i, i))
    assert cache.get("k0") is not None  # now the most recently used
    for i in range(90, 110):
        cache.put(f"k{i}", bytes(1000))
    stats = cache.stats()
    assert stats.nbytes <= 100_000 * (1 + module._EVICT_EVERY)
    assert stats.entries >= 60
    assert cache.get("k0") is not None and cache.get("k109") is not None
    assert cache.get("k1") is None and cache.get("k2") is None


def test_eviction_counts_what_other_processes_wrote(directory):
    for i in range(40):  # each like a process that writes one entry and ends
        DiskCache(directory, 20_000).put(f"k{i}", bytes(1000))
    assert DiskCache(directory, 20_000).stats().nbytes <= 20_000


def test_few_short_processes_list_the_directory(directory, monkeypatch):
    looks = []
    monkeypatch.setattr(DiskCache, "evict", lambda self: looks.append(self))
    for i in range(256):
        cache = DiskCache(directory, 10**9)
        cache.put(f"k{i}", b"small"), cache.put(f"l{i}", b"small")
    assert 1 <= len(looks) <= 16  # one in 64 keys, not one in a process


def test_what_exceeds_the_limit_is_not_stored(directory):
    cache = DiskCache(directory, 1000)
    cache.put("a", bytes(1000))
    assert cache.get("a") is None


def test_stale_temporary_files_are_swept_and_strangers_stay(directory):
    cache = DiskCache(directory, 3000)
    cache.put("a", bytes(100))
    old, new, stranger = (os.path.join(directory, x) for x in ("w1.tmp", "w2.tmp", "notes.txt"))
    for path in (old, new, stranger):
        with open(path, "wb") as file:
            file.write(bytes(5000))
    os.utime(old, (1, 1))
    cache.evict()
    assert not os.path.exists(old) and os.path.exists(new) and cache.get("a")
    cache.clear()
    assert os.listdir(directory) == ["notes.txt"]
    assert cache.get("a") is None


WRITER = """
import sys
from jitgrad.runtime.cache import DiskCache
cache = DiskCache(sys.argv[1], 60_000)
for round in range(40):
    for i in range(40):
        key = f"key {i}"
        payload = (key * 300).encode()
        found = cache.get(key)
        assert found is None or found == payload
        cache.put(key, payload)
assert cache.stats().corrupt == 0
"""


def test_processes_at_once(directory):
    """They write the same keys while they evict each other's: 40 * 2 KB against 60 KB."""
    command = [sys.executable, "-W", "error", "-c", WRITER, directory]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert not [name for name in os.listdir(directory) if name.endswith(".tmp")]


def test_threads_at_once(cache):
    failures = []

    def work():
        for i in range(100):
            key = f"key {i % 7}"
            cache.put(key, key.encode() * 500)
            if cache.get(key) != key.encode() * 500:
                failures.append(key)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and cache.stats().writes == 400


def test_knobs_choose_the_cache(directory):
    with knob(cache_dir=directory, cache=True):
        module.put("a", PAYLOAD)
        assert module.get("a") == PAYLOAD
        assert module.stats().directory == directory and module.stats().entries == 1
        with knob(cache=False):
            assert module.get("a") is None
            module.put("b", PAYLOAD)
            module.clear()
            assert not module.stats().enabled
        assert module.get("a") == PAYLOAD and module.get("b") is None
        module.clear()
        assert module.get("a") is None


def test_default_directory(monkeypatch, tmp_path):
    with knob(cache_dir=None):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert module.default_directory() == str(tmp_path / "jitgrad")
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        monkeypatch.setenv("HOME", "/home/me")
        where = "Library/Caches" if sys.platform == "darwin" else ".cache"
        assert module.default_directory() == f"/home/me/{where}/jitgrad"
    with knob(cache_dir="~/c"):
        assert module.default_directory() == "/home/me/c"


def test_reading_renews_an_entry(cache):
    cache.put("a", PAYLOAD)
    os.utime(entry_path(cache, "a"), (1, 1))
    cache.get("a")
    assert os.stat(entry_path(cache, "a")).st_mtime > time.time() - 1000
