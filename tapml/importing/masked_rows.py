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
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from itertools import dropwhile, product
from operator import getitem
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from tapml.importing.origins import module_line
from tapml.importing.picked_rows import Count, Loops, Picked, asked
from tapml.importing.replaced_forward import replaced_forward
from tapml_targets.errors import UnsupportedOperatorError

# Each row of the result is made of the same row of the operands, or of the first one alone.
_BY_ELEMENT: Final = (
    "add", "sub", "mul", "div", "true_divide", "floor_divide", "pow", "neg", "abs", "exp", "log",
    "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "gelu", "silu", "erf", "sin", "cos", "clamp",
    "clamp_min", "clamp_max", "where", "maximum", "minimum", "square", "reciprocal", "softplus",
    "elu", "leaky_relu", "hardtanh", "relu6", "mish", "eq", "ne", "lt", "le", "gt", "ge",
    "logical_and", "logical_or", "logical_not", "dropout", "float", "double", "half", "long",
    "int", "bool", "contiguous", "clone", "detach", "masked_fill",
    "remainder", "fmod", "round", "floor", "ceil", "rsub", "zeros_like", "ones_like",
    "nan_to_num", "sign", "logsigmoid", "selu",
    "greater", "less", "multiply", "subtract", "divide", "expand_as", "requires_grad_",
)  # fmt: skip
_OF_THE_FIRST: Final = ("linear", "layer_norm", "rms_norm", "prelu", "matmul", "mm")
_CASTS: Final = ("to", "type", "type_as")
_DIVISIONS: Final = ("div", "true_divide", "floor_divide", "divide", "remainder", "fmod")
# With a number of rows as their first extent, they make rows.
_FILLED: Final = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full")
# Along an axis that is given, and is not that of the rows.
_ALONG: Final = (
    "softmax", "log_softmax", "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin",
    "norm", "cumsum", "squeeze", "unsqueeze", "chunk", "split", "unbind", "topk", "var", "select",
    "narrow", "glu", "std", "any", "all", "prod", "logsumexp", "sort", "argsort", "normalize",
)  # fmt: skip
_SHAPES: Final = ("view", "reshape", "flatten", "unflatten", "expand")
_ASKED: Final = ("dtype", "device", "ndim", "dim", "layout", "is_cuda",
                 "requires_grad", "is_floating_point", "grad", "is_meta", "__hash__",
                 "names", "is_sparse", "is_quantized", "grad_fn", "__repr__", "is_complex",
                 "stride", "storage_offset", "is_contiguous", "_base", "element_size",
                 "get_device", "untyped_storage", "data_ptr", "is_nested", "itemsize")  # fmt: skip


class MaskedRows(TorchFunctionMode):
    """While it is entered, picked rows are all rows, as the module's text says.

    `used` tells whether any were. With `loops`, a loop over the places of a mask, as over experts
    that a token has, runs over all places: those that the mask does not pick must do nothing, which
    :func:`tapml.importing.loop_trials.check_loops` tries.
    """

    def __init__(self, loops: Loops | None = None) -> None:
        super().__init__()
        self.used = False
        self._loops = loops
        self._masks: list[Tensor] = []
        self._picked: Any = WeakIdKeyDictionary()
        # The numbers of places that a loop runs over, and those that were asked.
        self._constants: Any = WeakIdKeyDictionary()
        self._places_asked: set[Any] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = _name(func)
        counts = _counts((args, given))
        if counts:
            return self._of_counts(func, args, given, counts)
        self._check_masks(name, args, given)
        special = _SPECIAL.get(name)
        if special is not None:
            found = special(self, func, args, given)
            if found is not NotImplemented:
                return found
        picked = self._of((args, given))
        if picked is None or name in _ASKED:
            return func(*args, **given)
        if _plain(name) in _CASTS and self.rows(args[0]) is None:
            return func(*args, **given)
        if _plain(name) in _DIVISIONS:
            args = [*args[:1], *(self._without_others(each, picked, 1) for each in args[1:])]
        return self._kept(func, args, given, picked)

    def _kept(self, func: Any, args: Any, given: Any, picked: Picked, plainly: Any = None) -> Any:
        """Each row of the result; `plainly` has arguments with extents for numbers of rows."""
        name = _name(func)
        result = func(*(args if plainly is None else plainly), **given)
        if not (_is_of_rows(result, picked) and self._stays(name, args, given, result, picked)):
            raise _refused(name)
        self._mark(result, picked._replace(axis=None))
        return result

    def _of_counts(self, func: Any, args: Any, given: Any, counts: list[Count]) -> Any:
        """``rows.view(count, 2, 2)`` and ``torch.zeros(count, 4)``."""
        name, picked = _plain(_name(func)), counts[0].picked
        plainly = _extents(args)
        if len(counts) > 1 or _counts(given) or not _same(counts[0].extent, picked.mask.numel()):
            asked(counts[0])
        if name in _SHAPES and self.rows(args[0]) is not None:
            return self._kept(func, args, given, picked, plainly)
        behind = int(name.startswith("new_") or name == "expand")
        sizes = args[behind] if isinstance(args[behind], list | tuple) else args[behind:]
        extended = name == "expand" and isinstance(args[0], Tensor) and args[0].dim() == len(sizes)
        if not (name in _FILLED or extended) or sizes[0] is not counts[0]:
            asked(counts[0])
        result = func(*plainly, **given)
        self._mark(result, picked._replace(axis=None))
        return result

    def _check_masks(self, name: str, args: Any, given: Any) -> None:
        """Raise if rows are picked by a mask that changes now."""
        changes = _CHANGES.fullmatch(name)
        changed = [*_tensors(args[:1] if changes else ()), *_tensors(given.get("out", ()))]
        for each, mask in product(changed, self._masks):
            if _base(each) is _base(mask):
                raise _refused("a change of the mask")

    @contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """While a module runs under it: rows of a mask are no result.

        Raises
        ------
        UnsupportedOperatorError
            If they are one, or if something is done with them that needs their number.
        """
        forward = module.forward

        @wraps(forward)
        def watched(*args: Any, **given: Any) -> Any:
            result = forward(*args, **given)
            if any(self.rows(each) is not None for each in _tensors(pytree.tree_leaves(result))):
                raise UnsupportedOperatorError(
                    "an output has as many rows as a mask picks (aten.masked_select, aten.index or "
                    "aten.nonzero), and only a run knows how many: give all rows and the mask"
                )
            return result

        with replaced_forward(module, watched), self:
            yield

    def rows(self, tensor: Any) -> Picked | None:
        """The mask of a tensor's rows, if a mask picked them."""
        found: Picked | None = self._picked.get(tensor) if isinstance(tensor, Tensor) else None
        return found

    def _of(self, value: Any) -> Picked | None:
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

    def _mark(self, result: Any, picked: Picked) -> None:
        self.used = True
        if not any(each is picked.mask for each in self._masks):
            self._masks.append(picked.mask)
        for each in _tensors(result):
            self._picked[each] = picked

    def _take(self, func: Any, args: Any, given: Any) -> Any:
        """``x[mask]``, ``x[places]``, ``rows[:, 1]``."""
        tensor, index = args
        number = self._constants.get(tensor)
        if isinstance(number, tuple) and isinstance(index, int):
            return self._constant(number[index])
        indices = index if isinstance(index, tuple) else (index,)
        first: Any = indices[0] if indices else Ellipsis
        picked = self.rows(tensor)
        places = self._of(index)
        if _is_mask(first) and places is None:
            if any(each != slice(None) and each is not Ellipsis for each in indices[1:]):
                raise _refused("a mask beside other indices")
            if picked is not None:
                raise _refused("a mask")
            if not all(map(_same, first.shape, tensor.shape)):
                return NotImplemented
            return self._rows_of(tensor, first)
        if places is not None:
            if picked is not None or not self._is_by_row(indices):
                raise _refused("such an index")
            found = tuple(self._without_others(each, places) for each in indices)
            result = func(tensor, found)
            if not _is_of_rows(result, places):
                raise _refused("such an index")
            self._mark(result, places._replace(axis=None))
            return result
        if picked is None:
            return NotImplemented
        result = func(*args, **given)
        behind = [each for each in indices[1:] if each is not None]
        whole = isinstance(first, slice) and first == slice(None)
        whole |= first is Ellipsis and len(behind) < tensor.dim()
        several = sum(isinstance(each, Tensor | list) for each in behind) > 1
        if not whole or several or not _is_of_rows(result, picked):
            raise _refused("an index of one of them")
        # The second column of the places of two axes are places too.
        column = isinstance(index, tuple) and len(index) == len(("row", "axis")) and index[1]
        axis = column if isinstance(column, int) and picked.axis == _ALL_AXES else None
        self._mark(result, picked._replace(axis=axis))
        return result

    def _is_by_row(self, indices: tuple[Any, ...]) -> bool:
        """Whether places are the first that is not a number, and all tensors are places."""
        behind = list(dropwhile(lambda each: isinstance(each, int), indices))
        rest = [each for each in behind[1:] if not isinstance(each, Tensor)]
        rows = [each for each in behind if isinstance(each, Tensor)]
        together = all(isinstance(each, Tensor) for each in behind[: len(rows)])
        return (
            together
            and all(
                each is None
                or each is Ellipsis
                or (isinstance(each, slice) and each == slice(None))
                for each in rest
            )
            and all(self.rows(each) is not None and each.dim() == rows[0].dim() for each in rows)
        )

    def _rows_of(self, tensor: Tensor, mask: Tensor) -> Tensor:
        """All rows, which the mask goes with."""
        rows = tensor.reshape(mask.numel(), *tensor.shape[mask.dim() :])
        rows = rows.clone() if rows is tensor or rows._base is not None else rows
        self._mark(rows, Picked(mask, loops=self._loops))
        return rows

    def _selected(self, func: Any, args: Any, given: Any) -> Any:
        """``masked_select``, whose operands are of one shape, and ``index_select``."""
        if _name(func) == "index_select":
            names = dict(zip(("input", "dim", "index"), args, strict=False)) | given
            if self.rows(names["index"]) is None or names["dim"] != 0:
                return NotImplemented
            return self._take(getitem, (names["input"], names["index"]), {})
        names = dict(zip(("input", "mask"), args, strict=False)) | given
        tensor, mask = names["input"], names["mask"]
        if self._of([tensor, mask]) is not None:
            raise _refused("a mask")
        if tensor.shape != mask.shape:
            both: Any = torch.broadcast_tensors(tensor, mask)  # type: ignore[no-untyped-call]
            tensor, mask = both[0], both[1].clone()
        return self._rows_of(tensor, mask)

    def _looked_up(self, func: Any, args: Any, given: Any) -> Any:
        """``embedding``, whose operands come in both orders."""
        picked = self._of((args, given))
        if picked is None:
            return NotImplemented
        keys = ("input", "weight") if "functional" in str(func.__module__) else ("weight", "input")
        keys = ("weight", "indices") if keys[0] == "weight" and "indices" in given else keys
        names = dict(zip(keys, args, strict=False)) | given
        index = names.get("input", names.get("indices"))
        if self.rows(index) is None or self.rows(names["weight"]) is not None:
            raise _refused("embedding")
        kept = self._without_others(index, picked)
        args = tuple(kept if each is index else each for each in args)
        result = func(*args, **{k: kept if v is index else v for k, v in given.items()})
        self._mark(result, picked._replace(axis=None))
        return result

    def _extent(self, func: Any, args: Any, given: Any) -> Any:
        """``shape``, ``size`` and ``numel``."""
        picked, name = self.rows(args[0]), _name(func)
        if picked is None:
            return NotImplemented
        found = func(*args, **given)
        if name == "__len__":
            asked(found)
        if name == "numel":
            return Count(found, picked)
        if isinstance(found, tuple):
            extents: Any = (Count(found[0], picked), *found[1:])
            return torch.Size(extents)
        dim = given.get("dim", args[1] if len(args) > 1 else None)
        return found if dim % args[0].dim() else Count(found, picked)

    def _none(self, func: Any, args: Any, given: Any) -> Any:
        raise UnsupportedOperatorError(
            f"{module_line()}: {_name(func)} gives as many numbers as the data has, and only a run "
            "knows how many: take torch.sort, or count with one_hot(...).sum"
        )

    def _put(self, func: Any, args: Any, given: Any) -> Any:
        """``y[mask] = rows``."""
        tensor, index, value = args
        picked = self.rows(value)
        if self.rows(tensor) is not None:
            raise _refused("a change of some")
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
        if value.dim() != 1 + len(rest):
            raise _refused("a put of others than whole ones")
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
            self._mark(column, Picked(kept, axis, self._loops))
            columns.append(column)
        if given.get("as_tuple", _name(func) == "where"):
            return tuple(columns)
        with torch._C.DisableTorchFunction():
            stacked = torch.stack(columns, dim=-1)
        self._mark(stacked, Picked(kept, _ALL_AXES, self._loops))
        return stacked

    def _every(self, func: Any, args: Any, given: Any) -> Any:
        """``for place in mask.nonzero()``: all places, as constants."""
        picked = self.rows(args[0])
        dim = given.get("dim", args[1] if len(args) > 1 else 0)
        if picked is None or picked.loops is None or picked.axis is None or dim % args[0].dim():
            return NotImplemented
        shape, axis = picked.mask.shape, picked.axis
        if not all(isinstance(extent, int) for extent in shape):
            return NotImplemented
        if math.prod(shape) > _MOST_PLACES:
            raise UnsupportedOperatorError(
                f"{module_line()}: a loop over the {math.prod(shape)} places of a mask, each in "
                f"the graph: expected at most {_MOST_PLACES}; compute all at once, as by torch.bmm"
            )
        picked.loops.over(picked.mask)
        places = product(*map(range, shape))
        chosen = places if axis == _ALL_AXES else (each[axis] for each in places)
        return tuple(map(self._constant, chosen))

    def _constant(self, number: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            made = torch.tensor(number)
        self._constants[made] = number
        return made

    def _number(self, func: Any, args: Any, given: Any) -> Any:
        """``place.item()``, also of an index, which torch.export asks."""
        if args[0] in self._constants:
            self._places_asked.add(self._constants[args[0]])
        return NotImplemented

    def _selected_place(self, func: Any, args: Any, given: Any) -> Any:
        """``weights[place]`` of a place that a loop runs over.

        A place beyond a tensor's end is one that its mask never picks, or the class would fail
        there. What such a place gives has no effect, so the last row is as good as another.
        """
        names = dict(zip(("input", "dim", "index"), args, strict=False)) | given
        tensor, dim, place = (names[each] for each in ("input", "dim", "index"))
        asked, extent = isinstance(place, int) and place in self._places_asked, tensor.shape[dim]
        if self.rows(tensor) is None and asked and isinstance(extent, int) and place >= extent:
            return func(tensor, dim, extent - 1)
        return NotImplemented

    def _add(self, func: Any, args: Any, given: Any) -> Any:
        """``y.index_add_(0, places, rows)``."""
        names = dict(zip(("self", "dim", "index", "source"), args, strict=False)) | given
        picked = self._of([names["index"], names["source"]])
        if picked is None:
            return NotImplemented
        whole = all(self.rows(names[each]) is not None for each in ("index", "source"))
        if self.rows(names["self"]) is not None or names["dim"] != 0 or not whole:
            raise _refused("index_add")
        tensor, dim, *others = (names.pop(each) for each in ("self", "dim", "index", "source"))
        return func(tensor, dim, *(self._without_others(each, picked) for each in others), **names)

    def _sum(self, func: Any, args: Any, given: Any) -> Any:
        """``rows.sum()``, ``rows.mean()``, of all or over the rows."""
        names = dict(zip(("input", "dim", "keepdim"), args, strict=False)) | given
        rows, dim = names["input"], names.get("dim", names.get("axis"))
        picked = self.rows(rows)
        if picked is None:
            return NotImplemented
        dims = [*dim] if isinstance(dim, list | tuple) else [] if dim is None else [dim]
        dims = [each % rows.dim() for each in dims] or [*range(rows.dim())]
        if 0 not in dims:
            return NotImplemented
        kept, dtype = self._without_others(rows, picked), names.get("dtype")
        of_mean = _name(func) == "mean"
        if of_mean:
            # A sum of halves may have no end, and their mean has one.
            dtype = dtype or kept.dtype
            kept = kept.float() if dtype.itemsize < torch.float32.itemsize else kept.to(dtype)
        total = torch.sum(kept, dims, names.get("keepdim", False), dtype=None if of_mean else dtype)
        if not of_mean:
            return total
        count = picked.mask.sum() * math.prod(rows.shape[each] for each in dims if each)
        return (total / count.to(total.dtype)).to(dtype)

    def _stays(
        self, name: str, args: Any, given: Mapping[str, Any], result: Any, picked: Picked
    ) -> bool:
        """Whether an operation computes each row alone."""
        plain = _plain(name)
        operand = args[0]
        ranks = {each.dim() for each in _tensors((args, given)) if self.rows(each) is not None}
        same = ranks == {each.dim() for each in _tensors(result)}
        if plain in _BY_ELEMENT:
            # Rows of a lower rank would be another operand's columns.
            return same
        if plain in ("cat", "concat"):
            dim = given.get("dim", args[1] if len(args) > 1 else 0)
            rank = args[0][0].dim()
            return bool(dim % rank != 0)
        if plain in _CASTS:
            return True
        if self.rows(operand) is None or (plain == "expand" and not same):
            return False
        if plain in _OF_THE_FIRST:
            others = [each for each in _tensors((args[1:], given)) if self.rows(each) is not None]
            return _is_of_each_row(plain, args, given) and not others
        return _goes_along(plain, args, given)

    def _without_others(self, rows: Any, picked: Picked, fill: int = 0) -> Any:
        """Zeros for the rows that the mask does not pick, whose numbers may be anything.

        Places of a mask stay as they are, and so does what is no such rows.
        """
        own = self.rows(rows)
        if own is None or own.axis is not None or (fill and rows.dtype.is_floating_point):
            return rows
        with torch._C.DisableTorchFunction():
            kept = picked.mask.reshape(-1, *(1 for _ in rows.shape[1:]))
            result = torch.where(kept, rows, torch.full((), fill, dtype=rows.dtype))
        if fill:
            self._mark(result, picked._replace(axis=None))
        return result


_ALL_AXES: Final = -1
# Of a loop, whose text is in the graph once for each.
_MOST_PLACES: Final = 64
_NESTED: Final = (tuple, list, torch.Size)
# ``add_``, ``__iadd__``.
_CHANGES: Final = re.compile(
    r"__setitem__|__i(add|sub|mul|and|or|xor|truediv|floordiv|mod|pow)__|(?!__).*_"
)
_SPECIAL: Final[dict[str, Callable[..., Any]]] = {
    "__getitem__": MaskedRows._take,
    "__setitem__": MaskedRows._put,
    **dict.fromkeys(("masked_select", "index_select"), MaskedRows._selected),
    **dict.fromkeys(("shape", "size", "numel", "__len__"), MaskedRows._extent),
    "unbind": MaskedRows._every,
    "item": MaskedRows._number,
    "select": MaskedRows._selected_place,
    "embedding": MaskedRows._looked_up,
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


def _is_of_each_row(plain: str, args: Any, given: Mapping[str, Any]) -> bool:
    """Whether a product or a norm is of the last axes, and the rows are none of these."""
    rank = args[0].dim()
    if plain.endswith("_norm"):
        return bool(len(given.get("normalized_shape", args[1] if len(args) > 1 else ())) < rank)
    return bool(rank > 1 and (plain not in ("matmul", "mm") or args[1].dim() <= rank))


def _goes_along(plain: str, args: Any, given: Mapping[str, Any]) -> bool:
    """Whether an operation is along other axes than that of the rows, or keeps it in a shape."""
    if plain == "flatten":
        return bool(len(args) > 1 and args[1] >= 1)
    if plain in _SHAPES:
        several = len(args) > 1 and isinstance(args[1], list | tuple)
        first = next(iter(args[1] if several else args[1:]), None)
        return isinstance(first, Count) or (isinstance(first, int) and first == -1)
    if plain not in _ALONG:
        return False
    behind = 2 if plain in ("chunk", "split", "topk", "norm", "normalize") else 1
    dim = given.get("dim", args[behind] if len(args) > behind else None)
    if dim is None and plain in ("topk", "normalize", "glu"):
        dim = -1
    rank = args[0].dim() + (plain == "unsqueeze")
    dims = dim if isinstance(dim, list | tuple) else (dim,)
    return all(type(each) is int and each % rank != 0 for each in dims)


def _is_of_rows(result: Any, picked: Picked) -> bool:
    """Whether each result has as many rows as the mask has places."""
    count = picked.mask.numel()
    return all(each.dim() and _same(each.shape[0], count) for each in _tensors(result))


def _counts(value: Any) -> list[Count]:
    """The numbers of rows in arguments."""
    if isinstance(value, Count):
        return [value]
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, dict):
        value = tuple(value.values())
    return [one for each in value for one in _counts(each)] if type(value) in _NESTED else []


def _extents(value: Any) -> Any:
    """Arguments with the number of all rows for that of those that are picked."""
    if isinstance(value, Count):
        return value.extent
    return tuple(map(_extents, value)) if type(value) in _NESTED else value


def _base(tensor: Tensor) -> Tensor:
    """What a tensor is a view of."""
    return tensor if tensor._base is None else tensor._base


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
        f"{module_line()}: {what.strip('_')} of rows that a mask picks, and only a run knows how "
        "many they are: compute all rows, and take torch.where(mask, rows, others) at the end"
    )
