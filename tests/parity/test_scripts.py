"""Runs each script of scripts/ with PyTorch and with jitgrad: training scripts and lessons as
people publish them. The runner, and what a program defines, are those of test_zoo.py."""

import pathlib

import pytest
from parity.test_zoo import check_program, default  # noqa: F401  (a fixture)

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]
FILES = sorted((pathlib.Path(__file__).parent / "scripts").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_script(path, default):  # noqa: F811
    check_program(path, compiled=default == "float64")
