"""Parameters computed from other parameters by modules, as torch.nn.utils.parametrize.

A parametrized module gets a class of its own, a subclass of its class with a property for each
parametrized tensor; the property runs the parametrizations whenever the tensor is read.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jitgrad.autograd.modes import no_grad
from jitgrad.nn.containers import ModuleDict, ModuleList
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.state import state
from jitgrad.tensor import Tensor


# -- cached ----------------------------------------------------------------------------------------
class _Cache(threading.local):
    """What was computed inside `cached`, by module and name; None outside. `recorder` is who
    listened when it began: values of a recorded call are of use in that call only."""

    values: dict[tuple[int, str], Tensor] | None = None
    recorder: Any = None


_cache = _Cache()


@contextmanager
def cached() -> Iterator[None]:
    """Inside, each parametrized tensor is computed once and kept until the block ends.

    A function under @jit keeps values of blocks inside it; a block around its call keeps nothing
    for it.
    """
    before = _cache.values, _cache.recorder
    if _cache.values is None or _cache.recorder is not state.recorder:
        _cache.values, _cache.recorder = {}, state.recorder
    try:
        yield
    finally:
        _cache.values, _cache.recorder = before


# -- the list of a tensor's parametrizations -------------------------------------------------------
class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, first to last, and what they start from: `original`, or
    `original0`, `original1`, ... where the first one's right_inverse gives several tensors."""

    original: Tensor

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ValueError("[ParametrizationList] expected one or more modules; got none")
        super().__init__(modules)
        self.unsafe = unsafe
        dtype, shape = original.dtype, tuple(original.shape)
        with no_grad():
            new: Any = original
            for module in reversed(list(self)):
                new = _inverted(module, new)
        self.is_tensor = isinstance(new, Tensor)
        if not self.is_tensor and not isinstance(new, Sequence):
            raise ValueError(
                "[ParametrizationList] expected right_inverse to give a tensor or a sequence of "
                f"them; got {type(new).__name__}"
            )
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor:
            if new.dtype is not dtype:
                raise ValueError(
                    "[ParametrizationList] expected right_inverse to keep the dtype "
                    f"{dtype}; got {new.dtype}"
                )
            _set(original, new)
            _register(self, "original", original)
        else:
            for i, tensor in enumerate(new):
                _expect_tensor(tensor, f"element {i} of what right_inverse gives")
                if isinstance(original, Parameter):
                    tensor = Parameter(tensor, original.requires_grad)
                tensor.requires_grad_(original.requires_grad)
                _register(self, f"original{i}", tensor)
        if not unsafe:
            made = self()
            _expect_tensor(made, "the parametrized value")
            _expect_same("a parametrization", made, dtype, shape)

    def right_inverse(self, value: Tensor) -> None:
        """Sets the originals so that the parametrized tensor becomes value."""
        with no_grad():
            new: Any = value
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"[parametrize] {type(module).__name__} has no right_inverse; define it to "
                        "assign to the parametrized tensor"
                    )
                new = module.right_inverse(new)
            originals = self._originals()
            parts = [new] if self.is_tensor else new
            if not self.is_tensor and not isinstance(parts, Sequence):
                raise ValueError(
                    "[parametrize] expected right_inverse to give a sequence of tensors; got "
                    f"{type(new).__name__}"
                )
            if len(parts) != len(originals):
                raise ValueError(
                    f"[parametrize] expected right_inverse to give {len(originals)} tensors; got "
                    f"{len(parts)}"
                )
            for original, part in zip(originals, parts, strict=True):
                _expect_tensor(part, "what right_inverse gives")
                if part.dtype is not original.dtype:
                    raise ValueError(
                        f"[parametrize] expected right_inverse to keep {original.dtype}; got "
                        f"{part.dtype}"
                    )
                _set(original, part)

    def _originals(self) -> list[Tensor]:
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def forward(self) -> Tensor:
        first, *rest = self
        x: Tensor = first(*self._originals())
        for module in rest:
            x = module(x)
        return x


def _inverted(module: Module, value: Any) -> Any:
    """value by the module's right_inverse, if it has one that is implemented."""
    if not hasattr(module, "right_inverse"):
        return value
    try:
        return module.right_inverse(value)
    except NotImplementedError:
        return value


def _set(target: Tensor, source: Tensor) -> None:
    """target shows source's memory; a parameter stays the same object."""
    if target is not source:
        target.data = source.detach()


def _register(module: Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _expect_tensor(x: Any, what: str) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(f"[parametrize] expected {what} to be a Tensor; got {type(x).__name__}")


def _expect_same(what: str, x: Tensor, dtype: Any, shape: tuple[int, ...]) -> None:
    if x.dtype is not dtype or tuple(x.shape) != shape:
        raise ValueError(
            f"[parametrize] expected {what} to keep {dtype} {shape}; got {x.dtype} "
            f"{tuple(x.shape)}; pass unsafe=True to allow it"
        )


# -- the class of a parametrized module ------------------------------------------------------------
def _property(name: str) -> property:
    def read(self: Module) -> Tensor:
        computed = self.parametrizations[name]
        values = _cache.values
        if values is None or _cache.recorder is not state.recorder:
            return computed()
        key = (id(self), name)
        if key not in values:
            values[key] = computed()
        return values[key]

    def write(self: Module, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(read, write)


def _no_pickling(self: Module) -> Any:
    raise RuntimeError(
        "[parametrize] a parametrized module cannot be pickled; save its state_dict()"
    )


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """A copy with a class of its own, so that what is removed there stays here."""
    replica: Any = object.__new__(_class_of(type(self).__bases__[0], self.parametrizations))
    memo[id(self)] = replica
    replica.__dict__.update(copy.deepcopy(self.__dict__, memo))
    return replica


def _class_of(cls: type, names: Any) -> type:
    """A subclass of cls with a property for each name."""
    fields: dict[str, Any] = {"__getstate__": _no_pickling}
    if not hasattr(cls, "__deepcopy__"):
        fields["__deepcopy__"] = _deepcopy
    fields.update({name: _property(name) for name in names})
    return type(f"Parametrized{cls.__name__}", (cls,), fields)


# -- the public functions --------------------------------------------------------------------------
def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Makes module's parameter or buffer the result of parametrization(original).

    Several parametrizations of one tensor follow each other. `right_inverse(x)`, if the
    parametrization has it, gives the original (or a sequence of originals) of the value there was,
    and of values assigned later. unsafe allows the dtype or the shape to change. Returns module.

    Raises ValueError where there is no such tensor, and for a changed dtype or shape.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        if not unsafe:
            _check_added(getattr(module, tensor_name), parametrization)
        chain = module.parametrizations[tensor_name]
        chain.append(parametrization)
        chain.unsafe |= unsafe
    elif tensor_name in module._buffers or tensor_name in module._parameters:
        original = getattr(module, tensor_name)
        chain = ParametrizationList([parametrization], original, unsafe=unsafe)
        delattr(module, tensor_name)
        if not is_parametrized(module):
            module.__class__ = _class_of(type(module), ())
            module.parametrizations = ModuleDict()
        setattr(type(module), tensor_name, _property(tensor_name))
        module.parametrizations[tensor_name] = chain
    else:
        raise ValueError(
            f"[register_parametrization] expected a parameter or buffer of {type(module).__name__}"
            f"; it has no {tensor_name!r}"
        )
    return module


def named_tensor(function: str, module: Module, name: str) -> Tensor:
    """The tensor that is to be parametrized. Raises ValueError where there is none."""
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(
            f"[{function}] expected a parameter or buffer of {type(module).__name__}; it has no "
            f"{name!r}"
        )
    return weight


def _check_added(before: Tensor, parametrization: Module) -> None:
    """Raises ValueError where a further parametrization changes dtype or shape, either way."""
    dtype, shape = before.dtype, tuple(before.shape)
    after = parametrization(before)
    _expect_tensor(after, "the parametrized value")
    _expect_same("a parametrization", after, dtype, shape)
    if hasattr(parametrization, "right_inverse"):
        back = _inverted(parametrization, after)
        _expect_tensor(back, "what right_inverse gives")
        _expect_same("right_inverse", back, dtype, shape)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether the tensor of that name is parametrized; without a name, whether any is."""
    found = getattr(module, "parametrizations", None)
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Makes the tensor a plain parameter or buffer again, with the value it has, or with
    leave_parametrized=False its original. Returns module.

    Raises ValueError where it is not parametrized, and for an original of several tensors.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(
            f"[remove_parametrizations] expected a parametrized tensor of {type(module).__name__}; "
            f"{tensor_name!r} is not"
        )
    chain = module.parametrizations[tensor_name]
    if chain.is_tensor:
        original = chain.original
        if leave_parametrized:
            with no_grad():
                _set(original, getattr(module, tensor_name))
    elif leave_parametrized:
        value = getattr(module, tensor_name)
        original = Parameter(value) if value.requires_grad else value
    else:
        raise ValueError(
            "[remove_parametrizations] expected leave_parametrized=True for a tensor that is "
            f"computed from {chain.ntensors} originals"
        )
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, original)
    if not is_parametrized(module):
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module: Module) -> type:
    """The module's class without parametrizations."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Gives to_module the parametrizations of from_module and their originals (of one name, or of
    all). Returns to_module."""
    if not is_parametrized(from_module):
        return to_module
    for name in from_module.parametrizations if tensor_name is None else [tensor_name]:
        chain = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name)))
        for parametrization in chain:
            register_parametrization(to_module, name, parametrization)
        mine = to_module.parametrizations[name]
        for key in chain._parameters:
            setattr(mine, key, getattr(chain, key))
    return to_module
