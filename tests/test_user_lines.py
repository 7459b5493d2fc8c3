"""Errors and warnings name the user's line: eager, inside modules, under jit."""

import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn, optim
from jitgrad.utils.checkpoint import checkpoint

HERE = re.compile(r"\(at .*test_user_lines\.py:(\d+)\)$")
X = jg.ones(2, 3)

BAD: list[Callable[[], Any]] = [
    # layers and losses
    lambda: nn.Linear(4, 2)(X),
    lambda: F.linear(X, jg.ones(2, 4)),
    lambda: F.cross_entropy(X, jg.zeros(5, dtype=jg.int64)),
    lambda: nn.CrossEntropyLoss()(X, jg.zeros(5, dtype=jg.int64)),
    lambda: nn.BatchNorm2d(3)(X),
    lambda: nn.LSTM(4, 5)(X),
    lambda: F.nll_loss(X, jg.zeros(2, dtype=jg.int64), weight=jg.ones(5)),
    lambda: nn.Conv2d(3, 4, 3)(X),
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2))(X),
    lambda: F.layer_norm(X, (4,)),
    lambda: F.dropout(X, 2.0),
    # dtypes
    lambda: X @ jg.ones(3, 2, dtype=jg.float64),
    lambda: jg.matmul(X, jg.ones(3, 2, dtype=jg.float64)),
    lambda: F.embedding(X, jg.ones(5, 2)),
    lambda: nn.Embedding(5, 2)(X),
    lambda: F.one_hot(X),
    lambda: X & 1,
    lambda: jg.exp(2.0),
    # shapes
    lambda: jg.ones(3).add_(jg.ones(2, 3)),
    lambda: jg.ones(3).__iadd__(jg.ones(2, 3)),
    lambda: X + jg.ones(5),
    lambda: X[5],
    lambda: X[0, 0, 0],
    lambda: X.__setitem__(7, 1.0),
    lambda: X.sum(5),
    lambda: jg.sum(X, dim=5),
    lambda: X.transpose(0, 5),
    lambda: X.squeeze(5),
    lambda: X.unsqueeze_(5),
    lambda: jg.stack([X, jg.ones(3)]),
    lambda: X.permute(0, 0),
    lambda: jg.permute(X, (0, 0)),
    lambda: X.view(7),
    lambda: X.reshape(7),
    lambda: X.expand(5, 5),
    lambda: jg.cat([X, jg.ones(2)]),
    lambda: X.gather(0, jg.zeros(2, dtype=jg.int64)),
    lambda: jg.chunk(X, 0),
    lambda: jg.zeros(-1),
    lambda: X.backward(),
]  # fmt: skip


@pytest.mark.parametrize("call", BAD)
def test_errors_name_the_line(call: Callable[[], Any]) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)) as caught:
        call()
    text = str(caught.value)
    found = HERE.search(text)
    assert found and int(found[1]) == call.__code__.co_firstlineno, text
    assert text.count("(at ") == 1, text


def test_under_jit_the_line_is_that_of_the_call() -> None:
    def f(x: Any) -> Any:
        return x.permute(0, 0)

    with pytest.raises(RuntimeError) as caught:
        jg.jit(f, fallback="error")(X)
    found = HERE.search(str(caught.value))
    assert found and int(found[1]) == f.__code__.co_firstlineno + 1


class Wrong(nn.Module):
    def forward(self, x: Any, own: bool) -> Any:
        if own:
            raise ValueError("the user's own")
        return nn.Linear(4, 2)(x)


def test_the_innermost_line_of_the_users_counts() -> None:
    """In the user's forward; what the user's own code raises is left as it is."""
    with pytest.raises(RuntimeError) as caught:
        nn.Sequential(Wrong()).__getitem__(0)(X, False)
    found = HERE.search(str(caught.value))
    assert found and int(found[1]) == Wrong.forward.__code__.co_firstlineno + 3
    with pytest.raises(ValueError) as raised:
        Wrong()(X, True)
    assert str(raised.value) == "the user's own"


@pytest.mark.parametrize("name", F.__all__)
def test_functional_names_can_be_pickled(name: str) -> None:
    function = getattr(F, name)
    assert pickle.loads(pickle.dumps(function)) is function


# -- warnings --------------------------------------------------------------------------------------
def scheduler() -> Any:
    return optim.lr_scheduler.StepLR(optim.SGD([jg.ones(2, requires_grad=True)], lr=0.1), 1)


def hidden(x: Any) -> Any:
    return jg.jit(lambda x: x * x.sum().numpy(), fallback="warn", segments=False)(x)


WARNING: list[Callable[[], Any]] = [
    lambda: F.mse_loss(X, jg.ones(3)),
    lambda: nn.MSELoss()(X, jg.ones(3)),
    lambda: F.l1_loss(X, jg.ones(3)),
    lambda: F.huber_loss(X, jg.ones(3)),
    lambda: F.smooth_l1_loss(X, jg.ones(3)),
    lambda: F.mse_loss(X, X, size_average=True),
    lambda: nn.L1Loss(reduce=False),
    lambda: F.softmax(X),
    lambda: nn.Softmax()(X),
    lambda: nn.Sequential(nn.LogSoftmax())(X),
    lambda: nn.LSTM(2, 2, dropout=0.5),
    lambda: nn.GRU(2, 2, dropout=0.5),
    lambda: F.dropout2d(X),
    lambda: nn.Dropout3d()(X),
    lambda: F.upsample(X.reshape(1, 2, 3), 5),
    lambda: F.affine_grid(jg.ones(1, 2, 3), [1, 1, 2, 2]),
    lambda: nn.utils.clip_grad_norm([jg.ones(2)], 1.0),
    lambda: nn.utils.weight_norm(nn.Linear(2, 2)),
    lambda: nn.init.uniform(jg.ones(2)),  # type: ignore[attr-defined]
    lambda: jg.tensor(X),
    lambda: jg.add(X, 1, out=jg.ones(7)),
    lambda: jg.sum(X, dim=1, out=jg.ones(7)),
    lambda: jg.autograd.detect_anomaly(),
    lambda: checkpoint(jg.sin, X.clone().requires_grad_()),
    lambda: scheduler().step(),
    lambda: jg.cuda.amp.autocast(),
    lambda: hidden(X),
]  # fmt: skip


@pytest.mark.parametrize("call", WARNING)
def test_warnings_point_at_the_line(call: Callable[[], Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert caught
    first = hidden.__code__.co_firstlineno + 1 if "hidden" in call.__code__.co_names else 0
    for w in caught:
        assert w.filename == __file__, w
        assert w.lineno == (first or call.__code__.co_firstlineno), w


def test_there_is_one_way_to_warn() -> None:
    """Nothing in the package guesses how deep the user's frame is."""
    root = Path(__file__).parent.parent
    for layer in ("jitgrad", "compiler", "runtime"):
        for path in (root / layer).rglob("*.py"):
            if path.name != "userline.py":
                text = path.read_text()
                assert "stacklevel=" not in text and "warnings.warn(" not in text, path


def test_the_caches_warning_points_at_the_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    script = tmp_path / "script.py"
    script.write_text(
        "import jitgrad as jg\n"
        "f = jg.jit(lambda x: x * 2 + 1, fallback='error')\n"
        "for _ in range(2):\n"
        "    f(jg.ones(3))\n"
    )
    env = {"JITGRAD_CACHE_DIR": str(blocked / "under"), "PATH": ""}
    out = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, check=True
    )
    assert "CacheWarning" in out.stderr and "script.py:4: " in out.stderr, out.stderr


def test_a_warning_shows_once_per_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            F.mse_loss(X, jg.ones(3))
        F.mse_loss(X, jg.ones(3))
    assert len(caught) == 2
    assert np.all([w.filename == __file__ for w in caught])
