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

TYPED = """
from collections.abc import Callable
from typing import Any, assert_type

import jitgrad as torch
import jitgrad.nn as nn
from jitgrad import Tensor
from jitgrad.runtime.dtypes import DType


@torch.no_grad()
def scaled(x: Tensor, times: int) -> Tensor:
    return x * times


@torch.inference_mode()
def halved(x: Tensor) -> Tensor:
    return x / 2


@torch.jit
def compiled(x: Tensor, times: int = 2) -> Tensor:
    return x * times


@torch.jit(fallback="error")
def strictly(x: Tensor) -> float:
    return float(x.sum())


@torch.compile
def step(x: Tensor) -> tuple[Tensor, int]:
    return x, 1


def use(x: Tensor, model: nn.Linear) -> None:
    assert_type(torch.float32, DType)
    assert_type(x.dtype, DType)
    assert_type(x.tolist(), list[Any])
    assert_type(x.size(), torch.Size)
    assert_type(x.size(0), int)
    assert_type(x.numel(), int)
    assert_type(x.max(), Tensor)
    assert_type(x.max(dim=1).values, Tensor)
    assert_type(torch.min(x, 0).indices, Tensor)
    assert_type(torch.max(x, x), Tensor)
    values, indices = torch.sort(x, descending=True)
    assert_type(values, Tensor)
    assert_type(x.topk(2).indices, Tensor)
    assert_type(torch.topk(x, 2).values, Tensor)
    assert_type(torch.median(x, dim=0).values, Tensor)
    assert_type(x.cummax(0).values, Tensor)
    assert_type(torch.linalg.svd(x).Vh, Tensor)
    assert_type(torch.linalg.eigh(x).eigenvalues, Tensor)
    assert_type(torch.linalg.slogdet(x).sign, Tensor)
    assert_type(torch.autograd.grad(x.sum(), x), tuple[Tensor, ...])
    (slope,) = torch.autograd.grad(x.sum(), [x])
    assert_type(slope * 2, Tensor)
    assert_type(scaled(x, 2), Tensor)
    assert_type(halved(x), Tensor)
    assert_type(compiled(x, times=3), Tensor)
    assert_type(strictly(x), float)
    assert_type(step(x), tuple[Tensor, int])
    assert_type(torch.compile(model), nn.Linear)
    print(compiled.stats, strictly.explain())
    gradient: Callable[[Tensor, int], Any] = torch.func.grad(scaled)
    mapped: Callable[[Tensor, int], Any] = torch.vmap(scaled)
    print(gradient(x, 2), mapped(x, 2))
"""

LOST = [  # what a decorator must not hide
    ('scaled(x, "a")', "arg-type"),
    ("halved()", "call-arg"),
    ("compiled(x, 2, 3)", "call-arg"),
    ("strictly(3)", "arg-type"),
    ("x.max(dim=1).value", "attr-defined"),
    ("torch.linalg.svd(x).V", "attr-defined"),
]

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


def check(site: Path, source: str, *options: str) -> str:
    """What mypy says of a file."""
    (site / "user.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--ignore-missing-imports",
               "--cache-dir", str(ROOT / ".mypy_cache" / "stubs"), *options, "user.py"]  # fmt: skip
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("strict", [False, True])
def test_mypy_accepts_right_and_finds_wrong_calls(installed: Path, strict: bool) -> None:
    pytest.importorskip("mypy")
    right, wrong = (TYPED, LOST) if strict else (USER, WRONG)
    lines = "\n".join(f"    {line}" for line, _ in wrong)
    source = f"{right}\n\ndef wrong(x: Tensor) -> None:\n{lines}\n"
    first = source.splitlines().index("def wrong(x: Tensor) -> None:") + 2
    said = check(installed, source, *(["--strict"] if strict else []))
    found: dict[int, set[str]] = {}
    for match in re.finditer(r"user\.py:(\d+): error: .*\[([\w-]+)\]", said):
        found.setdefault(int(match[1]), set()).add(match[2])
    expected = {first + i: code for i, (_, code) in enumerate(wrong)}
    assert set(found) == set(expected), said
    for line, code in expected.items():
        assert code in found[line], said
