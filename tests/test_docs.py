"""docs/: its Python blocks run, its links lead somewhere, and no page that is named is missing.

The ```python blocks of a page run in order, as one program, but for those marked ```python no-run.
The knobs table of docs/jit.md is the one that the code makes. README.md is tests/test_readme.py's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jitgrad.compiler.link import find_linker
from jitgrad.runtime.knobs import markdown

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```python( no-run)?\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
NAMED = re.compile(r"\bdocs/\w+\.md\b")
FOLDERS = ("jitgrad", "compiler", "runtime", "tests", "benchmarks", "examples", "docs")
NEEDS_LINKER = {"export.md"}
NEEDS = {"onnx.md": "onnx.helper"}  # a module of a package that is an extra


def name_of(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = [code for no_run, code in BLOCK.findall(text) if not no_run]
    if not blocks:
        assert "```python\n" not in text
        return
    if page.name in NEEDS_LINKER and find_linker() is None:
        pytest.skip("no linker on this machine")
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [t for t in LINK.findall(page.read_text("utf-8")) if not (page.parent / t).exists()]
    assert not missing


def test_pages_that_are_named_exist() -> None:
    files = [p for f in FOLDERS for p in (ROOT / f).rglob("*") if p.suffix in (".py", ".md")]
    missing = [
        f"{p.relative_to(ROOT)}: {name}"
        for p in [ROOT / "README.md", *files]
        for name in NAMED.findall(p.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert not missing


def test_the_table_of_knobs_is_the_code_s() -> None:
    assert markdown() in (ROOT / "docs" / "jit.md").read_text(encoding="utf-8")
