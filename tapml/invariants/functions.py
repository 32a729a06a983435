"""Calls of PyTorch's functions and tensor methods, seen by a function mode.

PyTorch hands the outermost function to the mode; what that function calls inside itself is not
seen, which is also what keeps this cheap. Inside an optimizer step, each function is recorded once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch.overrides import (  # type: ignore[attr-defined]
    TorchFunctionMode,
    _get_current_function_mode,
    _len_torch_function_stack,
    _pop_mode_temporarily,
)

from tapml.invariants.looks import activation_before
from tapml.invariants.needs import Needs
from tapml.invariants.record import (
    ACTIVATION,
    BACKWARD,
    COMPARED,
    NODE,
    ON_LOGITS,
    WITH_TARGET,
    Value,
)
from tapml.invariants.recorder import Recorder
from tapml.invariants.summaries import Shared, summarise_call, summarise_result
from tapml.invariants.versions import PLAIN

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

# Recorded by their wrappers.
_WRAPPED: Final = frozenset({BACKWARD})


# They give a place of a tensor's values where a change does not raise its version.
_ROUND: Final = (
    torch.Tensor.data.__get__,  # type: ignore[attr-defined]
    torch.Tensor.data.__set__,  # type: ignore[attr-defined]
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
    torch.Tensor.data_ptr,
    torch.Tensor.numpy,
    torch.Tensor.storage,
    torch.Tensor.untyped_storage,
)
_ASIDE: Final = " "
"""What such a function is called here; no API has this name."""
_PLACES: Final = 4096
_GET: Final = torch.Tensor.__getitem__
_STACK: Final = torch.stack
_INDICES: Final = (torch.Tensor, np.ndarray)

# What losses are made of.
_TERMS: Final = (
    COMPARED
    | ON_LOGITS
    | frozenset(
        [
            "torch.Tensor.gather",
            "torch.gather",
            "torch.nn.functional.cross_entropy",
            "torch.nn.functional.kl_div",
            "torch.nn.functional.logsigmoid",
            "torch.nn.functional.nll_loss",
            "torch.nn.functional.softplus",
            "torch.nn.functional.triplet_margin_loss",
        ]
    )
)

# Others have functions of their own, which must run.
_PLAIN: Final = frozenset(PLAIN)


Looks: TypeAlias = Callable[[str, Sequence[Any], Any], Mapping[str, Any]]


class FunctionMode(TorchFunctionMode):
    """Records function calls while it is entered.

    Attributes
    ----------
    stepping
        Whether an optimizer step may be open.

    Parameters
    ----------
    recorder
        Takes the calls.
    needs
        What to record; None for all.
    looks
        Looks at a loss before its call, with a result of None, and after it: name, arguments,
        result. Gives more fields of the call.
    picks
        Told of rows that are picked by an index, or are stacked: the result, and the index or rows.
    """

    def __init__(
        self,
        recorder: Recorder,
        needs: Needs | None = None,
        looks: Looks | None = None,
        picks: Callable[[torch.Tensor, Any], None] | None = None,
    ) -> None:
        super().__init__()
        shared = Shared()
        self._called = summarise_call if needs is None else shared.call
        self._gave = summarise_result if needs is None else shared.result
        self._recorder = recorder
        self._needs = needs
        self._looks = looks
        self._picks = picks
        self._nodes = needs is None or bool(needs.nodes)
        self._only = None if needs is None else needs.functions
        self._whole = frozenset() if needs is None else needs.whole
        # Of an optimizer step in which it may stop listening: what it still waits for.
        self._awaited: set[str] | None = None
        self._listened: dict[str, set[str]] = {}
        self._silent: set[str] = set()
        self._deaf: AbstractContextManager[None] | None = None
        self._names: dict[Any, str] = dict.fromkeys(_ROUND, _ASIDE)
        self._places: set[int] = set()
        self._noded: dict[tuple[int, str, Value], tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        self._hearing = ""
        self._step = -1
        self._in_step: set[str] = set()
        self.stepping = False
        self._of_optimizers: dict[str, bool] = {}
        self._thread = threading.get_ident()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the function between two rows."""
        kwargs = kwargs or {}
        name = self._names.get(func)
        picks = func is _STACK or (func is _GET and isinstance(args[1], _INDICES))
        run = partial(self._pick, func) if picks and self._picks is not None else func
        # Most calls read an attribute.
        if name == "":
            return run(*args, **kwargs)
        if name is _ASIDE:
            self._looked(args)
            return run(*args, **kwargs)
        recorder = self._recorder
        if self._awaited is not None and name is not None and name not in self._whole:
            self._hears_in_step(name)
            return run(*args, **kwargs)
        if (
            recorder.muted
            or torch.compiler.is_compiling()
            or torch._C._get_tracing_state() is not None
        ):
            return run(*args, **kwargs)
        if name is None:
            name = self._names[func] = self._name(func)
        if not name or (self.stepping and self._repeats(name)):
            return run(*args, **kwargs)
        if self._awaited is not None:
            self._heard(name, self._awaited)
        if self._needs is not None and name not in self._whole:
            recorder.touch(name)
            return run(*args, **kwargs)
        fields: Mapping[str, Any] = self._called(args, kwargs)
        term = name in _TERMS
        if term:
            fields = self._before_term(name, args, fields)
        number = recorder.enter(name, fields)
        try:
            result = run(*args, **kwargs)
        except BaseException as error:
            recorder.leave(number, {"raised": type(error).__name__})
            raise
        gave: Mapping[str, Any] = self._gave(result)
        if term and isinstance(result, torch.Tensor):
            gave = self._of_term(name, args, result, gave)
        recorder.leave(number, gave)
        return result

    def _pick(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        part = func(*args, **kwargs)
        if self._picks is not None and args and isinstance(part, torch.Tensor):
            self._picks(part, args[0] if func is _STACK else args[1])
        return part

    def _before_term(
        self, name: str, args: Sequence[Any], fields: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The fields of a call of a loss."""
        if name in ON_LOGITS and (before := activation_before(args[0] if args else None)):
            fields = self._kept(fields, ACTIVATION, before)
        if name in WITH_TARGET and self._looks is not None:
            with self._recorder.aside():
                looked = self._looks(name, args, None)
            for field, value in looked.items():
                fields = self._kept(fields, field, value)
        return fields

    def _of_term(
        self, name: str, args: Sequence[Any], result: torch.Tensor, fields: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The fields of a loss; in a watched run, equal ones are one object."""
        if self._looks is not None and not torch.is_grad_enabled():
            with self._recorder.aside():
                self._looks(name, args, result)
        # Here this mode is off the stack.
        node = result.grad_fn if self._nodes else None
        if node is None:
            return fields
        return self._kept(fields, NODE, node.name())

    def _kept(self, fields: Mapping[str, Any], name: str, value: Value) -> Mapping[str, Any]:
        """Fields with one more; in a watched run, equal ones are one object."""
        key = id(fields), name, value
        if self._needs is None or key not in self._noded:
            whole = {**fields, name: value}
            if self._needs is None:
                return whole
            if len(self._noded) >= _PLACES:
                self._noded.clear()
            # It keeps the fields, and so their identity.
            self._noded[key] = fields, whole
        return self._noded[key][1]

    def without(self) -> AbstractContextManager[object]:
        """For a block that runs as a heard function does: this mode is off the stack."""
        mine = _get_current_function_mode() is self  # type: ignore[no-untyped-call]
        return _pop_mode_temporarily() if mine else nullcontext()

    def versions_tell(self, storages: set[int]) -> bool:
        """Whether a tensor in these storages changes only with its version.

        Not if the script has taken another way to its values, which it may keep.
        """
        return len(self._places) < _PLACES and self._places.isdisjoint(storages)

    def _looked(self, tensors: Sequence[Any]) -> None:
        # What becomes a tensor's data may be kept too, as one buffer of all parameters is.
        with torch._C.DisableTorchFunction():
            for each in tensors:
                if len(self._places) < _PLACES and type(each) in _PLAIN:
                    self._places.add(each.untyped_storage().data_ptr())

    def _hears_in_step(self, name: str) -> None:
        """An optimizer step that may stop being heard calls a function: seen once is enough."""
        awaited = self._awaited
        if awaited is not None and name not in self._in_step:
            self._in_step.add(name)
            self._recorder.touch(name)
            self._heard(name, awaited)

    def _heard(self, name: str, awaited: set[str]) -> None:
        awaited.discard(name)
        if not awaited:
            # Here this mode itself is off the stack.
            self._stop_hearing(others=_len_torch_function_stack())

    def optimizer_begins(self, name: str, parameters: Sequence[torch.Tensor]) -> None:
        """An optimizer steps: when what is needed of it was seen, the rest runs unheard.

        It reads attributes of every parameter, and each reading would come through this mode. Its
        first step is heard to the end, to know what it calls; so are later ones that leave out
        some of this, such as what made its state.
        """
        self.stepping = True
        # Classes of other packages step as those of PyTorch do.
        self._of_optimizers[self._recorder.open_calls()[-1].name] = True
        if not (self._hears_here() and self._may_stop(parameters)):
            return
        heard = self._listened.get(name)
        if heard is None:
            self._hearing = name
            self._in_step.clear()
        elif heard:
            self._hearing = name
            self._awaited = set(heard)
            self._step = self._recorder.open_calls()[-1].number
            self._in_step.clear()
        else:
            self._stop_hearing(others=_len_torch_function_stack() - 1)

    def gathers(
        self, optimizer: torch.optim.Optimizer, gather: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Of an optimizer step, what gathers the parameters: unheard once that gave nothing."""
        name = type(optimizer).__qualname__

        def run(*args: Any, **kwargs: Any) -> Any:
            if name in self._silent and self._awaited and _len_torch_function_stack() == 1:
                with torch._C.DisableTorchFunction():
                    return gather(*args, **kwargs)
            heard = len(self._in_step)
            result = gather(*args, **kwargs)
            # Not of the first step, which makes the optimizer's state.
            if self._awaited is not None and len(self._in_step) == heard:
                self._silent.add(name)
            return result

        return run

    def _stop_hearing(self, others: int) -> None:
        self._awaited = None
        if not others:
            self._deaf = torch._C.DisableTorchFunction()
            self._deaf.__enter__()

    def unheard(
        self, call: str, parameters: Sequence[torch.Tensor]
    ) -> AbstractContextManager[None]:
        """For a call that reads attributes of every parameter: hear nothing, if nobody needs it."""
        wanted = self._needs is None or self._needs.contents.get(call, frozenset())
        quiet = wanted is not True and all(" " in content for content in wanted)
        if quiet and self._may_stop(parameters) and _len_torch_function_stack() == 1:
            return torch._C.DisableTorchFunction()
        return nullcontext()

    def _hears_here(self) -> bool:
        """Function modes are those of a thread, and so is what is unheard in it."""
        return threading.get_ident() == self._thread

    def _may_stop(self, parameters: Sequence[torch.Tensor]) -> bool:
        return self._needs is not None and _PLAIN.issuperset(map(type, parameters))

    def optimizer_ends(self) -> None:
        """Hear everything again."""
        if not self._hears_here():
            return
        awaited, self._awaited = self._awaited, None
        if self._deaf is not None:
            self._deaf.__exit__(None, None, None)
            self._deaf = None
        if self._hearing:
            if awaited is None:
                self._listened.setdefault(self._hearing, set(self._in_step))
            else:
                self._listened[self._hearing] -= awaited
            self._hearing = ""

    def _repeats(self, name: str) -> bool:
        """Whether an optimizer step calls a function again: it does so for every parameter."""
        stack = self._recorder.open_calls()
        if not stack:
            return False
        call = stack[-1].name
        found = self._of_optimizers.get(call)
        if found is None:
            found = self._of_optimizers[call] = call.startswith("torch.optim.")
        if not found:
            return False
        if self._step != stack[-1].number:
            self._step = stack[-1].number
            self._in_step.clear()
        if name in self._in_step:
            return True
        self._in_step.add(name)
        return False

    def _name(self, func: Callable[..., Any]) -> str:
        name = function_name(func)
        if name in _QUERIES | _WRAPPED or (self._only is not None and name not in self._only):
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
