"""Generators and random tensors."""

import pickle
import threading

import numpy as np
import pytest

import jitgrad as t


def test_same_seed_same_numbers():
    t.manual_seed(3)
    a = [t.randn(5), t.rand(5), t.randint(10, (5,)), t.randperm(6)]
    t.manual_seed(3)
    b = [t.randn(5), t.rand(5), t.randint(10, (5,)), t.randperm(6)]
    assert all(x.tolist() == y.tolist() for x, y in zip(a, b, strict=True))
    t.manual_seed(4)
    assert t.randn(5).tolist() != a[0].tolist()
    assert t.randn(5).tolist() != t.randn(5).tolist()


def test_generator_is_separate():
    g = t.Generator()
    assert g.manual_seed(1) is g and g.initial_seed() == 1
    a = t.randn(4, generator=g)
    t.randn(4)
    b = t.randn(4, generator=g)
    g.manual_seed(1)
    assert t.randn(4, generator=g).tolist() == a.tolist()
    assert t.randn(4, generator=g).tolist() == b.tolist()
    assert g.draws == 2


def test_state_and_pickle():
    g = t.Generator().manual_seed(2**64 - 1)
    t.rand(3, generator=g)
    state = g.get_state()
    a = t.rand(3, generator=g)
    g.set_state(state)
    assert t.rand(3, generator=g).tolist() == a.tolist()
    h = pickle.loads(pickle.dumps(g))
    assert t.rand(3, generator=h).tolist() == t.rand(3, generator=g).tolist()
    state = t.get_rng_state()
    b = t.rand(3)
    t.set_rng_state(state)
    assert t.rand(3).tolist() == b.tolist()
    with pytest.raises(RuntimeError, match="16 bytes"):
        g.set_state(t.zeros(3))
    with pytest.raises(ValueError, match="beyond 64 bits"):
        g.manual_seed(2**70)
    assert isinstance(g.seed(), int)


def test_distributions():
    t.manual_seed(0)
    u = t.rand(20000, dtype=t.float64)
    assert u.min().item() >= 0 and u.max().item() < 1
    assert abs(u.mean().item() - 0.5) < 0.01
    n = t.randn(20000)
    assert abs(n.mean().item()) < 0.03 and abs(n.std().item() - 1) < 0.03
    k = t.randint(2, 7, (20000,))
    assert k.dtype is t.int64 and sorted(set(k.tolist())) == [2, 3, 4, 5, 6]
    wide = t.randint(0, 2**40, (1000,))
    assert wide.max().item() > 2**38 and wide.min().item() >= 0
    b = t.bernoulli(t.full((20000,), 0.3))
    assert abs(b.mean().item() - 0.3) < 0.02
    p = t.randperm(50)
    assert sorted(p.tolist()) == list(range(50)) and p.tolist() != list(range(50))
    firsts = t.stack([t.randperm(5) for _ in range(4000)])  # each number in each place alike
    for k in range(5):
        assert all(abs(c - 800) < 130 for c in firsts[:, k].bincount(minlength=5).tolist())
    many = t.randperm((1 << 18) + 3)
    assert many.sort()[0].tolist() == list(range(many.numel()))
    e = t.empty(20000).exponential_(2.0)
    assert e.min().item() >= 0 and abs(e.mean().item() - 0.5) < 0.02
    assert abs(t.empty(20000).normal_(3, 2).mean().item() - 3) < 0.06
    f = t.empty(20000).uniform_(-1, 3)
    assert f.min().item() >= -1 and f.max().item() < 3


def test_multinomial():
    t.manual_seed(0)
    w = t.tensor([0.0, 1.0, 3.0, 0.0])
    drawn = t.multinomial(w, 8000, replacement=True)
    counts = np.bincount(drawn.numpy(), minlength=4) / 8000
    assert counts[0] == counts[3] == 0 and abs(counts[2] - 0.75) < 0.03
    both = t.multinomial(w, 2)
    assert sorted(both.tolist()) == [1, 2]
    assert tuple(t.multinomial(t.ones(3, 5), 2).shape) == (3, 2)
    with pytest.raises(RuntimeError, match="without replacement"):
        t.multinomial(w, 5)


def test_in_place_draws_respect_the_tape():
    x = t.zeros(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable"):
        x.normal_()
    with t.no_grad():
        x.normal_()
    assert x.abs().sum().item() > 0


def test_threads_take_distinct_draws():
    g = t.Generator()
    seen = []

    def work():
        for _ in range(50):
            seen.append(tuple(t.rand(2, generator=g).tolist()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 200 and g.draws == 200


def test_fork_rng():
    t.manual_seed(0)
    with t.random.fork_rng():
        t.rand(3)
    a = t.rand(3)
    t.manual_seed(0)
    assert t.rand(3).tolist() == a.tolist()
