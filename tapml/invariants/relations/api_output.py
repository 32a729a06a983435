"""APIOutput: the result of an API meets a constraint (table 2).

``dtype``: without autocast, it has the dtype of the first argument. ``autocast``: under autocast
it has the autocast dtype. ``rows``: it has as many rows as the first argument. ``finite``: a
single number is finite. ``bounded``: the last extent does not exceed an argument whose name begins
with ``max``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from tapml.invariants.record import CALL, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name, topic


class APIOutput(Relation):
    """A constraint on a result, by itself or relative to the arguments."""

    name = "APIOutput"
    apis = ("api",)
    # Shapes and dtypes are what the rule is about.
    avoided = ("arg.", "result")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Every constraint that some call meets."""
        seen = {
            (record.name, mode)
            for window in windows
            for record in window.records
            for mode in _CONSTRAINTS
            if (met := _meets(record, mode)) is not None and met[0]
        }
        return [{"api": api, "mode": mode} for api, mode in sorted(seen)]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each call to which the constraint applies."""
        for record in window.calls(params["api"]):
            met = _meets(record, params["mode"])
            if met is not None:
                yield Example(met[0], (record,), record.name, met[1])

    def sentence(self, params: Params) -> str:
        """The constraint."""
        api = short_name(params["api"])
        return {
            "dtype": f"Without autocast, the result of {api} has the dtype of its first argument.",
            "autocast": f"Under autocast, the result of {api} has the autocast dtype.",
            "rows": f"The result of {api} has as many rows as its first argument.",
            "finite": f"The result of {api} is finite.",
            "bounded": f"The last extent of the result of {api} does not exceed its max argument.",
        }[params["mode"]]

    def concerns(self, params: Params) -> frozenset[str]:
        """The API."""
        return frozenset({topic(params["api"])})


def _meets(record: Record, mode: str) -> tuple[bool, str] | None:
    """Whether a call meets a constraint, and what it had; None where it does not apply."""
    inside = record.name.startswith(("torch.Tensor.", "torch.optim."))
    if record.kind != CALL or record.step < 0 or not record.done or inside:
        return None
    return _CONSTRAINTS[mode](record)


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


def _rows(record: Record) -> tuple[bool, str] | None:
    given, shape = record.fields.get("arg.0.shape"), record.fields.get("result.shape")
    if not isinstance(given, list) or not isinstance(shape, list) or not given or not shape:
        return None
    same = given[0] == shape[0]
    return same, "" if same else f"{shape[0]} rows from {given[0]}"


def _bounded(record: Record) -> tuple[bool, str] | None:
    shape = record.fields.get("result.shape")
    bounds = {
        name.removeprefix("arg."): value
        for name, value in record.fields.items()
        if name.startswith("arg.max") and type(value) is int
    }
    if not bounds or not isinstance(shape, list) or not shape:
        return None
    return shape[-1] <= min(bounds.values()), f"shape {shape} with {bounds}"


_CONSTRAINTS: Final[Mapping[str, Callable[[Record], tuple[bool, str] | None]]] = {
    "autocast": _autocast,
    "bounded": _bounded,
    "dtype": _dtype,
    "finite": _finite,
    "rows": _rows,
}

RELATION = APIOutput()
