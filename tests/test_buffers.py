"""Addresses, alignment, overlap of arrays, and the counting of bytes."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from jitgrad.runtime import buffers


def interface_address(array):
    return array.__array_interface__["data"][0]


def read_only():
    array = np.arange(5)
    array.flags.writeable = False
    return array


ARRAYS = {
    "contiguous": np.zeros((3, 4)),
    "transposed": np.zeros((3, 4)).T,
    "strided": np.zeros((30, 40))[3::2, 5::7],
    "reversed": np.zeros((3, 4))[::-1, ::-1],
    "broadcast": np.broadcast_to(np.zeros(3), (4, 3)),
    "0-d": np.array(1.5),
    "empty": np.zeros((0, 3)),
    "read-only": read_only(),
    "bytes": np.frombuffer(b"abcdef", np.uint8),
    "unaligned": np.zeros(9, np.uint8)[1:].view(np.float64),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(
    "function", [buffers.address, buffers._address_by_interface], ids=["address", "interface"]
)
def test_address(name, function):
    assert function(ARRAYS[name]) == interface_address(ARRAYS[name])


def test_address_of_a_subclass(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4,))
    assert buffers.address(mapped) == interface_address(mapped)


@pytest.mark.parametrize("nbytes", [0, 1, 127, 128, 129, 10_000, 1 << 20])
def test_empty_is_aligned_and_writable_to_its_end(nbytes):
    arrays = [buffers.empty(nbytes) for _ in range(5)]
    for i, array in enumerate(arrays):
        assert array.shape == (nbytes,) and array.dtype == np.uint8
        assert nbytes == 0 or interface_address(array) % 128 == 0
        array[:] = i
    assert all((array == i).all() for i, array in enumerate(arrays))


@pytest.mark.parametrize("shape", [(), (0, 5), (3, 7), (200, 300), (16384,)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "?", "i2", "c16"])
def test_empty_array(shape, dtype):
    array = buffers.empty_array(shape, dtype)
    assert array.shape == shape and array.dtype == np.dtype(dtype)
    assert array.flags.c_contiguous and array.flags.aligned and array.flags.writeable
    if array.nbytes >= 2**20:
        assert interface_address(array) % 128 == 0
    array[...] = 1
    assert (array == 1).all()


@pytest.mark.parametrize("nbytes, rounded", [(0, 0), (1, 128), (128, 128), (129, 256)])
def test_round_up(nbytes, rounded):
    assert buffers.round_up(nbytes) == rounded


@pytest.mark.parametrize("name", ARRAYS)
def test_byte_bounds_agree_with_numpy(name):
    array = ARRAYS[name]
    low, high = buffers.byte_bounds(array)
    if array.size:
        assert (low, high) == np.lib.array_utils.byte_bounds(array)
    else:
        assert low == high


def test_overlap():
    x = np.zeros(20)
    grid = np.zeros((6, 6))
    cases = [
        (x, x, True, True),
        (x[:10], x[10:], False, False),
        (x[:11], x[10:], True, True),
        (x[::2], x[1::2], True, False),
        (x[::-1], x[:1], True, True),
        (x[5:5], x, False, False),
        (x, np.zeros(20), False, False),
        (grid[:3], grid[3:], False, False),
        (grid[:, :3], grid[:, 3:], True, False),
        (grid[:, :4], grid[:, 3:], True, True),
        (grid[::-1, ::-2], grid[::-1, ::-2].T, True, True),
        (x.view(np.int8)[1:2], x.view(np.int8)[0::2], True, False),
    ]
    for a, b, near, exact in cases:
        assert buffers.may_overlap(a, b) == buffers.may_overlap(b, a) == near
        assert buffers.overlap(a, b) == buffers.overlap(b, a) == exact


def test_overlap_agrees_with_numpy_on_random_views():
    rng = np.random.default_rng(0)
    base = np.zeros((7, 8, 9), np.int16)

    def view():
        key = []
        for dim in base.shape:
            start, step = rng.integers(0, dim), rng.choice([-3, -2, -1, 1, 2, 3])
            key.append(slice(start, None, step))
        return base[tuple(key)].transpose(rng.permutation(3))

    for _ in range(500):
        a, b = view(), view()
        assert buffers.overlap(a, b) == np.shares_memory(a, b)
        assert buffers.may_overlap(a, b) == np.may_share_memory(a, b)


def test_statistics():
    statistics = buffers.MemoryStatistics()
    x, y = np.zeros(10), np.zeros(20)
    statistics.add(x, 100, "arena")
    statistics.add(y, 30, "scratch")
    assert (statistics.current, statistics.peak) == (130, 130)
    del x
    gc.collect()
    assert (statistics.current, statistics.peak) == (30, 130)
    assert statistics.by_purpose == {"arena": 0, "scratch": 30}
    statistics.reset_peak()
    assert statistics.peak == 30


def test_statistics_from_many_threads():
    statistics = buffers.MemoryStatistics()

    def work():
        for _ in range(1000):
            statistics.add(np.zeros(1), 8, "arena")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert statistics.current == 0


def test_memory_of_results_is_reused_only_after_the_last_view_died() -> None:
    buffers.empty_cache()
    shape = (1 << 19,)
    array = buffers.empty_array(shape, np.float32)
    where = buffers.address(array)
    assert where % buffers.ALIGNMENT == 0
    view = array[10:20][::2]
    del array
    other = buffers.empty_array(shape, np.float32)
    assert buffers.address(other) != where
    view[:] = 7.0
    other[:] = 1.0
    assert (view == 7.0).all()
    del view
    again = buffers.empty_array(shape, np.float32)
    assert buffers.address(again) == where
    again[:] = 2.0
    assert (other == 1.0).all()
