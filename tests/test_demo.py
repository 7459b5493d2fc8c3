"""examples/digits.py: what it claims, checked again here from the numbers that it prints."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def output() -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "digits.py"), "--short"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def numbers(output: str, pattern: str) -> list[float]:
    found = re.search(pattern, output)
    assert found, f"{pattern!r} is not in\n{output}"
    return [float(g.replace(",", "")) for g in found.groups()]


@pytest.mark.long
def test_both_runs_learn_and_agree(output: str) -> None:
    accuracies = numbers(output, r"test accuracy +([\d.]+)% +([\d.]+)%")
    assert min(accuracies) >= 97
    rows = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.e+-]+)$", output, re.M)
    epochs = len(rows)
    assert epochs >= 5
    eager, compiled = ([float(r[k]) for r in rows] for k in (2, 3))
    assert eager[-1] < eager[0] / 5
    assert compiled[0] == pytest.approx(eager[0], rel=1e-4)
    assert compiled[-1] == pytest.approx(eager[-1], rel=0.2)
    rates = [float(r[1]) for r in rows]
    assert rates == sorted(rates, reverse=True)
    (same,) = numbers(output, r"from the same state.*difference ([\d.e+-]+) <=")
    assert same <= 1e-5


@pytest.mark.long
def test_what_the_compiler_did(output: str) -> None:
    nodes, simplified = numbers(output, r"nodes recorded +(\d+), (\d+) after")
    (kernels,) = numbers(output, r"kernels after fusion +(\d+)")
    assert kernels < simplified / 5 <= nodes / 5
    (ratio,) = numbers(output, r"([\d.]+) x the lower bound")
    assert 1 <= ratio <= 1.2
    hits, traces, compiles = numbers(output, r"(\d+) compiled, (\d+) recorded, (\d+) compilations")
    # Every step but the recorded ones ran compiled code, at a learning rate of its own.
    assert hits > 100
    assert compiles <= traces <= 3


@pytest.mark.long
def test_the_speedup_is_that_of_the_times_beside_it(output: str) -> None:
    eager, compiled, speedup = numbers(output, r"median epoch +([\d.]+) +([\d.]+) +([\d.]+) x")
    assert eager / compiled == pytest.approx(speedup, rel=0.1, abs=0.1)


@pytest.mark.long
def test_pictures(output: str) -> None:
    for name in ("graph", "kernels", "memory"):
        assert f"{name}.svg" in output
        root = ET.parse(EXAMPLES / "out" / f"{name}.svg").getroot()
        assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) > 40


@pytest.mark.long
def test_exported_classifier_predicts_the_same(output: str) -> None:
    same, of = numbers(output, r"fresh Python process.*: (\d+) of (\d+) predictions")
    assert same == of == 449
    if shutil.which("cc"):
        same, of = numbers(output, r"C program: (\d+) of (\d+) predictions")
        assert same == of == 449


@pytest.mark.parametrize("missing", ["sklearn", "tqdm"])
def test_says_what_is_missing(missing: str) -> None:
    code = (
        f"import runpy, sys; sys.modules[{missing!r}] = None; "
        f"runpy.run_path({str(EXAMPLES / 'digits.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"needs {missing}" in done.stderr
    assert "jitgrad[examples]" in done.stderr
