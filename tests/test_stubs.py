"""The stub files are up to date, and mypy checks users' code with them: right calls pass, wrong
ones are found on their lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

USER = """
from typing import Any

import jitgrad as torch
import jitgrad.nn as nn
import jitgrad.nn.functional as F
from jitgrad import Tensor, device, dtype
from jitgrad.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x)).sum(-1, keepdim=True)


@torch.jit(fallback="error")
def step(x: Tensor) -> Tensor:
    return x @ x.T + 2 * x.exp().clamp(min=0.0)


def use(kind: dtype = torch.float32, where: device | None = None) -> Tensor:
    x = torch.zeros(3, 4, dtype=kind) + torch.arange(12).reshape(3, 4).float()
    x[0] = 1.0
    mask = x > 2
    y = torch.where(mask, x, -x) / 3 + x.mean(axis=0)
    y = torch.cat([y, x], dim=0).softmax(-1) ** 2
    loss = (torch.sin(y) - 1).abs().sum()
    loss.backward()
    with torch.no_grad():
        y.add_(1.0).mul_(2)
    values, places = x.max(dim=1)
    print(x.shape, x.grad, torch.jit.is_scripting(), torch.cuda.is_available(), torch.__version__)
    data: DataLoader[Any] = DataLoader(TensorDataset(x), batch_size=2)
    return Net(3)(x).to(torch.float64) if len(data) else torch.compile(step)(x)
"""

WRONG = [  # a line, and the code of mypy's complaint
    ("x.no_such_method()", "attr-defined"),
    ("torch.no_such_function(x)", "attr-defined"),
    ("x.permute_(0, 1)", "attr-defined"),
    ('x + "a"', "operator"),
    ("x.softmax()", "call-arg"),
    ('torch.gather(x, "0", x)', "arg-type"),
    ("torch.sin(x, dims=3)", "call-arg"),
    ("torch.sin(3)", "arg-type"),
    ("x.sum(keepdims=True, axes=1)", "call-arg"),
    ("torch.zeros(3, dtype=int)", "arg-type"),
    ("y: int = x.exp()", "assignment"),
    ("torch.cat(x, dim='a')", "arg-type"),
    ("x.cumsum(1, 2, 3, 4, 5)", "call-arg"),
]


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_files_are_what_the_script_writes() -> None:
    code = """
import sys
sys.path.insert(0, "tests")
import stubs
old = [p.name for p, make in stubs.FILES.items() if p.read_text(encoding="utf-8") != make()]
print(old)
"""
    done = fresh(code)
    assert done.stdout.strip() == "[]", (
        f"out of date: {done.stdout or done.stderr} run python tests/stubs.py"
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is installed, by links: mypy reads no editable install."""
    site = tmp_path_factory.mktemp("site")
    package = site / "jitgrad"
    package.mkdir()
    for path in (ROOT / "jitgrad").iterdir():
        if path.name != "__pycache__":
            os.symlink(path, package / path.name)
    os.symlink(ROOT / "compiler", package / "compiler")
    os.symlink(ROOT / "runtime", package / "runtime")
    return site


def check(site: Path, source: str) -> str:
    """What mypy says of a file."""
    (site / "user.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--ignore-missing-imports",
               "--cache-dir", str(ROOT / ".mypy_cache" / "stubs"), "user.py"]  # fmt: skip
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.long
def test_mypy_accepts_right_and_finds_wrong_calls(installed: Path) -> None:
    pytest.importorskip("mypy")
    lines = "\n".join(f"    {line}" for line, _ in WRONG)
    source = f"{USER}\n\ndef wrong(x: Tensor) -> None:\n{lines}\n"
    first = source.splitlines().index("def wrong(x: Tensor) -> None:") + 2
    said = check(installed, source)
    found: dict[int, set[str]] = {}
    for match in re.finditer(r"user\.py:(\d+): error: .*\[([\w-]+)\]", said):
        found.setdefault(int(match[1]), set()).add(match[2])
    expected = {first + i: code for i, (_, code) in enumerate(WRONG)}
    assert set(found) == set(expected), said
    for line, code in expected.items():
        assert code in found[line], said
