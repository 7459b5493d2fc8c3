"""README.md: its Python blocks run, in order, in one namespace, and print what it shows.

A ```text block right after a ```python block is that block's output. Numbers that differ from
machine to machine (times, sizes of files and of memory, counts of threads) may differ here too:
see VARYING. The demo's output is compared by tests/test_demo.py, not here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
VARYING = re.compile(r"(?<=\bbytes=)\d+|\b\d[\d,.]*(?= ?(?:ms|us|s|KB|MB|bytes|threads|x)\b(?!=))")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks() -> list[tuple[str, str]]:
    """(language, text) of each fenced block, in order."""
    return [(m[1], m[2]) for m in BLOCK.finditer(README.read_text(encoding="utf-8"))]


def normal(text: str) -> str:
    lines = [VARYING.sub("#", line).rstrip() for line in text.strip().splitlines()]
    return "\n".join(re.sub(r"  +", "  ", line) for line in lines)


def test_python_blocks_print_what_is_shown(tmp_path: Path) -> None:
    found = blocks()
    mark = "-- next block --"
    program, shown = [], []
    for n, (language, text) in enumerate(found):
        if language != "python":
            continue
        after = found[n + 1] if n + 1 < len(found) else ("", "")
        program.append(f"{text}\nprint({mark!r})")
        shown.append(after[1] if after[0] == "text" else None)
    assert len(program) >= 5
    script = tmp_path / "walk.py"
    script.write_text("\n".join(program), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = done.stdout.replace(f"{tmp_path}/", "").split(mark + "\n")[:-1]
    for got, want in zip(printed, shown, strict=True):
        if want is not None:
            assert normal(got) == normal(want)
        else:
            assert not got.strip(), f"the README does not show what a block prints:\n{got}"


def test_names_the_two_commands() -> None:
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text("utf-8")))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
