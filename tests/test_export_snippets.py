"""The snippets of docs/export.md in C, CMake and Rust, built and run as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler import link

pytestmark = pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")
TEXT = (Path(__file__).resolve().parents[1] / "docs" / "export.md").read_text(encoding="utf-8")
BODY = """
#include <stdio.h>
#include "libdigits.h"

int main(void) {
    static float images[JG_DIGITS_INPUT0_SIZE], logits[JG_DIGITS_OUTPUT0_SIZE];
    for (int i = 0; i < JG_DIGITS_INPUT0_SIZE; i++) images[i] = 0.5f;
    %s
    for (int i = 0; i < 10; i++) printf("%%.9g ", logits[i]);
    return 0;
}
"""


def snippet(language: str, word: str) -> str:
    """The block of the page in that language that has the word."""
    (found,) = (b for b in re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL) if word in b)
    return found


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program}")


@pytest.fixture
def want(tmp_path) -> np.ndarray:
    """Writes the library; gives the first row of its results for images of 0.5."""
    jg.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).eval()
    jg.export(model, jg.rand(8, 64)).native(tmp_path / "libdigits.so")
    return model(jg.full((1, 64), 0.5)).detach().numpy()[0]


def said(command: list[str], folder: Path) -> np.ndarray:
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return np.array(re.findall(r"-?[\d.]+(?:e-?\d+)?", run.stdout), np.float32)


def main_c() -> str:
    include, _, body = snippet("c", "jg_digits_create(2);  ").partition("\n")
    assert include == '#include "libdigits.h"'
    return BODY % body


@needs("cc")
def test_c(tmp_path, want):
    (tmp_path / "main.c").write_text(main_c())
    (command,) = re.findall(r"^    (cc main\.c libdigits\.so \S+)", TEXT, re.MULTILINE)
    flags = "-Wall -Wextra -Werror -o classify"
    subprocess.run(f"{command} {flags}", shell=True, cwd=tmp_path, check=True)
    np.testing.assert_allclose(said(["./classify"], tmp_path), want, rtol=1e-5, atol=1e-6)


@needs("cc")
@needs("cmake")
def test_cmake(tmp_path, want):
    (tmp_path / "main.c").write_text(main_c())
    (tmp_path / "CMakeLists.txt").write_text(snippet("cmake", "project"))
    for command in (["cmake", "-B", "build", "."], ["cmake", "--build", "build"]):
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stdout + run.stderr
    np.testing.assert_allclose(said(["build/classify"], tmp_path), want, rtol=1e-5, atol=1e-6)


@needs("rustc")
def test_rust(tmp_path, want):
    (tmp_path / "main.rs").write_text(snippet("rust", "jg_digits_run"))
    (command,) = re.findall(r"`(rustc main\.rs [^`]*)`", TEXT)
    run = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0 and "warning" not in run.stderr, run.stderr
    np.testing.assert_allclose(said(["./main"], tmp_path), want, rtol=1e-5, atol=1e-6)
