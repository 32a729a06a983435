"""Branches on numbers, as a class takes them on its example inputs.

``if mask.any():`` asks a tensor for a number, and a graph has no branch for the answer. The class
runs once on its example inputs, and what it was answered is kept: numbers, and the places that a
mask picks. While it is exported it gets the same answers, so the program is that of the branches
taken there. Where a run would be answered otherwise, every output of floats is NaN: it never has
the numbers of a branch that the class does not take. Integers and truth values cannot say so.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from operator import getitem
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tapml.importing.origins import module_line
from tapml.importing.replaced_forward import replaced_forward
from tapml_targets.errors import UnsupportedOperatorError

_NUMBERS: Final = frozenset(
    ("__bool__", "__int__", "__float__", "__index__", "__contains__", "item", "tolist", "equal",
     "is_nonzero")
)  # fmt: skip
# How much they give depends on the numbers of their operand.
_PICKS: Final = frozenset(
    ("nonzero", "argwhere", "where", "unique", "_unique2", "unique_consecutive")
)
# Whose operands behind the first are extents.
_EXTENTS: Final = frozenset(
    ("pad", "_pad", "view", "reshape", "expand", "narrow", "split", "repeat", "interpolate",
     "unflatten", "new_zeros", "new_ones", "new_full")
)  # fmt: skip
# How classes of transformers ask whether they are exported.
_ASKED_OF_EXPORT: Final = {"is_tracing", "is_torchdynamo_compiling", "is_torchdynamo_exporting"}
# Whose lines ask for nobody but a module.
_AROUND: Final = tuple(f"{Path(each).parent}{os.sep}" for each in (__file__, torch.__file__))


class _Answer(NamedTuple):
    """What an operation gave at a line, and whether that follows from the inputs.

    `value` has numbers or lists; `operands` those of an operation that picks.
    """

    name: str
    line: tuple[str, int]
    value: Any
    of_inputs: bool
    operands: tuple[Any, ...] = ()


class _Numbers(NamedTuple):
    """A tensor of integers or truth values as numbers, which a graph takes as a constant."""

    values: Any
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> _Numbers:
        return cls(tensor.tolist(), tensor.dtype, tuple(tensor.shape))

    def tensor(self) -> Tensor:
        return torch.tensor(self.values, dtype=self.dtype).reshape(self.shape)


class _Followed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows which values follow from the inputs, those of scripted functions included."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A weak reference keeps the address of memory from others.
        self._memory: dict[int, StorageWeakRef] = {}
        self._mark(inputs)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        result = func(*args, **given)
        if any(map(self.has, _tensors((args, given)))):
            named = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
            named |= given
            written = [
                named.get(each.name)
                for each in func._schema.arguments
                if each.alias_info is not None and each.alias_info.is_write
            ]
            self._mark(_tensors((result, written)))
        return result

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor follows from the inputs; a view of what does, does."""
        return tensor.untyped_storage()._cdata in self._memory

    def _mark(self, tensors: Sequence[Tensor]) -> None:
        for each in tensors:
            storage = each.untyped_storage()
            reference: Any = StorageWeakRef
            self._memory[storage._cdata] = reference(storage)


class TakenBranches(TorchFunctionMode):
    """While it is entered, tensors answer as they did on the example inputs.

    `places` are the lines that the program asks for a number that follows from the inputs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []
        self._answers: list[_Answer] = []
        self._records = False
        self._next = 0
        # Of a list, those that were not asked for yet.
        self._rest: list[_Answer] = []
        self._conditions: list[Tensor] = []
        self._any_length = False
        self._followed: _Followed | None = None
        # Lines that ask for what follows from the inputs, at any time.
        self._following: set[tuple[str, int]] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _NUMBERS:
            if self._records:
                return self._recorded(func, args, given)
            return self._answered(name, args)
        if name in _PICKS and (name != "where" or len(args) + len(given) == 1):
            return self._picked(func, name, args, given)
        args = self._with_extents(name, args)
        if name == "__getitem__" and any(map(_is_mask, pytree.tree_leaves(args[1]))):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            places = [
                self._picked(torch.nonzero, "nonzero", (each,), {"as_tuple": True})
                if _is_mask(each)
                else (each,)
                for each in index
            ]
            args = (args[0], tuple(each for part in places for each in part))
            func = getitem
        return func(*args, **given)

    @contextmanager
    def of(
        self, module: nn.Module, inputs: Sequence[Tensor], *, any_length: bool, as_run: bool
    ) -> Iterator[None]:
        """While a module is exported under it: its answers are those of a run on `inputs`.

        With `any_length`, every number may follow from the extents of the inputs. With `as_run`,
        classes of transformers look at their masks as in a run, and not as while they are exported.

        Raises
        ------
        UnsupportedOperatorError
            If it asks for a number with a fraction that follows from the inputs, which no two
            platforms compute alike, or has no output that can be NaN.
        """
        self._any_length = any_length
        with ExitStack() as stack:
            if as_run:
                _as_it_runs(stack)
            self._record(module, inputs)
            forward = module.forward

            @wraps(forward)
            def watched(*args: Any, **given: Any) -> Any:
                self._next, self._rest, self._conditions, self.places = 0, [], [], []
                return self._guarded(forward(*args, **given))

            with replaced_forward(module, watched), self:
                yield

    def _record(self, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        self._followed = _Followed(inputs)
        self._records = True
        try:
            with torch.no_grad(), self._followed, self:
                module(*inputs)
        finally:
            self._records, self._followed = False, None
        self._following = {each.line for each in self._answers if each.of_inputs}

    def _follows(self, tensor: Tensor) -> bool:
        """Whether a tensor follows from the inputs, while they are recorded."""
        return self._any_length or self._followed is None or self._followed.has(tensor)

    def _require(self, condition: Tensor) -> None:
        """The program's numbers are those of its branches where this is true."""
        self._conditions.append(condition)
        self.places.append(module_line())

    def _recorded(self, func: Any, args: Any, given: Any) -> Any:
        value = func(*args, **given)
        of_inputs = any(map(self._follows, _tensors((args, given))))
        if of_inputs and any(isinstance(each, float) for each in pytree.tree_leaves(value)):
            raise UnsupportedOperatorError(
                f"{module_line()}: the module asks for a number that only a run knows, and no two "
                "platforms compute the same one: take torch.where of both, or torch.cond"
            )
        self._answers.append(_Answer(func.__name__, _line(), value, of_inputs))
        return value

    def _answered(self, name: str, args: Any) -> Any:
        answer = self._answer(name)
        if answer.line in self._following:
            self._require(_same(name, args, answer.value))
        return answer.value

    def _answer(self, name: str) -> _Answer:
        """The next answer that was given here; what a run asks beside it, as a check, is left."""
        line = _line()
        if self._rest and (self._rest[0].name, self._rest[0].line) == (name, line):
            return self._rest.pop(0)
        while self._next < len(self._answers):
            answer = self._answers[self._next]
            self._next += 1
            if (answer.name, answer.line) == (name, line):
                return answer
            if (answer.name, answer.line, name) == ("tolist", line, "item"):
                # torch.export asks for the numbers of a list one after another.
                numbers = pytree.tree_leaves(answer.value)
                each, *self._rest = (answer._replace(name=name, value=one) for one in numbers)
                return each
        raise UnsupportedOperatorError(
            f"{module_line()}: the module asks for a number that only a run knows, and in another "
            "order than on its example inputs"
        )

    def _picked(self, func: Any, name: str, args: Any, given: Any) -> Any:
        """Places of a mask, or distinct integers: constants, as they were."""
        (tensor,) = _tensors((args, given))
        if not self._records:
            answer = self._answer(name)
            if answer.line in self._following:
                with torch._C.DisableTorchFunction():
                    self._require((tensor == answer.operands[0].tensor()).all())
            return pytree.tree_map_only(
                _Numbers, _Numbers.tensor, answer.value, is_leaf=lambda e: isinstance(e, _Numbers)
            )
        if tensor.is_floating_point() or self._any_length:
            raise UnsupportedOperatorError(
                f"{module_line()}: {name} gives as much as the numbers of its operand say, and "
                "only a run knows how much"
            )
        result, of_inputs = func(*args, **given), self._follows(tensor)
        value = pytree.tree_map_only(Tensor, _Numbers.of, result)
        self._answers.append(_Answer(name, _line(), value, of_inputs, (_Numbers.of(tensor),)))
        return result

    def _with_extents(self, name: str, args: Any) -> Any:
        """Arguments with numbers for the tensors that are extents, as in ``x[:, :end]``."""

        def number(value: Any) -> Any:
            if isinstance(value, slice):
                return slice(*map(number, (value.start, value.stop, value.step)))
            if isinstance(value, list | tuple) and type(value) in (list, tuple, torch.Size):
                return type(value)(map(number, value))
            if isinstance(value, Tensor) and not value.dim() and not value.is_floating_point():
                return self.__torch_function__(Tensor.item, (), (value,))
            return value

        if name == "__getitem__" and isinstance(args[1], slice | tuple):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            return args[0], tuple(
                number(each) if isinstance(each, slice) else each for each in index
            )
        if name in _EXTENTS:
            return (*args[:1], *map(number, args[1:]))
        return args

    def _guarded(self, result: Any) -> Any:
        """The results, or NaN where an answer is another one."""
        if not self._conditions:
            return result
        taken = self._conditions[0]
        for each in self._conditions[1:]:
            taken = torch.logical_and(taken, each)
        guarded = 0

        def or_nan(tensor: Tensor) -> Tensor:
            nonlocal guarded
            if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
                return tensor
            guarded += 1
            return torch.where(taken, tensor, torch.full((), math.nan, dtype=tensor.dtype))

        mapped = pytree.tree_map_only(Tensor, or_nan, result)
        if not guarded:
            raise UnsupportedOperatorError(
                f"{self.places[0]}: the module asks for a number that only a run knows, and has no "
                "output of floats that could say so: take torch.where of both, or torch.cond"
            )
        return mapped


@contextmanager
def no_warning_asks() -> Iterator[None]:
    """Classes of transformers do not look for padding in tokens, which they would only warn of."""
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None:
        yield
        return
    asks = "warn_if_padding_and_no_attention_mask"
    with mock.patch.object(modeling.PreTrainedModel, asks, lambda *_: None):
        yield


def _as_it_runs(stack: ExitStack) -> None:
    """Tell classes of transformers that they are not exported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers."):
            for asked in _ASKED_OF_EXPORT & vars(module).keys():
                stack.enter_context(mock.patch.object(module, asked, lambda *_: False))


def _same(name: str, args: Any, value: Any) -> Any:
    """Whether a tensor answers `value`."""
    with torch._C.DisableTorchFunction():
        if name == "equal":
            alike = (args[0] == args[1]).all()
            return alike if value else torch.logical_not(alike)
        if name == "__contains__":
            among = (args[0] == args[1]).any()
            return among if value else torch.logical_not(among)
        tensor = args[0]
        if isinstance(value, bool) and tensor.dtype is not torch.bool:
            tensor = tensor != 0
        if name == "__int__" and tensor.is_floating_point():
            tensor = tensor.trunc()
        return (tensor == torch.tensor(value, dtype=tensor.dtype)).all()


def _line() -> tuple[str, int]:
    """File and line that ask for a number."""
    frame: Any = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_AROUND):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is torch.bool and value.dim() > 0


def _tensors(value: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(value) if isinstance(each, Tensor)]
