"""APIArg: the arguments of an API's calls are the same, differ, or follow the mode (table 2).

``same``: from call to call. ``distinct``: from call to call. ``training``: a flag equals the
training mode of the model. ``shapes``: the two tensors that a loss compares have one shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import CALL, COMPARED, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name, topic

# APIOutput has the rules about these.
# The arithmetic inside an optimizer has its numbers from the step count, and what makes tensors
# has the script's sizes.
_NOT_RULES = (
    "torch.Tensor.",
    *(f"torch.{name}" for name in ("rand", "zeros", "ones", "tensor", "full", "arange", "eye")),
)
_SUMMARIES = (".shape", ".length", ".type", ".dtype")


class APIArg(Relation):
    """An argument of an API over its calls; values themselves are not part of the rule."""

    name = "APIArg"
    apis = ("api",)
    least = 3

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Arguments that never change, always change, or follow the model's mode."""
        values: dict[tuple[str, str], list[object]] = defaultdict(list)
        modes: dict[tuple[str, str], set[tuple[object, object]]] = defaultdict(set)
        for window in windows:
            for record in window.records:
                for name in _arguments(record):
                    value = record.fields[name]
                    values[record.name, name].append(value)
                    if isinstance(value, bool):
                        modes[record.name, name].add((value, record.context.get("training")))
        for api in sorted(COMPARED):
            if any(_alike(each) for window in windows for each in window.calls(api)):
                yield {"api": api, "argument": "arg.0", "mode": "shapes"}
        for (api, argument), seen in sorted(values.items()):
            params = {"api": api, "argument": argument}
            follows = all(value is mode for value, mode in modes[api, argument])
            if len(set(map(repr, seen))) == 1 and not (modes[api, argument] and follows):
                yield {**params, "mode": "same"}
            elif len(set(map(repr, seen))) == len(seen):
                yield {**params, "mode": "distinct"}
            if {(True, True), (False, False)} <= modes[api, argument]:
                yield {**params, "mode": "training"}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each call, compared with the one before or with the mode."""
        argument, mode = params["argument"], params["mode"]
        for record in window.calls(params["api"]):
            if mode == "shapes":
                if (alike := _alike(record)) is not None:
                    one, other = (record.fields[name] for name in _BOTH)
                    found = "" if alike else f"shapes {one} and {other}, which are broadcast"
                    yield Example(alike, (record,), record.name, found)
                continue
            if argument not in record.fields or not _counts(record):
                continue
            value = record.fields[argument]
            if mode == "training":
                wanted = record.context.get("training")
                found = f"it was {value} while the model's training mode was {wanted}"
                yield Example(value == wanted, (record,), record.name, found)
                continue
            last: Record | None = memory.get(record.rank)
            memory[record.rank] = record
            if last is not None:
                before = last.fields[argument]
                holds = (before == value) == (mode == "same")
                found = "" if holds else f"it was {before!r} in step {last.step}, {value!r} here"
                yield Example(holds, (last, record), record.name, found)

    def sentence(self, params: Params) -> str:
        """The argument and the mode."""
        argument = params["argument"].removeprefix("arg.")
        shown = f"Argument {argument} of {short_name(params['api'])}"
        return {
            "same": f"{shown} is the same in all calls.",
            "distinct": f"{shown} differs from call to call.",
            "training": f"{shown} equals the training mode of the model.",
            "shapes": f"The two tensors that {short_name(params['api'])} compares have one shape.",
        }[params["mode"]]

    def concerns(self, params: Params) -> frozenset[str]:
        """The API."""
        return frozenset({topic(params["api"])})


def _counts(record: Record) -> bool:
    return record.kind == CALL and record.step >= 0 and not record.name.startswith(_NOT_RULES)


def _alike(record: Record) -> bool | None:
    """Whether the tensors of a loss have one shape; None if there are not two."""
    shapes = [record.fields.get(name) for name in _BOTH]
    return None if None in shapes else shapes[0] == shapes[1]


_BOTH = ("arg.0.shape", "arg.1.shape")


def _arguments(record: Record) -> list[str]:
    if not _counts(record):
        return []
    return [
        name
        for name, value in record.fields.items()
        if name.startswith("arg.")
        and not name.endswith(_SUMMARIES)
        and isinstance(value, bool | int | float | str)
    ]


RELATION = APIArg()
