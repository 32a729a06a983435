"""APISequence: the calls of a training loop belong together and have an order (table 2).

``cover``: each call of the first is followed by the second before the first is called again.
``lead``: each call of the second comes after one of the first since the second was last called.
``used``: an optimizer step comes between a backward call and the clearing of its gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from tapml.invariants.record import (
    BACKWARD,
    BATCH,
    FORWARD,
    SCHEDULE,
    STEP,
    ZERO_GRAD,
    Record,
    Window,
)
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name, topic

_ALWAYS: Final = (ZERO_GRAD, FORWARD, BACKWARD, STEP)
# The order in which data goes through a training loop. All but the four above are optional: rules
# about them apply once they have been called.
_FLOW: Final = (
    BATCH,
    FORWARD,
    "torch.amp.GradScaler.scale",
    BACKWARD,
    "torch.amp.GradScaler.unscale_",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.amp.GradScaler.step",
    STEP,
    "torch.amp.GradScaler.update",
    SCHEDULE,
)
# Right loops may call these again first: several models or losses, gradients that add up.
_REPEATED: Final = (FORWARD, BACKWARD, ZERO_GRAD)
# They change what a backward call made, so it comes before them.
_OF_GRADIENTS: Final = (
    "torch.amp.GradScaler.unscale_",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
)
_STEPS: Final = (STEP, "torch.amp.GradScaler.step")
_LOOP: Final = frozenset((ZERO_GRAD, *_FLOW))


class _State(msgspec.Struct, eq=False):
    """Of a process: the last call of one API, and what came since.

    Attributes
    ----------
    came, stepped
        Whether the other API, or an optimizer step, came since.
    known
        Whether the other came at all.
    rhythm
        Whether it came between the first two calls: a schedule may follow epochs instead of steps.
    """

    last: Record | None = None
    came: bool = False
    stepped: bool = False
    known: bool = False
    rhythm: bool | None = None


class APISequence(Relation):
    """Two calls of the training loop in order."""

    name = "APISequence"
    least = 3

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Neighbours in the flow of data, of the calls that the run makes."""
        seen = {
            record.name for window in windows for process in _events(window) for record in process
        }
        flow = [name for name in _FLOW if name in seen]
        pairs: list[tuple[str, str]] = list(pairwise(flow))
        if ZERO_GRAD in seen and BACKWARD in seen:
            pairs.append((ZERO_GRAD, BACKWARD))
        found = [
            {"first": first, "second": second, "mode": mode}
            for first, second in pairs
            for mode in ("cover", "lead")
            if mode == "lead" or first not in _REPEATED
        ]
        if ZERO_GRAD in seen and BACKWARD in seen:
            found.append({"first": BACKWARD, "second": ZERO_GRAD, "mode": "used"})
        return found

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each pair of calls of the one with what came between."""
        if params["mode"] == "used":
            for place, process in enumerate(_events(window)):
                yield from _used(place, process, memory)
            return
        asked, needed = _asked_and_needed(params)
        of_gradients = _is_of_gradients(asked, needed)
        for place, process in enumerate(_events(window)):
            state = memory.setdefault(place, _State())
            for record in process:
                if record.name == needed:
                    state.came = state.known = True
                elif record.name == asked:
                    # A loop may clear gradients at its end, so the first backward is no example.
                    begun = params["mode"] == "lead" and needed != ZERO_GRAD
                    if state.last is None:
                        decided = begun
                    else:
                        # Gradients add up on purpose until a step uses them.
                        decided = needed != ZERO_GRAD or state.stepped
                        if state.rhythm is None:
                            state.rhythm = state.came or needed != SCHEDULE
                    # A closure makes its calls inside the step.
                    inside = asked == STEP and any(
                        each.name == needed and each.parent >= record.id for each in process
                    )
                    decided = decided and (state.came or not inside)
                    if decided and state.rhythm is not False and (state.known or needed in _ALWAYS):
                        records = (state.last or record, record)
                        found = "" if state.came else self._said(params, state.last)
                        yield Example(state.came, records, asked, found)
                    state.last, state.came, state.stepped = record, False, False
                if record.name == STEP:
                    state.stepped = True
                elif record.name == BACKWARD and of_gradients:
                    state.came = False

    def _said(self, params: Params, last: Record | None) -> str:
        asked, needed = _asked_and_needed(params)
        if _is_of_gradients(asked, needed):
            between = f"between a backward call and {short_name(asked)}"
            return f"{short_name(needed)} was not called {between}"
        since = "since training began" if last is None else f"since the call in step {last.step}"
        return f"{short_name(asked)} was called, and {short_name(needed)} was not, {since}"

    def sentence(self, params: Params) -> str:
        """The order."""
        first, second = short_name(params["first"]), short_name(params["second"])
        if params["mode"] == "cover":
            return f"After {first}, {second} is called before {first} is called again."
        if params["mode"] == "used":
            return (
                "An optimizer step uses the gradients of a backward call before they are cleared."
            )
        if params["first"] == ZERO_GRAD:
            return f"Before the first {second} after an optimizer step, {first} has been called."
        last = "backward call" if _is_of_gradients(*_asked_and_needed(params)) else second
        return f"Before each {second}, {first} has been called since the last {last}."

    def concerns(self, params: Params) -> frozenset[str]:
        """Both calls; a missing call is named by its own name, not by what it is part of."""
        _, needed = _asked_and_needed(params)
        return frozenset({needed, topic(needed)})

    def missing(
        self, params: Params, called: Mapping[str, Record], steps: int
    ) -> tuple[str, str] | None:
        """A call of the loop that was left out altogether, or follows epochs and not steps."""
        asked, needed = _asked_and_needed(params)
        if params["mode"] == "used" or asked not in called:
            return None
        # To make a scheduler is a call of it. A program without one is set up in another way.
        if asked == SCHEDULE or (needed == SCHEDULE and needed not in called):
            return None
        rarely = "is called less often than" if needed in called else "is never called beside"
        return asked, f"{short_name(needed)} {rarely} {short_name(asked)}"


def _asked_and_needed(params: Params) -> tuple[str, str]:
    """The API whose calls are examples, and the one that comes with each of them."""
    if params["mode"] == "used":
        return params["second"], STEP
    first, second = params["first"], params["second"]
    return (first, second) if params["mode"] == "cover" else (second, first)


def _is_of_gradients(asked: str, needed: str) -> bool:
    return needed in _OF_GRADIENTS and asked in (*_OF_GRADIENTS, *_STEPS)


def _used(place: int, process: list[Record], memory: Memory) -> Iterator[Example]:
    """Each clearing of gradients; not those of a closure inside an optimizer step."""
    for record in process:
        if record.name in _STEPS:
            memory.pop(place, None)
        elif record.parent < 0 and record.name == BACKWARD:
            memory[place] = record.step
        elif record.parent < 0 and record.name == ZERO_GRAD:
            made: int | None = memory.pop(place, None)
            if record.fields.get("gradients") == "nonzero":
                found = (
                    f"gradients made in step {made} were cleared before an optimizer step used them"
                )
                yield Example(made is None, (record,), ZERO_GRAD, found)


def _events(window: Window) -> list[list[Record]]:
    return window.kept(_events_in)


def _events_in(window: Window) -> list[list[Record]]:
    return [
        [
            record
            for record in process
            if record.name in _LOOP
            and record.step >= 0
            and record.context.get("stage") == "train"
            and "raised" not in record.fields
        ]
        for process in window.processes
    ]


RELATION = APISequence()
