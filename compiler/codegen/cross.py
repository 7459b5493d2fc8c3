"""Compiling for another architecture, in a process of its own.

Owns `compile_elsewhere`. LLVM ends the process at code that a back end cannot select (as of some
conversions for targets with few instructions): here it ends a child, and the user gets an error.
The child reads the target and the module's text on stdin and writes the object on stdout.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

from jitgrad.compiler.codegen import objects
from jitgrad.compiler.codegen.target import Target, host
from jitgrad.runtime.errors import CompileError

_TIMEOUT_S = 600


def compile_for(text: str, target: Target, may_call: frozenset[str]) -> bytes:
    """The object of a module's text, in this process for its own architecture, else in a child.

    Raises CompileError as `objects.compile_object`, or when LLVM gave up.
    """
    if target.arch == host().arch:
        return objects.compile_object(text, target, may_call)
    request = json.dumps({"target": asdict(target), "may_call": sorted(may_call)}) + "\n" + text
    code = "from jitgrad.compiler.codegen.cross import child; child()"
    done = subprocess.run(
        [sys.executable, "-c", code], input=request.encode(), capture_output=True,
        timeout=_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace").strip().splitlines()
    reason = next((line for line in reversed(said) if "Error" in line or "LLVM" in line), "")
    raise CompileError(
        f"[native] LLVM cannot compile for {target.triple} ({target.cpu}): "
        f"{reason.partition('CompileError: ')[2] or reason or f'it ended ({done.returncode})'}"
    )


def child() -> None:
    """Serves one request."""
    head, _, text = sys.stdin.buffer.read().decode().partition("\n")
    request = json.loads(head)
    may_call = frozenset(request["may_call"])
    data = objects.compile_object(text, Target(**request["target"]), may_call)
    sys.stdout.buffer.write(data)
