"""The state of Modules as dicts: state_dict and load_state_dict, with their extension points.

Owns `Stateful`, the part of Module that does so. A subclass may override `_save_to_state_dict`,
`_load_from_state_dict`, `get_extra_state` and `set_extra_state`, as in PyTorch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jitgrad.autograd.modes import no_grad
from jitgrad.nn.hooks import Hooked
from jitgrad.nn.parameter import Parameter, is_lazy
from jitgrad.runtime.userline import warn
from jitgrad.state import bump_epoch
from jitgrad.tensor import Tensor

EXTRA_STATE = "_extra_state"
"""The key, after a module's prefix, of what its get_extra_state gives."""

_COMMIT = "_commit"
"""The key, in the metadata that load_state_dict passes down, of the list of writes to do once all
shapes have been found to fit. Without it (a direct call) writes are done at once."""


class _IncompatibleKeys(NamedTuple):
    """What load_state_dict could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, " + (
            f"unexpected_keys={self.unexpected_keys})"
        )


class StateDict(OrderedDict[str, Any]):
    """An OrderedDict with `_metadata`: {module's path: {"version": ...}}."""

    _metadata: OrderedDict[str, dict[str, Any]]


class Stateful(Hooked):
    """The state of a Module."""

    _version: int = 1
    """Of the layout of the class's own state; saved in a state dict's `_metadata`."""

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Any]
    _non_persistent_buffers_set: set[str]

    # -- out -----------------------------------------------------------------------------------
    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """{path: tensor} of parameters and persistent buffers, sharing their storage.

        The tensors are detached unless keep_vars. destination is filled and returned, if given.
        Its `_metadata` has the version of each module's class.
        """
        if args:
            warn(
                "Positional args are being deprecated, use kwargs instead.", FutureWarning
            )  # fmt: skip
            given: list[Any] = [destination, prefix, keep_vars]
            given[: len(args)] = args
            destination, prefix, keep_vars = given
        if destination is None:
            destination = StateDict()
            destination._metadata = OrderedDict()
        local = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = local
        for hook in list(self._state_dict_pre_hooks.values()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(
                    destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
                )
        for hook in list(self._state_dict_hooks.values()):
            changed = hook(self, destination, prefix, local)
            destination = destination if changed is None else changed
        out: dict[str, Any] = destination
        return out

    def _own_state(self) -> dict[str, Any]:
        """The module's own parameters and persistent buffers that are not None."""
        lost = self._non_persistent_buffers_set
        kept = {n: b for n, b in self._buffers.items() if n not in lost}
        return {n: x for n, x in (*self._parameters.items(), *kept.items()) if x is not None}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Puts the module's own state into destination."""
        for name, x in self._own_state().items():
            destination[prefix + name] = x if keep_vars else x.detach()
        if _overrides(self, "get_extra_state"):
            destination[prefix + EXTRA_STATE] = self.get_extra_state()

    def get_extra_state(self) -> Any:
        """What state_dict shall hold besides tensors; override it together with set_extra_state."""
        raise RuntimeError(
            "Reached a code path in Module.get_extra_state() that should never be called."
        )

    def set_extra_state(self, state: Any) -> None:
        """Takes what get_extra_state gave."""
        raise RuntimeError(
            "Reached a code path in Module.set_extra_state() that should never be called."
        )

    # -- in ------------------------------------------------------------------------------------
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Copies (or with `assign`, puts) tensors into parameters and buffers by path.

        Raises RuntimeError that lists every missing and unexpected key (with `strict`) and every
        shape mismatch; no tensor has been changed then (unless there are post-hooks, which may
        change what counts as missing: they run after the tensors are copied). Modules that are
        compiled take PyTorch's keys, too, which have `_orig_mod.` before the model's own.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"[load_state_dict] Expected state_dict to be dict-like, got {type(state_dict)}."
            )
        metadata = getattr(state_dict, "_metadata", None) or {}
        own = StateDict(state_dict)
        this: Any = self
        for path, module in this.named_modules(remove_duplicate=False):
            if hasattr(type(module), "_orig_mod"):
                start = f"{path}." if path else ""
                own = StateDict(_unwrapped(own, start))
                metadata = dict(_unwrapped(metadata, start))
        own._metadata = OrderedDict(metadata)
        keys = _IncompatibleKeys([], [])
        errors: list[str] = []
        commit: list[Callable[[], None]] = []
        with_post_hooks: list[Any] = []

        def load(module: Any, state: Any, prefix: str) -> None:
            local = {**metadata.get(prefix[:-1], {}), _COMMIT: commit}
            if assign:
                local["assign_to_params_buffers"] = True
            module._load_from_state_dict(
                state, prefix, local, True, keys.missing_keys, keys.unexpected_keys, errors
            )
            for name, child in module._modules.items():
                if child is not None:
                    path = f"{prefix}{name}."
                    part = StateDict((k, v) for k, v in state.items() if k.startswith(path))
                    load(child, part, path)
            if module._load_state_dict_post_hooks:
                with_post_hooks.append(module)

        load(self, own, "")
        if errors or (strict and any(keys) and not with_post_hooks):
            raise self._loading_error(errors, keys, strict)
        with no_grad():
            for write in commit:
                write()
        bump_epoch()
        for module in with_post_hooks:
            for hook in list(module._load_state_dict_post_hooks.values()):
                if hook(module, keys) is not None:
                    raise AssertionError(
                        "Hooks registered with ``register_load_state_dict_post_hook`` are not "
                        "expected to return new values, if incompatible_keys need to be modified, "
                        "it should be done inplace."
                    )
        if strict and any(keys):
            raise self._loading_error(errors, keys, strict)
        return keys

    def _loading_error(
        self, errors: list[str], keys: _IncompatibleKeys, strict: bool
    ) -> RuntimeError:
        lines = []
        if strict and keys.missing_keys:
            lines.append(f"Missing key(s) in state_dict: {_quoted(keys.missing_keys)}. ")
        if strict and keys.unexpected_keys:
            lines.append(f"Unexpected key(s) in state_dict: {_quoted(keys.unexpected_keys)}. ")
        text = "\n\t".join([*lines, *errors])
        return RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{text}")

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Loads the module's own state, and adds to the three lists what does not fit."""
        for hook in list(self._load_state_dict_pre_hooks.values()):
            hook(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
                error_msgs,
            )  # fmt: skip
        own = self._own_state()
        assign = local_metadata.get("assign_to_params_buffers", False)
        commit = local_metadata.get(_COMMIT)
        for name, target in own.items():
            key = prefix + name
            if key not in state_dict:
                if strict:
                    missing_keys.append(key)
                continue
            source = state_dict[key]
            if is_lazy(target) and is_lazy(source):
                continue
            problem = _misfit(key, source, target)
            if problem:
                error_msgs.append(problem)
                continue
            if not is_lazy(target) and not target.dim() and source.dim() == 1:
                source = source[0]  # as very old checkpoints have it
            write = self._writer(name, target, source, assign)
            if commit is None:
                with no_grad():
                    write()
            else:
                commit.append(write)
        extra = prefix + EXTRA_STATE
        if _overrides(self, "set_extra_state"):
            if extra in state_dict:
                self.set_extra_state(state_dict[extra])
            elif strict:
                missing_keys.append(extra)
        elif strict and extra in state_dict:
            unexpected_keys.append(extra)
        if strict:
            for key in state_dict:
                if key.startswith(prefix) and key != extra:
                    name, dot, _ = key[len(prefix) :].partition(".")
                    if name not in (self._modules if dot else own):
                        unexpected_keys.append(key)

    def _writer(self, name: str, target: Any, source: Any, assign: bool) -> Callable[[], None]:
        def put() -> None:
            value = source
            if isinstance(target, Parameter):
                if isinstance(source, Parameter):
                    source.requires_grad_(target.requires_grad)
                else:
                    value = Parameter(source, requires_grad=target.requires_grad)
            setattr(self, name, value)

        return put if assign else lambda: target.copy_(source)


_WRAPPED = "_orig_mod"
"""What PyTorch's compiled modules call the module that they wrap: a part of its paths."""


def _unwrapped(named: Mapping[str, Any], start: str) -> list[tuple[str, Any]]:
    """The items by the paths that they have where the module at `start` ("a.b.") is wrapped by
    nothing; a path that is there already stays as it is."""
    found = []
    for path, value in named.items():
        whole = f"{path}."
        if whole.startswith(f"{start}{_WRAPPED}."):
            plain = (start + whole.removeprefix(f"{start}{_WRAPPED}."))[:-1]
            path = path if plain in named else plain
        found.append((path, value))
    return found


def _overrides(module: Any, name: str) -> bool:
    return getattr(type(module), name) is not getattr(Stateful, name)


def _misfit(key: str, source: Any, target: Any) -> str:
    """Why source cannot be loaded into target; "" when it can."""
    if not isinstance(source, Tensor):
        return (
            f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like '
            f"object from checkpoint but received {type(source)}"
        )
    if is_lazy(target):
        return ""
    if not target.dim() and tuple(source.shape) == (1,):
        return ""
    if tuple(source.shape) != tuple(target.shape):
        return (
            f"size mismatch for {key}: copying a param with shape {source.shape} from checkpoint, "
            f"the shape in current model is {target.shape}."
        )
    return ""


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{n}"' for n in names)
