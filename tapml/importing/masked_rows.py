"""Rows that a mask picks, computed as all rows: how many a mask picks, only the run knows.

``x[mask]``, ``mask.nonzero()`` and ``torch.where(mask)`` give a tensor of an extent that no graph
has. While a module is exported under :class:`MaskedRows`, they give every row instead, and the mask
goes with it: through operations that compute each row alone, up to where rows go back
(``y[mask] = rows``, ``y.index_add_(0, places, rows)``) or are summed up, where those that the mask
does not pick have no effect. So the numbers are those of the module, for more work. Anything else
that is done with such rows is refused with the line where it is done.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from tapml_targets.errors import UnsupportedOperatorError


class _Picked(NamedTuple):
    """The mask of all rows of a tensor; `axis` is that of the mask whose places the rows are."""

    mask: Tensor
    axis: int | None = None


# Each row of the result is made of the same row of the operands.
_BY_ELEMENT: Final = (
    "add", "sub", "mul", "div", "true_divide", "floor_divide", "pow", "neg", "abs", "exp", "log",
    "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "gelu", "silu", "erf", "sin", "cos", "clamp",
    "clamp_min", "clamp_max", "where", "maximum", "minimum", "square", "reciprocal", "softplus",
    "elu", "leaky_relu", "hardtanh", "relu6", "mish", "eq", "ne", "lt", "le", "gt", "ge",
    "logical_and", "logical_or", "logical_not", "dropout", "float", "double", "half", "long",
    "int", "bool", "to", "type", "type_as", "contiguous", "clone", "detach", "masked_fill",
    "remainder", "fmod", "round", "floor", "ceil", "rsub", "zeros_like", "ones_like", "linear",
    "embedding", "layer_norm", "rms_norm", "nan_to_num", "sign", "logsigmoid", "prelu", "selu",
    "greater", "less", "multiply", "subtract", "divide", "expand_as", "requires_grad_",
)  # fmt: skip
# Along an axis that is given, and is not that of the rows.
_ALONG: Final = (
    "softmax", "log_softmax", "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin",
    "norm", "cumsum", "squeeze", "unsqueeze", "chunk", "split", "unbind", "topk", "var", "select",
    "narrow", "glu", "std", "any", "all", "prod", "logsumexp", "sort", "argsort", "normalize",
)  # fmt: skip
_SHAPES: Final = ("view", "reshape", "flatten", "unflatten", "expand")
_ASKED: Final = ("shape", "dtype", "device", "ndim", "size", "dim", "numel", "layout", "is_cuda",
                 "requires_grad", "is_floating_point", "grad", "is_meta", "__len__", "__hash__",
                 "names", "is_sparse", "is_quantized", "grad_fn", "__repr__", "is_complex",
                 "stride", "storage_offset", "is_contiguous", "_base", "element_size",
                 "get_device", "untyped_storage", "data_ptr", "is_nested", "itemsize")  # fmt: skip


class MaskedRows(TorchFunctionMode):
    """While it is entered, picked rows are all rows, as the module's text says.

    `used` tells whether any were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False
        self._picked: Any = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = _name(func)
        special = _SPECIAL.get(name)
        if special is not None:
            found = special(self, func, args, given)
            if found is not NotImplemented:
                return found
        picked = self._of((args, given))
        if picked is None or name in _ASKED:
            return func(*args, **given)
        result = func(*args, **given)
        count = picked.mask.numel()
        kept = all(each.dim() and _same(each.shape[0], count) for each in _tensors(result))
        if not (kept and _stays(name, args, given, picked)):
            raise _refused(name)
        self._mark(result, picked._replace(axis=None))
        return result

    @contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """While a module runs under it: rows of a mask are no result.

        Raises
        ------
        UnsupportedOperatorError
            If they are one, or if something is done with them that needs their number.
        """
        held, forward = vars(module).get("forward"), module.forward

        @wraps(forward)
        def watched(*args: Any, **given: Any) -> Any:
            result = forward(*args, **given)
            if any(self.rows(each) is not None for each in _tensors(pytree.tree_leaves(result))):
                raise UnsupportedOperatorError(
                    "an output has as many rows as a mask picks (aten.masked_select, aten.index or "
                    "aten.nonzero), and only a run knows how many: give all rows and the mask"
                )
            return result

        module.forward = watched
        try:
            with self:
                yield
        finally:
            del module.forward
            if held is not None:
                module.forward = held

    def rows(self, tensor: Any) -> _Picked | None:
        """The mask of a tensor's rows, if a mask picked them."""
        found: _Picked | None = self._picked.get(tensor) if isinstance(tensor, Tensor) else None
        return found

    def _of(self, value: Any) -> _Picked | None:
        """The mask of the tensors in arguments; raises if they have different ones."""
        found = None
        for each in _tensors(value):
            picked = self.rows(each)
            if picked is None:
                continue
            if found is not None and found.mask is not picked.mask:
                raise _refused("an operation on rows of two masks")
            found = picked
        return found

    def _mark(self, result: Any, picked: _Picked) -> None:
        self.used = True
        for each in _tensors(result):
            if each.dim() and _same(each.shape[0], picked.mask.numel()):
                self._picked[each] = picked

    def _take(self, func: Any, args: Any, given: Any) -> Any:
        """``x[mask]``, ``x[places]``, ``rows[:, 1]``."""
        tensor, index = args
        first = index[0] if isinstance(index, tuple) and index else index
        if _is_mask(first) and not isinstance(first, bool):
            rest = index[1:] if isinstance(index, tuple) else ()
            if any(each != slice(None) and each is not Ellipsis for each in rest):
                raise _refused("a mask beside other indices")
            if self.rows(tensor) is not None:
                raise _refused("a mask")
            if not all(map(_same, first.shape, tensor.shape)):
                return NotImplemented
            rows = tensor.reshape(first.numel(), *tensor.shape[first.dim() :])
            rows = rows.clone() if rows is tensor or rows._base is not None else rows
            self._mark(rows, _Picked(first))
            return rows
        places = [each for each in _tensors(index) if self.rows(each) is not None]
        if places:
            picked = self._of(index)
            result = func(*args, **given)
            if picked is not None:
                self._mark(result, picked._replace(axis=None))
            return result
        picked = self.rows(tensor)
        if picked is None:
            return NotImplemented
        result = func(*args, **given)
        whole = first is Ellipsis or first == slice(None)
        if not whole:
            raise _refused("an index of one of them")
        # The second column of the places of two axes are places too.
        column = isinstance(index, tuple) and len(index) == len(("row", "axis")) and index[1]
        axis = column if isinstance(column, int) and picked.axis == _ALL_AXES else None
        self._mark(result, picked._replace(axis=axis))
        return result

    def _none(self, func: Any, args: Any, given: Any) -> Any:
        raise UnsupportedOperatorError(
            f"{_line()}: {_name(func)} gives as many numbers as the data has, and only a run knows "
            "how many: take torch.sort, or count with one_hot(...).sum"
        )

    def _put(self, func: Any, args: Any, given: Any) -> Any:
        """``y[mask] = rows``."""
        tensor, index, value = args
        picked = self.rows(value)
        if picked is None:
            if self._of(index) is not None:
                raise _refused("places that a number is put at")
            return NotImplemented
        indices = index if isinstance(index, tuple) else (index,)
        places = [self.rows(each) for each in indices]
        by_mask = len(indices) == 1 and indices[0] is picked.mask
        by_places = len(indices) == picked.mask.dim() and all(
            each is not None and each.mask is picked.mask and each.axis == axis
            for axis, each in enumerate(places)
        )
        if not (by_mask or by_places):
            raise _refused("a place that is not the mask's own")
        mask = picked.mask
        rest = tensor.shape[mask.dim() :]
        rows = value.expand(mask.numel(), *rest).reshape(*mask.shape, *rest)
        kept = mask.reshape(*mask.shape, *(1 for _ in rest))
        self._picked.pop(rows, None)
        tensor.copy_(torch.where(kept, rows.to(tensor.dtype), tensor))
        return None

    def _places(self, func: Any, args: Any, given: Any) -> Any:
        """``nonzero`` and ``where`` of one operand."""
        if len(args) + len(given) > 1 and "as_tuple" not in given:
            return NotImplemented
        (mask,) = args
        if self.rows(mask) is not None:
            raise _refused("nonzero")
        kept = mask if mask.dtype is torch.bool else mask != 0
        every = torch.arange(kept.numel(), dtype=torch.int64)
        columns, size = [], kept.numel()
        for axis, extent in enumerate(kept.shape):
            size //= extent
            column = torch.remainder(torch.div(every, size, rounding_mode="floor"), extent)
            self._mark(column, _Picked(kept, axis))
            columns.append(column)
        if given.get("as_tuple", _name(func) == "where"):
            return tuple(columns)
        with torch._C.DisableTorchFunction():
            stacked = torch.stack(columns, dim=-1)
        self._mark(stacked, _Picked(kept, _ALL_AXES))
        return stacked

    def _add(self, func: Any, args: Any, given: Any) -> Any:
        """``y.index_add_(0, places, rows)``."""
        names = dict(zip(("self", "dim", "index", "source"), args, strict=False)) | given
        picked = self._of([names["index"], names["source"]])
        if picked is None:
            return NotImplemented
        if self.rows(names["self"]) is not None or names["dim"] != 0:
            raise _refused("index_add")
        names["source"] = self._without_others(names["source"], picked)
        tensor, dim, index = (names.pop(each) for each in ("self", "dim", "index"))
        return func(tensor, dim, index, names.pop("source"), **names)

    def _sum(self, func: Any, args: Any, given: Any) -> Any:
        """``rows.sum()``, ``rows.mean()``, of all or over the rows."""
        picked = self.rows(args[0])
        dim = given.get("dim", args[1] if len(args) > 1 else None)
        if picked is None or (dim is not None and dim not in (0, (0,), [0])):
            return NotImplemented
        kept = self._without_others(args[0], picked)
        total = torch.sum(kept) if dim is None else torch.sum(kept, dim=0)
        if _name(func) == "sum":
            return total
        count = picked.mask.sum().to(total.dtype)
        return total / (count if dim == 0 else count * math.prod(args[0].shape[1:]))

    def _without_others(self, rows: Tensor, picked: _Picked) -> Tensor:
        """Zeros for the rows that the mask does not pick."""
        with torch._C.DisableTorchFunction():
            kept = picked.mask.reshape(-1, *(1 for _ in rows.shape[1:]))
            return torch.where(kept, rows, torch.zeros((), dtype=rows.dtype))


_ALL_AXES: Final = -1
_SPECIAL: Final[dict[str, Callable[..., Any]]] = {
    "__getitem__": MaskedRows._take,
    "__setitem__": MaskedRows._put,
    "masked_select": MaskedRows._take,
    "nonzero": MaskedRows._places,
    "where": MaskedRows._places,
    "index_add": MaskedRows._add,
    "index_add_": MaskedRows._add,
    **dict.fromkeys(("unique", "_unique2", "unique_consecutive"), MaskedRows._none),
    "sum": MaskedRows._sum,
    "mean": MaskedRows._sum,
}


def _name(func: Any) -> str:
    found = getattr(func, "__name__", "")
    if found in ("__get__", "__set__"):
        # A property, such as ``Tensor.shape``.
        found = (resolve_name(func) or "").removesuffix(f".{found}").rpartition(".")[2]
    return str(found)


def _plain(name: str) -> str:
    """``add`` of ``__radd__``, ``__iadd__`` and ``add_``."""
    inner = name.strip("_")
    known = {*_BY_ELEMENT, *_ALONG, *_SHAPES}
    return inner if inner in known else inner[1:] if inner[1:] in known else inner


def _stays(name: str, args: Any, given: Mapping[str, Any], picked: _Picked) -> bool:
    """Whether an operation computes each row alone."""
    plain = _plain(name)
    count = picked.mask.numel()
    if plain in _BY_ELEMENT:
        # A weight may be of any shape, but other operands are the same for all rows.
        return True
    operand = args[0]
    if plain in _SHAPES:
        several = len(args) > 1 and isinstance(args[1], list | tuple)
        extents = args[1] if several else args[1:]
        first = next(iter(extents), None) if plain != "flatten" else None
        if plain == "flatten":
            return bool(extents and extents[0] >= 1)
        return isinstance(first, int | torch.SymInt) and (_same(first, -1) or _same(first, count))
    if plain in ("matmul", "mm"):
        return isinstance(operand, Tensor) and operand.dim() > 1 and _same(operand.shape[0], count)
    if plain in ("cat", "concat"):
        dim = given.get("dim", args[1] if len(args) > 1 else 0)
        rank = args[0][0].dim()
        return bool(dim % rank != 0)
    if plain in _ALONG:
        behind = 2 if plain in ("chunk", "split", "topk") else 1
        dim = given.get("dim", args[behind] if len(args) > behind else None)
        if dim is None and plain in ("topk", "normalize", "glu"):
            dim = -1
        rank = operand.dim() + (plain == "unsqueeze")
        dims = dim if isinstance(dim, list | tuple) else (dim,)
        return all(isinstance(each, int) and each % rank != 0 for each in dims)
    return False


def _same(one: Any, other: Any) -> bool:
    """Whether two extents are equal, of any length: nothing is asked of a length."""
    return bool(statically_known_true(one == other))


def _is_mask(value: Any) -> bool:
    return bool(isinstance(value, Tensor) and value.dtype is torch.bool and value.dim() > 0)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in _tensors(each)]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in _tensors(each)]
    return []


def _refused(what: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"{_line()}: {what.strip('_')} of rows that a mask picks, and only a run knows how many "
        "they are: compute all rows, and take torch.where(mask, rows, others) at the end"
    )


def _line() -> str:
    """Where the module does it."""
    ours = Path(__file__).resolve().parent.parent
    theirs = Path(torch.__file__).resolve().parent
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if not (path.is_relative_to(ours) or path.is_relative_to(theirs)) and path.exists():
            return f"{'/'.join(path.parts[-3:]).lstrip('/')}:{frame.lineno}"
    return "the module"
