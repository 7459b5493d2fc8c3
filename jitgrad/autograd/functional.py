"""torch.autograd.functional: jacobian, hessian, vjp, jvp, vhp, hvp of functions of tensors.

Inputs and vectors are tensors or tuples of them, and results have their form. With create_graph the
results are on the tape of inputs that require grad; else they are off it. `func` has the same as
transforms, which nest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.autograd import engine
from jitgrad.autograd.modes import enable_grad
from jitgrad.creation import eye, zeros_like
from jitgrad.func.forward import jacfwd
from jitgrad.functions.shape import stack
from jitgrad.tensor import Tensor

Tensors = tuple[Tensor, ...]
Function = Callable[..., Any]


def _as_tuple(x: Any, what: str, api: str) -> tuple[bool, Tensors]:
    """Whether x is a tuple, and x as one. Raises TypeError for what is no tensor."""
    many = x if isinstance(x, tuple) else (x,)
    for i, element in enumerate(many):
        if not isinstance(element, Tensor):
            where = f"value at index {i}" if isinstance(x, tuple) else f"given {what}"
            raise TypeError(
                f"The {what} given to {api} must be either a Tensor or a tuple of Tensors but the "
                f"{where} has type {type(element)}."
            )
    return isinstance(x, tuple), many


def _own(xs: Tensors, create_graph: bool, need_graph: bool = True) -> Tensors:
    """New tensors for the function: what it captures is told from what it is given."""
    return tuple(
        x.view_as(x) if create_graph and x.requires_grad else x.detach().requires_grad_(need_graph)
        for x in xs
    )


def _done(xs: Sequence[Tensor], create_graph: bool, is_tuple: bool) -> Any:
    out = tuple(xs) if create_graph else tuple(x.detach() for x in xs)
    return out if is_tuple else out[0]


def _check_v(v: Tensors, like: Tensors, is_tuple: bool) -> None:
    if len(v) != len(like):
        if is_tuple:
            raise RuntimeError(
                f"v is a tuple of invalid length: should be {len(like)} but got {len(v)}."
            )
        raise RuntimeError("The given v should contain a single Tensor.")
    for i, (a, b) in enumerate(zip(v, like, strict=True)):
        if a.shape != b.shape:
            where = f"Entry {i} in " if is_tuple else ""
            raise RuntimeError(f"{where}v has invalid size: should be {b.shape} but got {a.shape}.")


def _vector(
    v: Any, like: Tensors, is_tuple: bool, create_graph: bool, api: str, what: str
) -> Tensors:
    """v as a tuple; ones where v may be None: one tensor of one element."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(
                f"The vector v can only be None if the {what} a single Tensor with a single "
                "element."
            )
        return (zeros_like(like[0]) + 1,)
    own = _own(_as_tuple(v, "v", api)[1], create_graph, False)
    _check_v(own, like, is_tuple)
    return own


def _grad(
    outputs: Sequence[Tensor | None], inputs: Tensors, v: Sequence[Tensor | None] | None = None,
    create_graph: bool = False, retain_graph: bool | None = None, batched: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """autograd.grad of the outputs that can be differentiated; None for independent inputs."""
    pairs = [
        (y, None if v is None else v[i])
        for i, y in enumerate(outputs)
        if y is not None and y.requires_grad
    ]
    if not pairs:
        return (None,) * len(inputs)
    return engine.grad(
        [y for y, _ in pairs], inputs, [g for _, g in pairs], retain_graph, create_graph,
        allow_unused=True, is_grads_batched=batched,
    )  # fmt: skip


def _must_require(xs: Sequence[Tensor | None], what: str, strict: bool) -> None:
    """In strict mode, the error where a stage's results do not depend on the input."""
    if not strict:
        return
    for i, x in enumerate(xs):
        if x is None:
            raise RuntimeError(
                f"The output of the user-provided function is independent of input {i}. This is "
                "not allowed in strict mode."
            )
        if not x.requires_grad:
            reason = {
                "outputs": f"Output {i} of the user-provided function does not require gradients. "
                "The outputs must be computed in a differentiable manner from the input when "
                "running in strict mode.",
                "grads": f"The gradient with respect to input {i} is independent of the inputs of "
                "the user-provided function. This is not allowed in strict mode.",
                "jacobian": "While computing the hessian, found that the jacobian of the "
                f"user-provided function with respect to input {i} is independent of the input. "
                "This is not allowed in strict mode. You should ensure that your function is "
                "twice differentiable and that the jacobian depends on the inputs (this would be "
                "violated by a linear function for example).",
            }
            raise RuntimeError(reason[what])


def _filled(
    grads: Sequence[Tensor | None], like: Tensors, strict: bool, create_graph: bool, what: str
) -> Tensors:
    """Zeros for None; in strict mode the error."""
    out = []
    for i, (g, x) in enumerate(zip(grads, like, strict=True)):
        if g is None:
            if strict:
                raise RuntimeError(
                    f"The {what} of the user-provided function is independent of input {i}. This "
                    "is not allowed in strict mode."
                )
            g = zeros_like(x)
        elif strict and create_graph and not g.requires_grad:
            raise RuntimeError(
                f"The derivative of the {what} of the user-provided function is independent of "
                f"input {i}. This is not allowed in strict mode when create_graph=True."
            )
        out.append(g)
    return tuple(out)


def _call(func: Function, xs: Tensors, api: str) -> tuple[bool, Tensors]:
    return _as_tuple(func(*xs), "outputs of the user-provided function", api)


def vjp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), v times the Jacobian): v has the form of the outputs.

    v may be None for one output of one element. strict: independent inputs raise instead of giving
    zeros. Raises RuntimeError for a v that does not fit, TypeError for what is no tensor.
    """
    with enable_grad():
        many_in, given = _as_tuple(inputs, "inputs", "vjp")
        xs = _own(given, create_graph)
        many_out, ys = _call(func, xs, "vjp")
        _must_require(ys, "outputs", strict)
        seeds = _vector(v, ys, many_out, create_graph, "vjp", "user-provided function returns")
        grads = _grad(ys, xs, seeds, create_graph)
        found = _filled(grads, xs, strict, create_graph, "output")
    return _done(ys, create_graph, many_out), _done(found, create_graph, many_in)


def jvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), the Jacobian times v): v has the form of the inputs.

    By two backward passes; func.jvp does it in one forward pass. Arguments and errors as vjp's.
    """
    with enable_grad():
        many_in, given = _as_tuple(inputs, "inputs", "jvp")
        xs = _own(given, create_graph)
        what = "input to the user-provided function is"
        v = _vector(v, xs, many_in, create_graph, "jvp", what)
        many_out, ys = _call(func, xs, "jvp")
        _must_require(ys, "outputs", strict)
        seeds = tuple(zeros_like(y).requires_grad_() for y in ys)
        back = _filled(_grad(ys, xs, seeds, True), xs, strict, False, "output")
        _must_require(back, "grads", strict)
        grads = _grad(back, seeds, v, create_graph)
        found = _filled(grads, ys, strict, create_graph, "gradient")
    return _done(ys, create_graph, many_out), _done(found, create_graph, many_out)


def _scalar(func: Function, xs: Tensors, api: str) -> tuple[bool, Tensors]:
    many, ys = _call(func, xs, api)
    if many or len(ys) != 1:
        raise RuntimeError(f"The function given to {api} should return a single Tensor")
    if ys[0].numel() != 1:
        raise RuntimeError(
            f"The Tensor returned by the function given to {api} should contain a single element"
        )
    return many, ys


def vhp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), v times the Hessian) of a function that returns one element."""
    with enable_grad():
        many_in, given = _as_tuple(inputs, "inputs", "vhp")
        xs = _own(given, create_graph)
        what = "input to the user-provided function is"
        v = _vector(v, xs, many_in, create_graph, "vhp", what)
        _, ys = _scalar(func, xs, "vhp")
        _must_require(ys, "outputs", strict)
        jacobian = _grad(ys, xs, None, True)
        _must_require(jacobian, "jacobian", strict)
        grads = _grad(jacobian, xs, v, create_graph)
        found = _filled(grads, xs, strict, create_graph, "jacobian")
    return _done(ys, create_graph, False), _done(found, create_graph, many_in)


def hvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), the Hessian times v): as vhp, by three backward passes, since the Hessian's
    symmetry is not assumed."""
    with enable_grad():
        many_in, given = _as_tuple(inputs, "inputs", "hvp")
        xs = _own(given, create_graph)
        what = "input to the user-provided function is"
        v = _vector(v, xs, many_in, create_graph, "hvp", what)
        _, ys = _scalar(func, xs, "hvp")
        _must_require(ys, "outputs", strict)
        jacobian = _grad(ys, xs, None, True)
        _must_require(jacobian, "jacobian", strict)
        seeds = tuple(zeros_like(x).requires_grad_() for x in xs)
        double = _filled(_grad(jacobian, xs, seeds, True), xs, strict, False, "jacobian")
        _must_require(double, "grads", strict)
        grads = _grad(double, seeds, v, create_graph)
        found = _filled(grads, xs, strict, create_graph, "hessian")
    return _done(ys, create_graph, False), _done(found, create_graph, many_in)


def jacobian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian of func: (*O, *I) for an output of shape (*O) and an input of shape (*I).

    A tuple of outputs gives a tuple, a tuple of inputs a tuple in each of its places. vectorize:
    all rows at once, by vmap (columns, for strategy "forward-mode").

    Raises RuntimeError and NotImplementedError for combinations of options that PyTorch, too, does
    not have, and in strict mode for independent inputs.
    """
    if strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError(
            'Expected strategy to be either "forward-mode" or "reverse-mode". Hint: If your '
            'function has more outputs than inputs, "forward-mode" tends to be more performant. '
            'Otherwise, prefer to use "reverse-mode".'
        )
    if strategy == "forward-mode":
        return _jacobian_forward(func, inputs, create_graph, strict, vectorize)
    if strict and vectorize:
        raise RuntimeError(
            "torch.autograd.functional.jacobian: `strict=True` and `vectorized=True` are not "
            "supported together. Please either set `strict=False` or `vectorize=False`."
        )
    with enable_grad():
        many_in, given = _as_tuple(inputs, "inputs", "jacobian")
        xs = _own(given, create_graph)
        many_out, ys = _call(func, xs, "jacobian")
        _must_require(ys, "outputs", strict)
        result = []
        for i, y in enumerate(ys):
            rows = (
                _all_rows(y, xs, create_graph)
                if vectorize
                else _row_by_row(y, xs, create_graph, strict, i)
            )
            shaped = [r.reshape(*y.shape, *x.shape) for r, x in zip(rows, xs, strict=True)]
            result.append(_done(shaped, create_graph, many_in))
    return tuple(result) if many_out else result[0]


def _all_rows(y: Tensor, xs: Tensors, create_graph: bool) -> Sequence[Tensor]:
    n = y.numel()
    basis = eye(n, dtype=y.dtype, device=y._type.device).reshape(n, *y.shape)
    found = _grad((y,), xs, (basis,), create_graph, True, True)
    zeros = [zeros_like(x).expand(n, *x.shape) for x in xs]
    return [z if g is None else g for g, z in zip(found, zeros, strict=True)]


def _row_by_row(
    y: Tensor, xs: Tensors, create_graph: bool, strict: bool, number: int
) -> Sequence[Tensor]:
    rows: list[list[Tensor]] = [[] for _ in xs]
    for element in y.reshape(-1).unbind(0):
        for k, (g, x) in enumerate(
            zip(_grad((element,), xs, None, create_graph, True), xs, strict=True)
        ):
            if strict and (g is None or (create_graph and not g.requires_grad)):
                raise RuntimeError(
                    f"Output {number} of the user-provided function is independent of input {k}. "
                    "This is not allowed in strict mode."
                    if g is None
                    else "The jacobian of the user-provided function is independent of input "
                    f"{k}. This is not allowed in strict mode when create_graph=True."
                )
            rows[k].append(zeros_like(x) if g is None else g)
    return [
        stack(r) if r else zeros_like(x).expand(0, *x.shape) for r, x in zip(rows, xs, strict=True)
    ]


def _jacobian_forward(
    func: Function, inputs: Any, create_graph: bool, strict: bool, vectorize: bool
) -> Any:
    if create_graph:
        raise NotImplementedError(
            "torch.autograd.functional.jacobian: `create_graph=True` and "
            '`strategy="forward-mode"` are not supported together (yet). Please either set '
            '`create_graph=False` or `strategy="reverse-mode"`.'
        )
    if strict:
        raise RuntimeError(
            'torch.autograd.functional.jacobian: `strict=True` and `strategy="forward-mode"` are '
            "not supported together (yet). Please either set `strict=False` or "
            '`strategy="reverse-mode"`.'
        )
    if not vectorize:
        raise NotImplementedError(
            "Computing Jacobian using forward-AD or forward-over-reverse Hessian is only "
            "implemented for `vectorize=True`."
        )
    many_in, xs = _as_tuple(inputs, "inputs", "jacobian")
    numbers = tuple(range(len(xs)))
    found = jacfwd(func, numbers)(*[x.detach() for x in xs])
    many_out = isinstance(found[0], tuple) and len(xs) > 0 and isinstance(found[0][0], Tensor)
    per_output = found if many_out else (found,)
    result = [_done(row, False, many_in) for row in per_output]
    return tuple(result) if many_out else result[0]


def hessian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a function that returns one element: (*I, *J) for inputs (*I) and (*J).

    A tuple of inputs gives a tuple of tuples. Arguments and errors as jacobian's.
    """
    many_in, xs = _as_tuple(inputs, "inputs", "hessian")
    if outer_jacobian_strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError('Expected strategy to be either "forward-mode" or "reverse-mode".')

    def single(*own: Tensor) -> Tensor:
        return _scalar(func, own, "hessian")[1][0].squeeze()

    def gradient(*own: Tensor) -> Tensors:
        if outer_jacobian_strategy == "forward-mode":
            own = tuple(x.requires_grad_() for x in own)  # they carry tangents: not detached
        found = jacobian(single, own, create_graph=True)
        _must_require(found, "jacobian", strict)
        return found

    result = jacobian(
        gradient, xs, create_graph=create_graph, strict=strict, vectorize=vectorize,
        strategy=outer_jacobian_strategy,
    )  # fmt: skip
    return result if many_in else result[0][0]


__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
