"""APIOutput: the result of an API meets a constraint (table 2).

``dtype``: without autocast, it has the dtype of the first argument. ``autocast``: under autocast
it has the autocast dtype. ``same``: its dtype is the same for arguments of the same dtypes.
``rows``: it has as many rows as the first argument. ``shape``: it has the shape of the first
argument. ``finite``: a single number is finite. ``bounded`` and ``least``: the last extent does not
exceed an argument whose name begins with ``max``, or is at least one that begins with ``min``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tapml.invariants.record import CALL, Record, Value, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name, topic


class APIOutput(Relation):
    """A constraint on a result, by itself or relative to the arguments."""

    name = "APIOutput"
    apis = ("api",)
    # Shapes and dtypes are what the rule is about.
    avoided = ("arg.", "result")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Every constraint that some call meets."""
        seen: set[tuple[str, str]] = set()
        shapes: dict[str, list[list[Any]]] = defaultdict(list)
        for window in windows:
            for record in filter(_counts, window.records):
                given = _given(record)
                # Where it is that of the first argument, this is the rule.
                if given and record.fields.get("result.dtype") not in (None, given[0]):
                    seen.add((record.name, "same"))
                for mode, constraint in _CONSTRAINTS.items():
                    met = constraint(record)
                    if met is not None and met[0]:
                        seen.add((record.name, mode))
                        if mode == "shape" and (both := _shapes(record)) is not None:
                            shapes[record.name].append(both[1])
        seen -= {(api, "shape") for api, found in shapes.items() if not _vary(found)}
        return [{"api": api, "mode": mode} for api, mode in sorted(seen)]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each call to which the constraint applies."""
        for record in filter(_counts, window.calls(params["api"])):
            if params["mode"] == "same":
                yield from _same(record, memory)
                continue
            met = _CONSTRAINTS[params["mode"]](record)
            if met is not None:
                yield Example(met[0], (record,), record.name, met[1])

    def sentence(self, params: Params) -> str:
        """The constraint."""
        api = short_name(params["api"])
        return {
            "dtype": f"Without autocast, the result of {api} has the dtype of its first argument.",
            "autocast": f"Under autocast, the result of {api} has the autocast dtype.",
            "same": f"For arguments of one dtype, the result of {api} always has the same dtype.",
            "rows": f"The result of {api} has as many rows as its first argument.",
            "shape": f"The result of {api} has the shape of its first argument.",
            "finite": f"The result of {api} is finite.",
            "bounded": f"The last extent of the result of {api} does not exceed its max argument.",
            "least": f"The last extent of the result of {api} is at least its min argument.",
        }[params["mode"]]

    def concerns(self, params: Params) -> frozenset[str]:
        """The API."""
        return frozenset({topic(params["api"])})


def _counts(record: Record) -> bool:
    inside = record.name.startswith(("torch.Tensor.", "torch.optim."))
    return record.kind == CALL and record.step >= 0 and record.done and not inside


def _given(record: Record) -> list[Value]:
    """The dtypes of a call's arguments; empty if none is a tensor."""
    fields = record.fields
    if not any(name.endswith(".shape") and name.startswith("arg.") for name in fields):
        return []
    return [fields[name] for name in fields if name.startswith("arg.") and name.endswith(".dtype")]


def _same(record: Record, memory: Memory) -> Iterator[Example]:
    """A call beside the last one with such arguments."""
    given, dtype = _given(record), record.fields.get("result.dtype")
    if not given or dtype is None:
        return
    key = (record.rank, record.context.get("autocast"), *map(str, given))
    last: Record = memory.get(key, record)
    memory[key] = record
    if last is not record:
        before = last.fields["result.dtype"]
        found = "" if before == dtype else f"{dtype}, {before} before"
        yield Example(before == dtype, (last, record), record.name, found)


def _finite(record: Record) -> tuple[bool, str] | None:
    finite = record.fields.get("result.finite")
    return (finite, "it was infinite or NaN") if isinstance(finite, bool) else None


def _autocast(record: Record) -> tuple[bool, str] | None:
    cast, dtype = record.context.get("autocast"), record.fields.get("result.dtype")
    return (dtype == cast, f"{dtype}, not {cast}") if cast and dtype is not None else None


def _dtype(record: Record) -> tuple[bool, str] | None:
    given, dtype = record.fields.get("arg.0.dtype"), record.fields.get("result.dtype")
    # Autocast has a rule of its own.
    if dtype is None or given is None or record.context.get("autocast"):
        return None
    return dtype == given, "" if dtype == given else f"{dtype} from {given}"


def _shapes(record: Record) -> tuple[list[Any], list[Any]] | None:
    given, shape = record.fields.get("arg.0.shape"), record.fields.get("result.shape")
    if not isinstance(given, list) or not isinstance(shape, list) or not given or not shape:
        return None
    return given, shape


def _vary(shapes: Sequence[list[Any]]) -> bool:
    """Whether features differ, on whichever axis: one layer may keep its width by chance."""
    return all(len({shape[axis] for shape in shapes if len(shape) > 1}) > 1 for axis in (1, -1))


def _rows(record: Record) -> tuple[bool, str] | None:
    shapes = _shapes(record)
    if shapes is None:
        return None
    given, shape = shapes
    same = given[0] == shape[0]
    return same, "" if same else f"{shape[0]} rows from {given[0]}"


def _shape(record: Record) -> tuple[bool, str] | None:
    shapes = _shapes(record)
    if shapes is None:
        return None
    given, shape = shapes
    return shape == given, "" if shape == given else f"shape {shape} from {given}"


def _limits(record: Record, begin: str) -> tuple[int, dict[str, int]] | None:
    """The last extent of the result, and whole numbers that arguments of such names have."""
    shape = record.fields.get("result.shape")
    limits = {
        name.removeprefix("arg."): value
        for name, value in record.fields.items()
        # Of values themselves, `min` and `max` are bounds.
        if name.startswith(f"arg.{begin}") and name != f"arg.{begin}" and type(value) is int
    }
    return (shape[-1], limits) if limits and isinstance(shape, list) and shape else None


def _bounded(record: Record) -> tuple[bool, str] | None:
    if (seen := _limits(record, "max")) is None:
        return None
    extent, limits = seen
    return extent <= min(limits.values()), f"a last extent of {extent} with {limits}"


def _least(record: Record) -> tuple[bool, str] | None:
    if (seen := _limits(record, "min")) is None:
        return None
    extent, limits = seen
    return extent >= max(limits.values()), f"a last extent of {extent} with {limits}"


_CONSTRAINTS: Final[Mapping[str, Callable[[Record], tuple[bool, str] | None]]] = {
    "autocast": _autocast,
    "bounded": _bounded,
    "dtype": _dtype,
    "finite": _finite,
    "least": _least,
    "rows": _rows,
    "shape": _shape,
}

RELATION = APIOutput()
