"""Module: the base class of layers and models. Owns registration, traversal, conversion, its text.

Hooks and calls through them are in hooks.py, state dicts in state_dict.py. Attribute writes bump
the epoch that guards of compiled functions watch (`jitgrad.state`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from jitgrad.autograd.modes import no_grad
from jitgrad.conversions import parse_to
from jitgrad.creation import empty_like
from jitgrad.jit import compile
from jitgrad.nn.global_hooks import EVERYWHERE, registered
from jitgrad.nn.hooks import HOOK_DICTS
from jitgrad.nn.parameter import Buffer, Parameter, is_lazy
from jitgrad.nn.slots import Slots
from jitgrad.nn.state_dict import Stateful
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.userline import LOCATED, add_line
from jitgrad.state import bump_epoch, state
from jitgrad.tensor import Tensor

T = TypeVar("T", bound="Module")


class Module(Stateful):
    """Base class of all layers, as torch.nn.Module.

    Set Parameters, Modules and buffers as attributes in `__init__` (after `super().__init__()`),
    define `forward`. Calling the module runs its hooks and `forward`.
    """

    training: bool
    _modules: dict[str, Module | None]
    _compiled_call_impl: Callable[..., Any] | None = None
    dump_patches: bool = False
    call_super_init: bool = False
    """Whether __init__ calls that of the next class, with its arguments (several base classes)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not self.call_super_init and (args or kwargs):
            given = [*map(type, args), *kwargs]
            raise TypeError(
                f"{type(self).__name__}.__init__() got unexpected arguments {given}; Module takes "
                "none"
            )
        put = object.__setattr__
        put(self, "training", True)
        put(self, "_parameters", Slots())
        put(self, "_buffers", Slots())
        put(self, "_non_persistent_buffers_set", set())
        put(self, "_modules", Slots())
        put(self, "_is_full_backward_hook", None)
        for name in HOOK_DICTS:
            put(self, name, OrderedDict())
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"[{type(self).__name__}] expected the subclass to define forward(self, ...)"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        except LOCATED as error:
            add_line(error)
            raise

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        if (
            self._forward_hooks or self._forward_pre_hooks
            or self._backward_hooks or self._backward_pre_hooks or EVERYWHERE
        ):  # fmt: skip
            return self._call_hooked(self.forward, args, kwargs)
        return self.forward(*args, **kwargs)

    def compile(self, **options: Any) -> None:
        """From here on, calls of this module run compiled: `jitgrad.compile`, with its options."""
        bump_epoch()
        object.__setattr__(self, "_compiled_call_impl", compile(self._call_impl, **options))

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
            self._modules[name] = registered("module", self, name, value) if EVERYWHERE else value
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
            if state.recorder is not None:
                state.recorder.rebind(self, name, value)
            self._buffers[name] = value
        else:
            if state.recorder is not None and isinstance(value, Tensor):
                state.recorder.rebind(self, name, value)
            object.__setattr__(self, name, value)

    def _forget(self, name: str, keep: Mapping[str, Any]) -> None:
        """Removes a name, but from `keep`, where it is replaced in its place."""
        for where in (self.__dict__, self._parameters, self._buffers, self._modules):
            if where is not keep:
                where.pop(name, None)
        self._non_persistent_buffers_set.discard(name)

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
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*super().__dir__(), *self._parameters, *self._buffers, *self._modules}
        return sorted(n for n in names if not n[0].isdigit())

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter (or the name of one that is None)."""
        self._check_name(name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"[register_parameter] expected a Parameter; got {type(param)}")
        bump_epoch()
        if EVERYWHERE and param is not None:
            param = registered("parameter", self, name, param)
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that is state but no parameter (running statistics).

        persistent False keeps it out of state_dict.
        """
        self._check_name(name, self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"[register_buffer] expected a Tensor or None; got {type(tensor)}")
        bump_epoch()
        if EVERYWHERE:
            tensor = registered("buffer", self, name, tensor)
        self._buffers[name] = tensor
        lost = self._non_persistent_buffers_set
        (lost.discard if persistent else lost.add)(name)

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
        if EVERYWHERE:
            module = registered("module", self, name, module)
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

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and all below it, each once (or as often as it is registered)."""
        return (m for _, m in self.named_modules(remove_duplicate=remove_duplicate))

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
            if not hasattr(module, part):
                raise AttributeError(f"{type(module).__name__} has no attribute `{part}`")
            module = getattr(module, part)
            if not isinstance(module, Module):
                raise AttributeError(f"`{part}` is not an nn.Module (in {target!r})")
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Puts a module at a dotted path, whose last name may be new unless `strict`.

        Raises AttributeError where the path does not lead to a module, ValueError for an empty
        path or what is no module.
        """
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict or hasattr(parent, name):
            self.get_submodule(target)
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path. Raises AttributeError where there is none."""
        path, _, name = target.rpartition(".")
        found = getattr(self.get_submodule(path), name)
        if not isinstance(found, Parameter):
            raise AttributeError(f"`{name}` is not an nn.Parameter (in {target!r})")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path. Raises AttributeError where there is none."""
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        getattr(owner, name)
        found = owner._buffers.get(name)
        if found is None:
            raise AttributeError(f"`{name}` is not a buffer (in {target!r})")
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

    def _apply(self: T, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> T:
        """Replaces the data of every parameter, gradient and buffer by fn of it."""
        bump_epoch()
        if recurse:
            for child in self.children():
                child._apply(fn)
        with no_grad():
            for p in self._parameters.values():
                if p is not None and is_lazy(p):
                    p.convert(fn)  # type: ignore[attr-defined]
                elif p is not None:
                    p.data = fn(p.data)
                    if p.grad is not None:
                        p.grad.data = fn(p.grad.data)
            for name, b in self._buffers.items():
                if b is not None and is_lazy(b):
                    b.convert(fn)  # type: ignore[attr-defined]
                elif b is not None:
                    self._buffers[name] = fn(b)
        return self

    def to(self: T, *args: Any, **kwargs: Any) -> T:
        """Converts parameters and buffers: to(dtype), to(device), to(device, dtype), to(tensor).

        Only floating tensors change dtype. In place; returns the module.
        """
        device, dtype, non_blocking, _, memory_format = parse_to(args, kwargs)
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(f"[Module.to] expected a floating dtype; got {dtype}")
        given = {"memory_format": memory_format}

        def convert(t: Tensor) -> Tensor:
            converted: Tensor = t.to(
                device, dtype if t.is_floating_point() else None, non_blocking,
                **(given if memory_format is not None and t.ndim in (4, 5) else {}),
            )  # fmt: skip
            return converted

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

    def cuda(self: T, device: Any = None) -> T:
        """Raises RuntimeError: there are no GPUs yet (docs/limits.md)."""
        return self._apply(lambda t: t.cuda(device))

    def type(self: T, dst_type: DType | str) -> T:
        """Converts all parameters and buffers to a dtype, in place."""
        return self._apply(lambda t: t.type(dst_type))

    def to_empty(self: T, *, device: Any, recurse: bool = True) -> T:
        """Moves to a device without copying: parameters and buffers have any values."""
        return self._apply(lambda t: empty_like(t, device=device), recurse)

    def share_memory(self: T) -> T:
        """share_memory_() of every parameter and buffer."""
        return self._apply(lambda t: t.share_memory_())

    def __getstate__(self) -> dict[str, Any]:
        fields = dict(self.__dict__)
        fields.pop("_compiled_call_impl", None)
        return fields

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)

    # -- representation ------------------------------------------------------------------------
    def extra_repr(self) -> str:
        """What stands in the parentheses of the repr."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        extras = extra.split("\n") if extra else []
        children = [f"({n}): " + repr(m).replace("\n", "\n  ") for n, m in self._modules.items()]
        if not children and len(extras) <= 1:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join(extras + children) + "\n)"


def clear_grad(p: Tensor, set_to_none: bool) -> None:
    """Sets p.grad to None, or to zeros in place."""
    if set_to_none:
        p.grad = None
    elif p.grad is not None:
        p.grad.detach_()
        p.grad.zero_()
