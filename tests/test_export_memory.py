"""A library allocates when an instance is made, and never after."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jitgrad as jg

MAIN = r"""
#include "m.h"
#include <stdio.h>
#include <stdlib.h>
static long calls;
void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
int __real_posix_memalign(void **, size_t, size_t);
void *__real_aligned_alloc(size_t, size_t);
void *__wrap_malloc(size_t n) { calls++; return __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t k) { calls++; return __real_calloc(n, k); }
void *__wrap_realloc(void *p, size_t n) { calls++; return __real_realloc(p, n); }
int __wrap_posix_memalign(void **p, size_t a, size_t n) {
    calls++;
    return __real_posix_memalign(p, a, n);
}
void *__wrap_aligned_alloc(size_t a, size_t n) { calls++; return __real_aligned_alloc(a, n); }

static float x[JG_M_INPUT0_SIZE], y[JG_M_OUTPUT0_SIZE];
int main(void) {
    jg_m *model = jg_m_create(2);
    if (!model) return 1;
    long made = calls;
    for (int n = 1; n <= 64; n++) {
        if (jg_m_resize(model, n) != JG_OK || jg_m_call(model, x, y) != JG_OK) return 2;
        if (jg_m_resize(model, 65) == JG_OK || jg_m_call(model, NULL, y) == JG_OK) return 3;
    }
    printf("%ld %ld\n", made, calls - made);
    jg_m_destroy(model);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_nothing_is_allocated_after_create(tmp_path: Path) -> None:
    """Of a recurrent net, calls and new sizes, on two threads, and calls that are refused."""
    layer = jg.nn.GRU(8, 16, batch_first=True).eval()

    def f(x: Any) -> Any:
        return (layer(x)[0] @ layer.weight_hh_l0.t()).softmax(-1)

    size = jg.Dim("batch", max=64)
    exported = jg.export(f, jg.randn(4, 50, 8), dynamic_shapes={"x": {0: size}})
    exported.native(tmp_path / "m.o")
    (tmp_path / "main.c").write_text(MAIN)
    names = ("malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc")
    wrapped = [f"-Wl,--wrap={name}" for name in names]
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-pthread", "main.c", "m.o", *wrapped]
    subprocess.run([*command, "-o", "main"], check=True, cwd=tmp_path)
    made, after = subprocess.run(
        ["./main"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert int(made) >= 1 and after == "0"


ADVISED = r"""
#include "m.h"
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
static size_t asked;
int madvise(void *start, size_t n, int advice) {
    if (advice != MADV_HUGEPAGE || ((uintptr_t)start | n) % (1 << 21)) asked = (size_t)-1 / 2;
    asked += n;
    return -1;
}
int main(void) {
    jg_m *model = jg_m_create(1);
    printf("%zu\n", asked);
    jg_m_destroy(model);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="Linux's pages")
@pytest.mark.parametrize("rows", [2048, 16])
def test_much_memory_lies_in_large_pages(rows: int, tmp_path: Path) -> None:
    """Linux is asked for them, of the whole ones in it; of little memory it is not."""
    weights = [jg.randn(256, 256) for _ in range(3)]

    def f(x: Any) -> Any:
        for w in weights:
            x = (x @ w).softmax(1)
        return x

    exported = jg.export(f, jg.randn(rows, 256))
    least = rows * 256 * 4  # bytes of what lies between two products
    exported.native(tmp_path / "m.o")
    (tmp_path / "main.c").write_text(ADVISED)
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-pthread", "main.c", "m.o", "-o", "main"]
    subprocess.run(command, check=True, cwd=tmp_path)
    asked = subprocess.run(
        ["./main"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    ).stdout
    if rows == 16:
        assert int(asked) == 0
    else:
        assert least <= int(asked) < 8 * least and int(asked) % 2**21 == 0


def test_kernels_share_their_scratch() -> None:
    """What the kernels of a chain need beside their results is as much as one of them needs."""
    x, weights = jg.randn(64, 300), [jg.randn(300, 300) for _ in range(6)]

    def chain(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = jg.relu(x @ w)
        return x

    def scratch(count: int) -> int:
        f = jg.jit(chain, fallback="error")
        found, want = f(x, *weights[:count]), chain(x, *weights[:count])
        assert jg.allclose(found, want, rtol=1e-4, atol=1e-3 * float(want.abs().max()))
        return sum(f.specialisations[-1].compiled.image.scratch.values())

    assert scratch(6) == scratch(1) > 0
