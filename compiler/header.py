"""The C header of an exported library: declarations, with shapes and dtypes in comments.

Owns the text. The functions it declares are emitted by `codegen/capi.py`.
"""

from __future__ import annotations

import textwrap

from jitgrad.compiler.codegen.capi import Model, Port
from jitgrad.runtime import artifact_format as fmt

_C_TYPES = {
    "bool": "uint8_t", "uint8": "uint8_t", "int8": "int8_t", "int16": "int16_t",
    "int32": "int32_t", "int64": "int64_t", "uint16": "uint16_t", "uint32": "uint32_t",
    "uint64": "uint64_t",
    "float16": "uint16_t", "bfloat16": "uint16_t", "float32": "float", "float64": "double",
}  # fmt: skip
_NOTES = {
    "bool": "0 or 1 in a byte",
    "float16": "the bits of an IEEE half",
    "bfloat16": "the upper 16 bits of a float",
}


def c_header(model: Model, filename: str, built: str) -> str:
    """The header's text. `filename` is how an #include names it; `built` is the file, a shared
    library or an object file, that programs link with."""
    name, upper = model.name, model.name.upper()
    guard = f"JG_{upper}_H"
    codes = ",\n".join(f"    JG_{k.upper()} = {v}" for k, v in fmt.DTYPE_CODES.items())
    inputs, outputs = [p for _, p in model.inputs], [p for _, p in model.outputs]
    with_library = built.endswith(".so")
    link = f"{built} -Wl,-rpath,'$ORIGIN'" if with_library else f"{built} -pthread"
    why = (
        "the program looks for the library in its own folder ($ORIGIN); or put it on the system's "
        "path, or name its folder in LD_LIBRARY_PATH"
        if with_library
        else "the model becomes a part of the program"
    )
    return f"""\
/* {_comment(filename)}: a compiled model. {_comment(model.version)}

   Inputs, in order:
{_table(inputs)}
   Outputs, in order:
{_table(outputs)}
   Arrays are dense and row-major, aligned as their element type is. Outputs must overlap neither
   the inputs nor each other.

{_first_lines(model, built)}{_first_sizes(model)}\
       if (jg_{name}_run(model, inputs, outputs) != JG_OK) puts(jg_{name}_last_error(model));
       jg_{name}_destroy(model);

   To link:  cc main.c {_comment(link)}
{_wrapped(f"So {why}.")}

   There is no global state. Different instances may run at the same time; one instance runs one
   call at a time. Only create and destroy allocate and free memory. */
#ifndef {guard}
#define {guard}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#ifndef JG_COMMON
#define JG_COMMON
/* What run returns. */
enum {{
    JG_OK = {fmt.OK},
    JG_FAULT = {fmt.FAULT},        /* the model found bad values, e.g. an index out of range */
    JG_BAD_ARGUMENT = {fmt.BAD_ARGUMENT}, /* a pointer was NULL or not aligned; nothing ran */
    JG_BUSY = {fmt.BUSY}          /* another thread is running this instance; nothing ran */
}};
/* Element types. */
enum {{
{codes}
}};
#endif

enum {{ JG_{upper}_INPUTS = {len(inputs)}, JG_{upper}_OUTPUTS = {len(outputs)} }};
{_port_enums(upper, model)}
typedef struct jg_{name} jg_{name};

{_creation(model, built)}
/* Ends the threads and frees the memory. NULL is allowed; a call must not be running. */
void jg_{name}_destroy(jg_{name} *model);

/* Reads the {len(inputs)} arrays of `inputs` and writes the {len(outputs)} of `outputs`. Returns
   JG_OK or another status from above; after JG_FAULT the outputs' elements are unspecified. */
int jg_{name}_run(jg_{name} *model, const void *const *inputs, void *const *outputs);

/* Why the last run of this instance returned JG_FAULT or JG_BAD_ARGUMENT; "" after JG_OK. The text
   is constant: it needs no freeing and stays valid. */
const char *jg_{name}_last_error(const jg_{name} *model);

/* "ready", or what keeps the library from running on this processor. */
const char *jg_{name}_status(void);

/* What made the library, and for which target. */
const char *jg_{name}_version(void);

/* What the inputs and outputs are, by number. dtype: one of the element types above; dims: rank
   numbers{", -1 for a size that is set" if model.sizes else ""}.
   A number that is out of range gives NULL or -1. */
int jg_{name}_n_inputs(void);
const char *jg_{name}_input_name(int i);
int jg_{name}_input_dtype(int i);
int jg_{name}_input_rank(int i);
const int64_t *jg_{name}_input_dims(int i);
int jg_{name}_n_outputs(void);
const char *jg_{name}_output_name(int i);
int jg_{name}_output_dtype(int i);
int jg_{name}_output_rank(int i);
const int64_t *jg_{name}_output_dims(int i);
{_sizes(model)}{_states(name, model.own)}{_typed_call(model)}
#ifdef __cplusplus
}}
#endif
#endif /* {guard} */
"""


def _maps(built: str) -> bool:
    """Whether the file has create_from: an object file may be for a system without files."""
    return not built.endswith(".o")


def _first_lines(model: Model, built: str) -> str:
    name = model.name
    if not model.side:
        return (
            f"       jg_{name} *model = jg_{name}_create(1);\n"
            f"       if (!model) {{ puts(jg_{name}_status()); return 1; }}\n"
        )
    made = f'create_from(1, "{_comment(model.weights_file)}", &why)'
    if not _maps(built):
        made = f"create_with(1, weights, JG_{name.upper()}_WEIGHTS_SIZE, &why)"
    return (
        "       const char *why;\n"
        f"       jg_{name} *model = jg_{name}_{made};\n"
        "       if (!model) { puts(why); return 1; }\n"
    )


def _creation(model: Model, built: str) -> str:
    """The functions that make instances."""
    name = model.name
    if not model.side:
        return f"""\
/* A new instance that runs on up to `threads` threads, the caller's among them (less than 1 counts
   as 1). NULL when this processor lacks a feature that the code needs (see jg_{name}_status), or
   when there is no memory. */
jg_{name} *jg_{name}_create(int threads);
"""
    from_file = f"""
/* The same, of the file's path: it is mapped, and given back by destroy. */
jg_{name} *jg_{name}_create_from(int threads, const char *path, const char **why);
"""
    return f"""\
/* A new instance that runs on up to `threads` threads, the caller's among them (less than 1 counts
   as 1). The weights are what this file holds, mapped or read by the caller, aligned to 16 bytes:
       {_comment(model.weights_file)}
   They must stay as they are until destroy; instances may share them. That
   they are this library's, and all of them, is checked; their content is not.
   NULL when they are not, when this processor lacks a feature that the code needs, or when there is
   no memory; *why is then the reason (why may be NULL). */
#define JG_{name.upper()}_WEIGHTS_SIZE INT64_C({fmt.WEIGHTS_HEAD + model.weights_bytes})
jg_{name} *jg_{name}_create_with(
        int threads, const void *weights, int64_t nbytes, const char **why);
{from_file if _maps(built) else ""}"""


def _sizes(model: Model) -> str:
    """The part of a model whose sizes are set before it runs."""
    if not model.sizes:
        return ""
    name = model.name
    names = _size_names(model)
    params = ", ".join(f"int64_t {n}" for n in names)
    values = "\n".join(f"    sizes[{k}] = {n};" for k, n in enumerate(names))
    rules = "".join(f"\n   They must satisfy {_comment(g.expression())}." for g in model.conditions)
    ranges = ", ".join(f"{s.name} {s.low} to {s.high}" for s in model.sizes)
    return f"""
/* Sizes that may differ from run to run: {ranges}.{rules}
   An instance runs with the sizes that were set last; before its first run they must be set.
   Setting them allocates nothing: create made memory for the largest. set_shapes takes the shapes
   of the inputs, in order (those of 0-dimensional ones may be NULL), and set_sizes the sizes
   themselves; both return JG_OK, JG_BUSY, or JG_BAD_ARGUMENT (see jg_{name}_last_error; sizes are
   then as they were). output_shape gives the shape of result i for these sizes; it stays valid
   until they are set anew, and is NULL before. In a run, arrays without elements may be NULL. */
int jg_{name}_n_sizes(void);
const char *jg_{name}_size_name(int i);
int64_t jg_{name}_size_min(int i);
int64_t jg_{name}_size_max(int i);
int jg_{name}_set_sizes(jg_{name} *model, const int64_t *sizes);
int jg_{name}_set_shapes(jg_{name} *model, const int64_t *const *shapes);
const int64_t *jg_{name}_output_shape(const jg_{name} *model, int i);
static inline int jg_{name}_resize(jg_{name} *model, {params}) {{
    int64_t sizes[{len(model.sizes)}];
{values}
    return jg_{name}_set_sizes(model, sizes);
}}
"""


def _size_names(model: Model) -> list[str]:
    """What sizes are called as parameters; no word of C."""
    return [f"n_{s.name}" if s.name.isascii() else f"n{k}" for k, s in enumerate(model.sizes)]


def _first_sizes(model: Model) -> str:
    if not model.sizes:
        return ""
    given = ", ".join(_size_names(model))
    return (
        f"       if (jg_{model.name}_resize(model, {given}) != JG_OK)\n"
        f"           puts(jg_{model.name}_last_error(model));\n"
    )


def _states(name: str, states: list[Port]) -> str:
    """The part of a model whose runs change its state."""
    if not states:
        return ""
    return f"""
/* Each run is a step: it changes the instance's state, {len(states)} arrays that begin as they were
   when the library was made. get_state copies array i to `to`, set_state copies it from `from`, in
   their dtypes and shapes. They return JG_OK, JG_BAD_ARGUMENT (see jg_{name}_last_error) or
   JG_BUSY. */
int jg_{name}_n_states(void);
const char *jg_{name}_state_name(int i);
int jg_{name}_state_dtype(int i);
int jg_{name}_state_rank(int i);
const int64_t *jg_{name}_state_dims(int i);
int jg_{name}_get_state(jg_{name} *model, int i, void *to);
int jg_{name}_set_state(jg_{name} *model, int i, const void *from);
"""


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 97, initial_indent="   ", subsequent_indent="   ")


def _comment(text: str) -> str:
    """Text that cannot end the comment it stands in, nor break its lines."""
    return " ".join(text.replace("*/", "* /").replace("/*", "/ *").split()).replace("??/", "?")


def _table(ports: list[Port]) -> str:
    if not ports:
        return "       none\n"
    lines = []
    for n, p in enumerate(ports):
        shape = "".join(f"[{d}]" for d in p.labels) or " (one element)"
        note = f", {_NOTES[p.dtype]}" if p.dtype in _NOTES else ""
        name = _comment(p.name)
        lines.append(f"       {n}  {name}: {_C_TYPES[p.dtype]}{shape}  ({p.dtype}{note})")
    return "\n".join(lines) + "\n"


def _port_enums(upper: str, model: Model) -> str:
    """How many elements each array has, at most, for declarations of buffers."""
    inputs, outputs = [p for _, p in model.inputs], [p for _, p in model.outputs]
    rows = [f"    JG_{upper}_INPUT{n}_SIZE = {p.numel}" for n, p in enumerate(inputs)]
    rows += [f"    JG_{upper}_OUTPUT{n}_SIZE = {p.numel}" for n, p in enumerate(outputs)]
    if not rows or any(p.numel >= 2**31 for p in (*inputs, *outputs)):
        return ""
    most = ", at most" if model.sizes else ""
    return f"/* Elements of each array{most}. */\nenum {{\n" + ",\n".join(rows) + "\n};\n"


def _typed_call(model: Model) -> str:
    """A typed form of run, for models with few arrays; `step`, for those with state, is alike."""
    name = model.name
    inputs, outputs = [p for _, p in model.inputs], [p for _, p in model.outputs]
    if not 1 <= len(inputs) + len(outputs) <= 12:
        return (
            ""
            if not model.own
            else f"""
/* jg_{name}_run, by the name of what it does. */
static inline int jg_{name}_step(
        jg_{name} *model, const void *const *inputs, void *const *outputs) {{
    return jg_{name}_run(model, inputs, outputs);
}}
"""
        )
    params = [f"const {_C_TYPES[p.dtype]} *input{n}" for n, p in enumerate(inputs)]
    params += [f"{_C_TYPES[p.dtype]} *output{n}" for n, p in enumerate(outputs)]
    n_in, n_out = max(1, len(inputs)), max(1, len(outputs))
    body = [f"    const void *in[{n_in}];", f"    void *out[{n_out}];"]
    body += [f"    in[{n}] = input{n};" for n in range(len(inputs))] or ["    in[0] = 0;"]
    body += [f"    out[{n}] = output{n};" for n in range(len(outputs))] or ["    out[0] = 0;"]
    signature = ",\n        ".join([f"jg_{name} *model", *params])
    passed = ", ".join(["model", *(p.rpartition("*")[2] for p in params)])
    lines = "\n".join(body)
    step = (
        ""
        if not model.own
        else f"""
/* The same, by the name of what it does. */
static inline int jg_{name}_step(
        {signature}) {{
    return jg_{name}_call({passed});
}}
"""
    )
    return f"""
/* jg_{name}_run with the arrays as typed arguments. */
static inline int jg_{name}_call(
        {signature}) {{
{lines}
    return jg_{name}_run(model, in, out);
}}
{step}"""
