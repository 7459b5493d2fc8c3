"""Module: the base class of layers and models. Owns registration, traversal, state and hooks.

Attribute writes bump the epoch that guards of compiled functions watch (`jitgrad.state`).
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from jitgrad.autograd.modes import no_grad
from jitgrad.nn.parameter import Buffer, Parameter
from jitgrad.runtime.dtypes import DType
from jitgrad.state import bump_epoch, state
from jitgrad.tensor import Tensor

T = TypeVar("T", bound="Module")
_hook_ids = itertools.count()


class IncompatibleKeys(NamedTuple):
    """What load_state_dict could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Slots(dict[str, Any]):
    """Parameters, buffers or children by name. Writing to it, too, bumps the epoch."""

    __slots__ = ()

    def __setitem__(self, key: str, value: Any) -> None:
        bump_epoch()
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        bump_epoch()
        super().__delitem__(key)

    def __ior__(self, other: Any) -> Slots:  # type: ignore[override,misc]
        self.update(other)
        return self

    def pop(self, *args: Any) -> Any:
        bump_epoch()
        return super().pop(*args)

    def popitem(self) -> tuple[str, Any]:
        bump_epoch()
        return super().popitem()

    def clear(self) -> None:
        bump_epoch()
        super().clear()

    def update(self, *args: Any, **kwargs: Any) -> None:
        bump_epoch()
        super().update(*args, **kwargs)

    def setdefault(self, key: str, default: Any = None) -> Any:
        bump_epoch()
        return super().setdefault(key, default)


class RemovableHandle:
    """Removes a hook: `handle.remove()`."""

    def __init__(self, hooks: dict[int, Any]) -> None:
        self.hooks, self.id = hooks, next(_hook_ids)

    def remove(self) -> None:
        self.hooks.pop(self.id, None)
        bump_epoch()


class Module:
    """Base class of all layers, as torch.nn.Module.

    Set Parameters, Modules and buffers as attributes in `__init__` (after `super().__init__()`),
    define `forward`. Calling the module runs its hooks and `forward`.
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]

    def __init__(self) -> None:
        put = object.__setattr__
        put(self, "training", True)
        put(self, "_parameters", Slots())
        put(self, "_buffers", Slots())
        put(self, "_non_persistent", set())
        put(self, "_modules", Slots())
        put(self, "_forward_hooks", OrderedDict())
        put(self, "_forward_pre_hooks", OrderedDict())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"[{type(self).__name__}] expected the subclass to define forward(self, ...)"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._forward_hooks and not self._forward_pre_hooks:
            return self.forward(*args, **kwargs)
        for hook, with_kwargs in list(self._forward_pre_hooks.values()):
            changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if changed is not None and with_kwargs:
                args, kwargs = changed
            elif changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = self.forward(*args, **kwargs)
        for hook, with_kwargs in list(self._forward_hooks.values()):
            changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
            if changed is not None:
                result = changed
        return result

    _forward_hooks: dict[int, tuple[Callable[..., Any], bool]]
    _forward_pre_hooks: dict[int, tuple[Callable[..., Any], bool]]
    _non_persistent: set[str]

    # -- attributes ----------------------------------------------------------------------------
    def __setattr__(self, name: str, value: Any) -> None:
        fields = self.__dict__
        if "_parameters" not in fields:
            if isinstance(value, (Parameter, Module, Buffer)):
                raise AttributeError(
                    f"[{type(self).__name__}] cannot assign {name!r} before Module.__init__(); "
                    "call super().__init__() first"
                )
            object.__setattr__(self, name, value)
            return
        bump_epoch()
        if isinstance(value, Parameter):
            self._forget(name, self._parameters)
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._forget(name, self._modules)
            self._modules[name] = value
        elif isinstance(value, Buffer):
            self._forget(name, self._buffers)
            self.register_buffer(name, value, value.persistent)
        elif name in self._parameters:
            if value is not None:
                raise TypeError(
                    f"[{type(self).__name__}] cannot assign {type(value).__name__} as parameter "
                    f"{name!r}; expected a Parameter or None"
                )
            self._parameters[name] = None
        elif name in self._modules:
            if value is not None:
                raise TypeError(
                    f"[{type(self).__name__}] cannot assign {type(value).__name__} as child "
                    f"module {name!r}; expected a Module or None"
                )
            self._modules[name] = None
        elif name in self._buffers:
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"[{type(self).__name__}] cannot assign {type(value).__name__} as buffer "
                    f"{name!r}; expected a Tensor or None"
                )
            self._buffers[name] = value
            if state.recorder is not None:
                state.recorder.rebind(self, name, value)
        else:
            object.__setattr__(self, name, value)
            if state.recorder is not None and isinstance(value, Tensor):
                state.recorder.rebind(self, name, value)

    def _forget(self, name: str, keep: Mapping[str, Any]) -> None:
        """Removes a name, but from `keep`, where it is replaced in its place."""
        for where in (self.__dict__, self._parameters, self._buffers, self._modules):
            if where is not keep:
                where.pop(name, None)
        self._non_persistent.discard(name)

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__
        for where in ("_parameters", "_buffers", "_modules"):
            if where in fields and name in fields[where]:
                return fields[where][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        bump_epoch()
        for where in (self._parameters, self._buffers, self._modules):
            if name in where:
                del where[name]
                self._non_persistent.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]
        return sorted(set(names))

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter (or the name of one that is None)."""
        self._check_name(name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"[register_parameter] expected a Parameter; got {type(param)}")
        bump_epoch()
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that is state but no parameter (running statistics).

        persistent False keeps it out of state_dict.
        """
        self._check_name(name, self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"[register_buffer] expected a Tensor or None; got {type(tensor)}")
        bump_epoch()
        self._buffers[name] = tensor
        (self._non_persistent.discard if persistent else self._non_persistent.add)(name)

    def _check_name(self, name: str, where: Mapping[str, Any]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"[{type(self).__name__}] expected a name; got {type(name).__name__}")
        if "." in name or not name:
            raise KeyError(
                f"[{type(self).__name__}] a name must not be empty or have a dot: {name!r}"
            )
        if hasattr(self, name) and name not in where:
            raise KeyError(f"[{type(self).__name__}] attribute {name!r} already exists")

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a child module."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"[add_module] expected a Module; got {type(module).__name__}")
        self._check_name(name, self._modules)
        bump_epoch()
        self._modules[name] = module

    register_module = add_module

    # -- traversal -----------------------------------------------------------------------------
    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(path, module) for this module and all below it, each once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from child.named_modules(memo, path, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the modules right below, each once."""
        seen: set[Module] = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The modules right below, each once."""
        return (m for _, m in self.named_children())

    def _named(
        self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in modules:
            for name, tensor in getattr(module, kind).items():
                if tensor is None or (remove_duplicate and id(tensor) in seen):
                    continue
                seen.add(id(tensor))
                yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(path, parameter), shared ones once."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, shared ones once; without `recurse` this module's own."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(path, buffer), shared ones once."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers, shared ones once; without `recurse` this module's own."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path. Raises AttributeError where there is none."""
        module: Any = self
        for part in target.split(".") if target else []:
            module = getattr(module, part)
            if not isinstance(module, Module):
                raise AttributeError(f"[get_submodule] {part!r} in {target!r} is not a Module")
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path. Raises AttributeError where there is none."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"[get_parameter] no parameter {target!r}")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path. Raises AttributeError where there is none."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"[get_buffer] no buffer {target!r}")
        return found

    def apply(self: T, fn: Callable[[Module], Any]) -> T:
        """Calls fn on every module, children first."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # -- modes, conversion ---------------------------------------------------------------------
    def train(self: T, mode: bool = True) -> T:
        """Sets training mode (dropout, batch statistics) here and below."""
        if not isinstance(mode, bool):
            raise ValueError(f"[train] expected a bool; got {mode!r}")
        for m in self.modules():
            m.training = mode
        return self

    def eval(self: T) -> T:
        """Leaves training mode: train(False)."""
        return self.train(False)

    def requires_grad_(self: T, requires_grad: bool = True) -> T:
        """Sets whether the parameters require gradients."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters."""
        for p in self.parameters():
            clear_grad(p, set_to_none)

    def _apply(self: T, fn: Callable[[Tensor], Tensor]) -> T:
        """Replaces the data of every parameter, gradient and buffer by fn of it."""
        bump_epoch()
        with no_grad():
            for m in self.modules():
                for p in m._parameters.values():
                    if p is not None:
                        p.data = fn(p.data)
                        if p.grad is not None:
                            p.grad.data = fn(p.grad.data)
                for name, b in m._buffers.items():
                    if b is not None:
                        m._buffers[name] = fn(b)
        return self

    def to(self: T, *args: Any, **kwargs: Any) -> T:
        """Converts parameters and buffers: to(dtype), to(device), to(device, dtype), to(tensor).

        Only floating tensors change dtype. In place; returns the module.
        """
        dtype = kwargs.get("dtype")
        for a in args:
            if isinstance(a, DType):
                dtype = a
            elif isinstance(a, Tensor):
                dtype = a.dtype
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(f"[Module.to] expected a floating dtype; got {dtype}")

        def convert(t: Tensor) -> Tensor:
            converted: Tensor = t.to(*args, **kwargs)
            return converted if t.is_floating_point() or dtype is None else t

        return self._apply(convert)

    def float(self: T) -> T:
        """Floating parameters and buffers become float32, in place."""
        return self._apply(lambda t: t.float() if t.is_floating_point() else t)

    def double(self: T) -> T:
        """Floating parameters and buffers become float64, in place."""
        return self._apply(lambda t: t.double() if t.is_floating_point() else t)

    def half(self: T) -> T:
        """Floating parameters and buffers become float16, in place."""
        return self._apply(lambda t: t.half() if t.is_floating_point() else t)

    def bfloat16(self: T) -> T:
        """Floating parameters and buffers become bfloat16, in place."""
        return self._apply(lambda t: t.bfloat16() if t.is_floating_point() else t)

    def cpu(self: T) -> T:
        """Moves to the CPU, in place."""
        return self._apply(lambda t: t.cpu())

    def type(self: T, dst_type: DType) -> T:
        """Converts all parameters and buffers to a dtype, in place."""
        return self._apply(lambda t: t.to(dst_type))

    # -- state ---------------------------------------------------------------------------------
    def state_dict(
        self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Tensor]:
        """{path: tensor} of parameters and persistent buffers, sharing their storage."""
        out: Any = OrderedDict() if destination is None else destination
        for path, m in self.named_modules(prefix=prefix.rstrip("."), remove_duplicate=False):
            items = [*m._parameters.items(), *(
                (n, b) for n, b in m._buffers.items() if n not in m._non_persistent)]  # fmt: skip
            for name, t in items:
                if t is not None:
                    out[f"{path}.{name}" if path else name] = t if keep_vars else t.detach()
        return out

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copies (or with `assign`, puts) tensors into parameters and buffers by path.

        Raises RuntimeError that lists every missing and unexpected key (with `strict`) and every
        shape mismatch; nothing has been changed then.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"[load_state_dict] Expected state_dict to be dict-like, got {type(state_dict)}."
            )
        own = self.state_dict(keep_vars=True)
        missing = [k for k in own if k not in state_dict]
        unexpected = [k for k in state_dict if k not in own]
        problems = []
        if strict and unexpected:
            problems.append(f"Unexpected key(s) in state_dict: {_quoted(unexpected)}.")
        if strict and missing:
            problems.append(f"Missing key(s) in state_dict: {_quoted(missing)}.")
        for key, target in own.items():
            source = state_dict.get(key)
            if source is not None and tuple(source.shape) != tuple(target.shape):
                problems.append(
                    f"size mismatch for {key}: copying a param with shape {tuple(source.shape)} "
                    f"from checkpoint, the shape in current model is {tuple(target.shape)}."
                )
        if problems:
            raise RuntimeError(
                f"Error(s) in loading state_dict for {type(self).__name__}:\n\t"
                + "\n\t".join(problems)
            )
        with no_grad():
            for key, target in own.items():
                source = state_dict.get(key)
                if source is None:
                    continue
                if not assign:
                    target.copy_(source)
                    continue
                path, _, name = key.rpartition(".")
                module = self.get_submodule(path)
                if name in module._parameters:
                    module._parameters[name] = Parameter(source, target.requires_grad)
                else:
                    module._buffers[name] = source
        bump_epoch()
        return IncompatibleKeys(missing, unexpected)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)

    # -- hooks ---------------------------------------------------------------------------------
    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """hook(module, args, output) -> None or a new output, after each forward."""
        return _add_hook(self._forward_hooks, hook, prepend, with_kwargs)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """hook(module, args) -> None or new args, before each forward."""
        return _add_hook(self._forward_pre_hooks, hook, prepend, with_kwargs)

    # -- representation ------------------------------------------------------------------------
    def extra_repr(self) -> str:
        """What stands in the parentheses of the repr."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        children = [f"({n}): " + repr(m).replace("\n", "\n  ") for n, m in self._modules.items()]
        if not children:
            return f"{type(self).__name__}({extra})"
        lines = ([extra] if extra else []) + children
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


def _add_hook(
    hooks: dict[int, Any], hook: Callable[..., Any], prepend: bool, with_kwargs: bool
) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = (hook, with_kwargs)
    if prepend:
        assert isinstance(hooks, OrderedDict)
        hooks.move_to_end(handle.id, last=False)
    bump_epoch()
    return handle


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{n}"' for n in names)


def clear_grad(p: Tensor, set_to_none: bool) -> None:
    """Sets p.grad to None, or to zeros in place."""
    if set_to_none:
        p.grad = None
    elif p.grad is not None:
        p.grad.detach_()
        p.grad.zero_()
