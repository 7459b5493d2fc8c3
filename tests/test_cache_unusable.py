"""Whole programs whose disk cache cannot be used: real files, mounts and limits, so that root sees
them too (permissions do not stop root). Each warns once, and gives the right numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
if sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
import jitgrad
x = jitgrad.arange(5.0)
for f in (lambda x: x * 3 + 1, lambda x: (x - 2).abs().sum()):
    fast = jitgrad.jit(f, fallback="error")
    for _ in range(3):
        assert (fast(x) == f(x)).all()
    assert fast.stats.compiles == 1, fast.stats
print(jitgrad.runtime.cache.stats().hits)
"""


def run(directory: Path | str, *arguments: str, before: str = "") -> tuple[int, str]:
    """(hits of the cache, warnings) of the program, with the cache there."""
    code = PROGRAM.replace("import jitgrad\n", "import jitgrad, jitgrad.runtime.cache\n")
    command = [sys.executable, "-W", "always", "-c", code, *arguments]
    if before:  # in a namespace of its own, where it may mount
        command = ["unshare", "-rm", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
    environment = {**os.environ, "JITGRAD_CACHE_DIR": str(directory), "JITGRAD_CACHE": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


def warned_once(text: str, *words: str) -> None:
    assert text.count("CacheWarning") == 1, text
    for word in (*words, "Work goes on", "JITGRAD_CACHE_DIR"):
        assert word in text, text


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/proc/jitgrad", "cannot make /proc/jitgrad"),
        ("/dev/full", "/dev/full is not a directory"),
        ("/dev/full/cache", "cannot make /dev/full/cache"),
    ],
)
def test_no_directory_can_be_there(path: str, word: str) -> None:
    if not os.path.exists(os.path.dirname(path)):
        pytest.skip(f"no {os.path.dirname(path)} here")
    hits, text = run(path)
    assert hits == 0
    warned_once(text, word)


def test_a_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("mine")
    warned_once(run(tmp_path / "cache")[1], "is not a directory")
    assert (tmp_path / "cache").read_text() == "mine"


def test_files_may_not_grow(tmp_path: Path) -> None:
    """Each write fails in the middle, by the process's limit."""
    hits, text = run(tmp_path / "cache", "100")
    assert hits == 0
    warned_once(text, "cannot write to", "File too large")
    assert os.listdir(tmp_path / "cache") == []


def mounting(tmp_path: Path, options: str) -> str:
    """A command that mounts a tmpfs at tmp_path/mount; skips where that is not allowed."""
    target = tmp_path / "mount"
    target.mkdir()
    command = f"mount -t tmpfs -o mode=0700,{options} none '{target}'"
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        pytest.skip("no unshare or mount")
    tried = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip("may not mount")
    return command


def test_the_disk_is_full(tmp_path: Path) -> None:
    mount = mounting(tmp_path, "size=4k")
    hits, text = run(tmp_path / "mount", before=mount)
    assert hits == 0
    warned_once(text, "cannot write to", "No space left on device")


def test_the_disk_is_read_only(tmp_path: Path) -> None:
    mount = mounting(tmp_path, "ro")
    warned_once(run(tmp_path / "mount", before=mount)[1], "Read-only file system")
    within = run(tmp_path / "mount" / "jitgrad", before=mount)[1]
    warned_once(within, "cannot make", "Read-only file system")


def test_what_a_read_only_disk_holds_is_used(tmp_path: Path) -> None:
    """Entries made before are hits, without a word."""
    mount = mounting(tmp_path, "size=4m")
    run(tmp_path / "cache")
    fill = f"cp -p '{tmp_path}'/cache/* '{tmp_path}/mount'"
    lock = f"mount -o remount,ro '{tmp_path}/mount'"
    hits, text = run(tmp_path / "mount", before=f"{mount} && {fill} && {lock}")
    assert hits > 0 and "CacheWarning" not in text, text
