"""Generators of random numbers: a seed and a counter of draws.

A random op is a pure function of (seed, draw number, element index), by Philox (see
compiler/ops/random.py). A generator only numbers draws, so eager and compiled code draw the same
bits from the same seed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jitgrad.device import device as Device
from jitgrad.device import place
from jitgrad.runtime import dtypes
from jitgrad.state import state
from jitgrad.tensor import Tensor, static_type, wrap, wrap_array

DEFAULT_SEED = 67280421310721  # torch.default_generator's


class Generator:
    """A source of random numbers: `seed` and how many draws were made from it. Thread-safe."""

    def __init__(self, device: Any = "cpu") -> None:
        place(device)
        self.device = Device(device)
        self._lock = threading.Lock()
        self._seed = DEFAULT_SEED
        self._draws = 0

    def manual_seed(self, seed: int) -> Generator:
        """Starts the sequence of this seed (any 64-bit integer). Returns the generator."""
        seed = int(seed)
        if not -(2**63) <= seed < 2**64:
            raise ValueError(f"Overflow when unpacking long long: seed {seed} is beyond 64 bits")
        with self._lock:
            self._seed = seed % 2**64
            self._draws = 0
        return self

    def initial_seed(self) -> int:
        """The seed of the sequence."""
        return self._seed

    def seed(self) -> int:
        """Starts a sequence from a seed of the operating system; returns that seed."""
        new = int.from_bytes(os.urandom(8), "little")
        self.manual_seed(new)
        return new

    @property
    def draws(self) -> int:
        """How many draws were made since the sequence started."""
        return self._draws

    def advance(self, count: int = 1) -> int:
        """Takes the next `count` draw numbers; returns the first of them."""
        with self._lock:
            first = self._draws
            self._draws += count
        return first

    def give_back(self, first: int, count: int) -> None:
        """Undoes `advance(count)`, which gave `first`; numbers are skipped if others drew since."""
        with self._lock:
            if self._draws == first + count:
                self._draws = first

    def get_state(self) -> Tensor:
        """The state as a uint8 tensor of 16 bytes."""
        raw = np.array([self._seed, self._draws], np.uint64)
        return wrap_array(raw.view(np.uint8).copy())

    def set_state(self, new_state: Tensor) -> None:
        """Continues from a state that get_state gave. Raises RuntimeError for anything else."""
        if new_state.dtype is not dtypes.uint8 or tuple(new_state.shape) != (16,):
            raise RuntimeError(
                f"[set_state] expected a uint8 tensor of 16 bytes from get_state(); got "
                f"{new_state._type}"
            )
        raw = np.ascontiguousarray(new_state.numpy()).view(np.uint64)
        with self._lock:
            self._seed, self._draws = int(raw[0]), int(raw[1])

    def clone_state(self) -> Generator:
        """A generator in the same state."""
        other = Generator(self.device)
        other._seed, other._draws = self._seed, self._draws
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {"seed": self._seed, "draws": self._draws}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._seed, self._draws = fields["seed"], fields["draws"]

    def __repr__(self) -> str:
        return f"<jitgrad.Generator seed {self._seed}, draw {self._draws}>"


# What tells users a generator's seed or state. Drawing goes around these: jit notices their calls.
READS: tuple[Any, ...] = (
    Generator.initial_seed, Generator.draws, Generator.get_state, Generator.clone_state,
    Generator.__getstate__, Generator.__repr__,
)  # fmt: skip

default_generator = Generator()


def _after_fork_in_child() -> None:
    default_generator._lock = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def next_draw(generator: Generator | None = None) -> tuple[Tensor, Tensor]:
    """Seed and draw number of the next draw, as 0-d int64 tensors: operands of a random op."""
    if state.casting is not None:  # a function that is called anew draws once
        state.casting.at(None, ())
    generator = default_generator if generator is None else generator
    if not isinstance(generator, Generator):
        raise TypeError(f"argument 'generator' must be a Generator, not {type(generator).__name__}")
    if state.draws is not None:
        return state.draws.next(generator)
    return fresh_draw(generator)


def fresh_draw(generator: Generator) -> tuple[Tensor, Tensor]:
    """next_draw, of the generator itself."""
    if state.recorder is not None:
        return state.recorder.draw(generator)
    return draw_tensors(generator._seed, generator.advance())


class DrawLog:
    """`with log.on():` notes the draws of a block; log.on(again=True) gives them once more.

    So recomputation draws what the first run drew, eager and compiled: a draw is a number.
    """

    def __init__(self) -> None:
        self._drawn: list[tuple[Tensor, Tensor]] = []
        self._at: int | None = None

    @contextmanager
    def on(self, again: bool = False) -> Iterator[None]:
        """Notes the draws of the block; again: gives those noted before, in their order."""
        before, at = state.draws, self._at
        state.draws, self._at = self, 0 if again else None
        try:
            yield
        finally:
            state.draws, self._at = before, at

    def next(self, generator: Generator) -> tuple[Tensor, Tensor]:
        if self._at is not None and self._at < len(self._drawn):
            self._at += 1
            return self._drawn[self._at - 1]
        drawn = fresh_draw(generator)
        if self._at is None:
            self._drawn.append(drawn)
        return drawn


def draw_tensors(seed: int, draw: int) -> tuple[Tensor, Tensor]:
    """A seed (its 64 bits) and a draw number as 0-d int64 tensors."""
    signed = seed - 2**64 if seed >= 2**63 else seed
    type_ = static_type((), dtypes.int64)
    return wrap(np.array(signed, np.int64), type_), wrap(np.array(draw, np.int64), type_)


def manual_seed(seed: int) -> Generator:
    """Seeds the default generator; returns it."""
    return default_generator.manual_seed(seed)


def initial_seed() -> int:
    """The default generator's seed."""
    return default_generator.initial_seed()


def seed() -> int:
    """Seeds the default generator from the operating system; returns the seed."""
    return default_generator.seed()


def get_rng_state() -> Tensor:
    """The default generator's state, a uint8 tensor."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Sets the default generator's state."""
    default_generator.set_state(new_state)


class fork_rng:
    """`with fork_rng():` leaves the default generator as it was before the block."""

    def __init__(self, devices: Any = None, enabled: bool = True) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        self._saved = default_generator.get_state()

    def __exit__(self, *exc: object) -> None:
        if self._enabled:
            default_generator.set_state(self._saved)
