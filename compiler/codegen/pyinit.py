"""What `import libnet` runs: Python takes libnet.so for an extension module, before a libnet.py.

Owns the function PyInit_<module> of a shared library, which has Python run the module beside it
(python_loader.py). It names symbols of Python, all of them weak: a program without Python loads the
library as ever. The one layout that it relies on, that of a PyModuleDef, begins with a PyObject of
16 bytes; where that is not so (a build without the GIL), the import says what to do instead.
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler.codegen.features import baseline
from jitgrad.compiler.codegen.interface import Interface, Model, reference
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.words import I32, I64, PTR, VOID, const, define

SYMBOLS = frozenset({
    "PyDict_New", "PyDict_SetItemString", "PyDict_GetItemString", "PyEval_GetBuiltins",
    "PyRun_String", "PyModuleDef_Init", "Py_IncRef", "Py_DecRef",
})  # fmt: skip

_FILE_INPUT = 257  # Py_file_input: statements
_MOD_CREATE = 1  # Py_mod_create
_DEF_WORDS, _NAME, _SLOTS = 13, 5, 9  # of a PyModuleDef

_CHECK = """\
if object.__basicsize__ != 16:
    raise ImportError("this build of Python cannot import a compiled model by its name; load the "
                      "module beside it by its path (importlib.util.spec_from_file_location)")
"""
_LOAD = """\
import importlib.util, os.path
path = os.path.splitext(spec.origin)[0] + ".py"
if not os.path.isfile(path):
    raise ImportError(f"{spec.origin} is a compiled model, and its Python module {path} is not "
                      "there: copy or export it again, or use jitgrad.runtime.load")
inner = importlib.util.spec_from_file_location(spec.name, path)
module = importlib.util.module_from_spec(inner)
inner.loader.exec_module(module)
"""


def symbol(module: str) -> str:
    """The function's name, for a module of this name."""
    return f"PyInit_{module}"


def emit_pyinit(model: Model, target: Target, module: str) -> ir.Module:
    """PyObject *PyInit_<module>(void)."""
    return _PyInit(model, target).emit(module)


class _PyInit(Interface):
    def _python(self, name: str, result: ir.Type, params: list[ir.Type]) -> ir.Function:
        known = self.module.globals.get(name)
        if known is None:
            known = self._declare(name, result, params)
            known.linkage = "extern_weak"
        return known

    def emit(self, module: str) -> ir.Module:
        run = self._emit_run()
        create, b = define(self.module, "jg.create_module", PTR, [PTR, PTR])
        baseline(create, self.target)
        b.ret(b.call(run, [create.args[0], reference(self.text(_LOAD))]))

        slot = ir.LiteralStructType([I64, PTR])
        values = [
            ir.Constant(slot, [const(_MOD_CREATE), reference(create)]),
            ir.Constant(slot, [const(0), ir.Constant(PTR, None)]),
        ]
        slots = self._constant(ir.Constant(ir.ArrayType(slot, 2), values), "slots")
        words: list[ir.Value] = [const(0)] * _DEF_WORDS
        words[0], words[_NAME] = const(1), reference(self.text(module))
        words[_SLOTS] = reference(slots)
        kind = ir.LiteralStructType([w.type for w in words])
        definition = ir.GlobalVariable(self.module, kind, "jg.module")
        definition.initializer, definition.linkage = ir.Constant(kind, words), "internal"

        null = ir.Constant(PTR, None)
        function, b = define(self.module, symbol(module), PTR, [], public=True)
        baseline(function, self.target)
        init = self._python("PyModuleDef_Init", PTR, [PTR])
        here = b.icmp_unsigned("!=", b.ptrtoint(reference(init), I64), const(0))
        with b.if_then(b.not_(here)):
            b.ret(null)
        none = self._python("PyEval_GetBuiltins", PTR, [])  # any object: the check reads no spec
        checked = b.call(run, [b.call(none, []), reference(self.text(f"{_CHECK}module = spec"))])
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(checked, I64), const(0))):
            b.ret(null)
        b.call(self._python("Py_DecRef", VOID, [PTR]), [checked])
        b.ret(b.call(init, [reference(definition)]))
        return self.module

    def _emit_run(self) -> ir.Function:
        """PyObject *run(spec, text): runs the text, which sets `module`; null on an error."""
        function, b = define(self.module, "jg.run_python", PTR, [PTR, PTR])
        baseline(function, self.target)
        spec, text = function.args
        null = ir.Constant(PTR, None)
        names = b.call(self._python("PyDict_New", PTR, []), [])
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(names, I64), const(0))):
            b.ret(null)
        put = self._python("PyDict_SetItemString", I32, [PTR, PTR, PTR])
        drop = self._python("Py_DecRef", VOID, [PTR])
        builtins = b.call(self._python("PyEval_GetBuiltins", PTR, []), [])
        b.call(put, [names, reference(self.text("__builtins__")), builtins])
        b.call(put, [names, reference(self.text("spec")), spec])
        run = self._python("PyRun_String", PTR, [PTR, I32, PTR, PTR])
        result = b.call(run, [text, ir.Constant(I32, _FILE_INPUT), names, names])
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(result, I64), const(0))):
            b.call(drop, [names])
            b.ret(null)
        b.call(drop, [result])
        get = self._python("PyDict_GetItemString", PTR, [PTR, PTR])
        found = b.call(get, [names, reference(self.text("module"))])
        b.call(self._python("Py_IncRef", VOID, [PTR]), [found])
        b.call(drop, [names])
        b.ret(found)
        return function
