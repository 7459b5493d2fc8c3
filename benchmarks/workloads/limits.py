"""What the machine can do: copies of memory, and fused multiply-adds in registers.

Contenders like the others, so that they are measured in the same minutes. Neither uses jitgrad: the
copy is NumPy's, in as many threads as asked; the multiply-adds are LLVM code of 24 accumulators.
"""

from __future__ import annotations

from _harness import Contender

COPY_FLOATS = 20_000_000
"""Floats in the array that is copied: read once and written once, far more than the caches hold."""

MULTIPLY_ADDS = 24 * 16 * 2 * 100_000
"""Floating-point operations of a step of FMA, in each thread."""

COPY = Contender(
    "copy",
    f"""
import numpy as np
from concurrent.futures import ThreadPoolExecutor
a = np.ones({COPY_FLOATS}, np.float32)
b = np.zeros_like(a)
parts = list(zip(np.array_split(b, THREADS), np.array_split(a, THREADS)))
pool = ThreadPoolExecutor(THREADS)
def step():
    if THREADS == 1:
        np.copyto(b, a)
    else:
        list(pool.map(lambda p: np.copyto(*p), parts))
""",
)

FMA = Contender(
    "multiply-adds",
    """
import ctypes
from concurrent.futures import ThreadPoolExecutor
import llvmlite.binding as llvm
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
N = 24
V = "<16 x float>"
start = [f"%a{k} = phi {V} [zeroinitializer, %entry], [%b{k}, %loop]" for k in range(N)]
body = [f"%b{k} = call {V} @llvm.fma.v16f32({V} %a{k}, {V} %w, {V} %v)" for k in range(N)]
total = [f"%t{k + 1} = fadd {V} %t{k}, %b{k}" if k else f"%t1 = fadd {V} %b0, %v"
         for k in range(N)]
text = f'''
declare {V} @llvm.fma.v16f32({V}, {V}, {V})
define void @f(ptr %p, i64 %n) {{
entry:
  %v = load {V}, ptr %p, align 4
  %w = load {V}, ptr %p, align 4
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  {chr(10).join(start)}
  {chr(10).join(body)}
  %j = add i64 %i, 1
  %c = icmp slt i64 %j, %n
  br i1 %c, label %loop, label %done
done:
  {chr(10).join(total)}
  store {V} %t{N}, ptr %p, align 4
  ret void
}}
'''
target = llvm.Target.from_default_triple().create_target_machine(
    cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3)
module = llvm.parse_assembly(text)
engine = llvm.create_mcjit_compiler(module, target)
engine.finalize_object()
f = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("f"))
buffers = [(ctypes.c_float * 16)() for _ in range(THREADS)]
pool = ThreadPoolExecutor(THREADS)
def one(b):
    f(ctypes.addressof(b), 100_000)
def step():
    if THREADS == 1:
        one(buffers[0])
    else:
        list(pool.map(one, buffers))
""",
)
