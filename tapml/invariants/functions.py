"""Calls of PyTorch's functions and tensor methods, seen by a function mode.

PyTorch hands the outermost function to the mode; what that function calls inside itself is not
seen, which is also what keeps this cheap. Inside an optimizer step, each function is recorded once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _pop_mode_temporarily,
)

from tapml.invariants.recorder import Recorder
from tapml.invariants.summaries import summarise_call, summarise_result

# Questions about a tensor, and conversions: they are called often and say nothing about training.
_QUERIES: Final = frozenset(
    f"torch.Tensor.{name}"
    for name in [
        "__bool__",
        "__contains__",
        "__deepcopy__",
        "__dir__",
        "__dlpack__",
        "__float__",
        "__format__",
        "__hash__",
        "__index__",
        "__int__",
        "__iter__",
        "__len__",
        "__repr__",
        "__setstate__",
        "backward",
        "data_ptr",
        "dim",
        "element_size",
        "get_device",
        "is_complex",
        "is_contiguous",
        "is_floating_point",
        "item",
        "ndimension",
        "numel",
        "numpy",
        "register_hook",
        "size",
        "storage_offset",
        "stride",
        "tolist",
        "type",
        "untyped_storage",
    ]
) | {"torch.is_complex", "torch.is_floating_point", "torch._set_grad_enabled", "torch.is_tensor"}


class FunctionMode(TorchFunctionMode):
    """Records function calls while it is entered.

    Parameters
    ----------
    recorder
        Takes the calls.
    only
        Names to record; None for all.
    """

    def __init__(self, recorder: Recorder, only: Collection[str] | None = None) -> None:
        super().__init__()
        self._recorder = recorder
        self._only = only
        self._names: dict[Any, str] = {}
        self._step = -1
        self._in_step: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the function between two rows."""
        kwargs = kwargs or {}
        recorder = self._recorder
        if recorder.muted or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = self._name(func)
        if not name or self._repeats(name):
            return func(*args, **kwargs)
        with recorder.mute():
            number = recorder.enter(name, summarise_call(args, kwargs))
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            recorder.leave(number, {"raised": type(error).__name__})
            raise
        with recorder.mute():
            recorder.leave(number, summarise_result(result))
        return result

    def _repeats(self, name: str) -> bool:
        """Whether an optimizer step calls a function again: it does so for every parameter."""
        stack = self._recorder.open_calls()
        if not stack or not stack[-1][1].startswith("torch.optim."):
            return False
        if self._step != stack[-1][0]:
            self._step = stack[-1][0]
            self._in_step.clear()
        if name in self._in_step:
            return True
        self._in_step.add(name)
        return False

    def _name(self, func: Callable[..., Any]) -> str:
        name = function_name(func)
        if name in _QUERIES or (self._only is not None and name not in self._only):
            return ""
        return name


def seen_by_others(has_torch_function: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A replacement of ``torch.overrides.has_torch_function`` that overlooks the recording.

    Attention modules ask it whether they may take their fused path in evaluation; the recording
    must not change which path, and so which bits, they give.
    """

    def seen(tensors: Any) -> bool:
        mode = _get_current_function_mode()  # type: ignore[no-untyped-call]
        if isinstance(mode, FunctionMode):
            with _pop_mode_temporarily():
                return has_torch_function(tensors)
        return has_torch_function(tensors)

    return seen


def function_name(func: Callable[..., Any]) -> str:
    """The qualified name of a function of PyTorch; empty for attributes and operators."""
    name = getattr(func, "__name__", "")
    if name in ("", "__get__", "__set__", "__delete__"):
        return ""
    if getattr(func, "__objclass__", None) is not None:
        return f"torch.Tensor.{name}"
    module = getattr(func, "__module__", None) or "torch"
    if module.startswith("torch._ops"):
        return ""
    qualified = getattr(func, "__qualname__", name)
    if module.startswith("torch._C") or module == "builtins":
        module = "torch" if module != "torch._C._nn" else "torch.nn.functional"
    if module == "torch._tensor":
        return f"torch.{qualified}"
    if qualified.startswith(("_TensorBase.", "TensorBase.")):
        return f"torch.Tensor.{name}"
    return f"{module}.{name}"
