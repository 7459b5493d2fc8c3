"""How much of PyTorch's op database jitgrad passes: python benchmarks/op_coverage.py [NAME ...].

Needs PyTorch and expecttest. With names, runs those entries and prints what differs, by mode
(tests/parity/op_database.py says what the modes are); without, runs all and prints the table of
docs/coverage.md (--write puts it there). --samples N: how many of each entry's samples. --keep
FILE: findings are written there, and what is found there is not run again, so that a run that was
stopped goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
os.environ["JITGRAD_FALLBACK"] = "error"

from parity.op_database import MODES, Findings, entries, examine, label  # noqa: E402
from parity.test_op_database import KNOWN  # noqa: E402


def table(found: list[Findings]) -> str:
    """Markdown: totals, what is missing, and one line for each entry that differs."""
    counts = Counter((mode, text is None) for f in found for mode, text in f.modes.items())
    missing = [f.name for f in found if f.missing]
    lines = [
        "# What of PyTorch's functions is there",
        "",
        "Made by `python benchmarks/op_coverage.py --write`: PyTorch's own op database, run in",
        "both libraries. A function counts for a mode when all samples tried agree (values,",
        "shapes, dtypes; derivatives; the type of errors; compiled and eager). batch: inside vmap,",
        "as a loop of eager calls; onnx: exported, and run by ONNX Runtime. What differs is",
        "listed with reasons at the end; for ONNX in onnx.md.",
        "",
        f"{len(found)} entries, {len(missing)} of them not there yet.",
        "",
        "| mode | agree | differ |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {m} | {counts[m, True]} | {counts[m, False]} |" for m in MODES]
    lines += ["", "| entry | " + " | ".join(MODES) + " |", "| --- |" + " --- |" * len(MODES)]
    for f in sorted(found, key=lambda f: f.name):
        if not f.missing:
            marks = [_mark(f, mode) for mode in MODES]
            lines.append(f"| {f.name} | " + " | ".join(marks) + " |")
    lines += ["", "Not there yet: " + ", ".join(sorted(missing)) + "."]
    return "\n".join(lines) + "\n" + reasons()


def reasons() -> str:
    """Markdown: why entries differ (tests/parity/test_op_database.py, which holds them to it)."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for name, modes in sorted(KNOWN.items()):
        for mode, reason in modes.items():
            by_reason.setdefault(reason, {}).setdefault(name, []).append(mode)
    lines = ["", "## Why entries differ", "", "| reason | entries (modes) |", "| --- | --- |"]
    for reason, names in sorted(by_reason.items()):
        shown = ", ".join(f"{name} ({', '.join(modes)})" for name, modes in names.items())
        lines.append(f"| {reason} | {shown} |")
    return "\n".join(lines) + "\n"


def _mark(found: Findings, mode: str) -> str:
    if mode not in found.modes:
        return ""
    return "yes" if found.modes[mode] is None else "**no**"


def findings_of(path: Path | None) -> dict[str, Findings]:
    """The findings of a file: name -> Findings."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["name"]: Findings(**row) for row in rows}


def examined(entry: Any, options: argparse.Namespace) -> Findings:
    """What an entry gives, added to the file of findings."""
    found = examine(entry, options.samples)
    if options.keep is not None:
        with options.keep.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(found)) + "\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Run PyTorch's op database against jitgrad.")
    parser.add_argument("names", nargs="*", help="entries to run; all of them when none is named")
    parser.add_argument("--samples", type=int, default=4, help="samples of each entry and mode")
    parser.add_argument("--write", action="store_true", help="write docs/coverage.md")
    parser.add_argument("--keep", type=Path, help="a file of findings, read and added to")
    options = parser.parse_args()
    chosen = [
        e
        for e in entries()
        if not options.names or e.name in options.names or label(e) in options.names
    ]
    kept = findings_of(options.keep)
    found = [kept.get(label(e)) or examined(e, options) for e in chosen]
    for f in found:
        if f.missing and options.names:
            print(f"{f.name}: missing")
        for mode, text in f.failed().items():
            print(f"{f.name} [{mode}] {' '.join(text.split())[:600]}")
    if not options.names:
        print(text := table(found))
        if options.write:
            (ROOT / "docs" / "coverage.md").write_text(text)
    return int(any(f.missing or f.failed() for f in found))


if __name__ == "__main__":
    sys.exit(main())
