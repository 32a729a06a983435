"""EventContain: inside a call, another call or a change of a variable happens (table 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import FORWARD, PARTS, RATE, ROUNDED, STEP, ZERO_GRAD, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name, topic

_SHOWN = 5
_NONZERO, _ZERO = "Parameter.grad becomes nonzero", "Parameter.grad becomes zero"
_NONE = "Parameter.grad becomes none"
_DATA = "Parameter.data changes"
_GENERIC = (FORWARD, STEP, "torch.nn.modules.container.")


class EventContain(Relation):
    """Every call of an API directly contains a call of another one, or a change."""

    name = "EventContain"
    apis = ("parent",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Everything seen inside a call, once training has begun."""
        seen = {
            (record.name, content)
            for window in windows
            if window.step >= 0
            for calls in window.by_name.values()
            for record in calls
            for content in window.contents[id(record)]
            # What a model or container calls is the script's choice, not a rule.
            if " " in content or not record.name.startswith(_GENERIC)
        }
        return [{"parent": parent, "child": child} for parent, child in sorted(seen)]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each completed call of the parent."""
        if window.step < 0:
            return
        child_is_module = params["child"].endswith(".forward")
        for record in window.calls(params["parent"]):
            if not record.done or "raised" in record.fields:
                continue
            # In evaluation, modules take faster paths that call other functions.
            if record.fields.get("module.training") is False:
                continue
            # A module calls parts that it has; another one of its class may have been given others.
            parts = record.fields.get(PARTS)
            if isinstance(parts, list) and child_is_module and params["child"] not in parts:
                continue
            contents = window.contents[id(record)]
            holds = params["child"] in contents
            # Gradients may be cleared to zeros.
            holds = holds or (params["child"] == _NONE and _ZERO in contents)
            # One loss may have no slope: a hinge that is met, an episode of equal rewards.
            # There is nothing to clear before the first backward call.
            if not holds and params["parent"] == ZERO_GRAD and _nothing_to_clear(record):
                continue
            if not holds and params["child"] == _DATA and ROUNDED in record.fields:
                continue
            flat = not holds and params["child"] == _NONZERO and _ZERO in contents
            # A schedule may begin, or end a cycle, at zero.
            flat = flat or (not holds and params["child"] == _DATA and RATE in record.fields)
            again = memory.get(record.rank)
            memory[record.rank] = flat
            if flat and not again:
                continue
            found = "" if holds else _said(contents)
            yield Example(holds, (record,), record.name, found)

    def sentence(self, params: Params) -> str:
        """Parent and child."""
        parent, child = short_name(params["parent"]), params["child"]
        if " " in child:
            variable, _, came = child.partition(" ")
            kind, _, attribute = variable.partition(".")
            return f"Inside {parent}, the {attribute} of at least one {kind} {came}."
        return f"{parent} calls {short_name(child)}."

    def contents(self, params: Params) -> Iterable[tuple[str, str]]:
        """The child inside the parent."""
        yield params["parent"], params["child"]

    def concerns(self, params: Params) -> frozenset[str]:
        """Both events."""
        return frozenset({topic(params["parent"]), topic(params["child"].partition(" ")[0])})


def _nothing_to_clear(record: Record) -> bool:
    return record.fields.get("gradients") == "none"


def _said(contents: frozenset[str]) -> str:
    if not contents:
        return "nothing happened inside the call"
    names = sorted(map(short_name, contents))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"only these happened inside the call: {', '.join(names[:_SHOWN])}{more}"


RELATION = EventContain()
