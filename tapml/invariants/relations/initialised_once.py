"""InitialisedOnce: no line of code gives one variable its first values twice.

A model whose parts are initialised by themselves and again by what holds them loses what was
loaded or tuned in between, and takes longer to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import INITIALISE, MAKE, VARIABLE, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name


class InitialisedOnce(Relation):
    """Each call of ``torch.nn.init`` on a variable; new beside the paper's relations."""

    name = "InitialisedOnce"
    structural = True
    least = 1
    # What was drawn, and for which shape, is the script's choice.
    avoided = ("arg.", "result", "line", VARIABLE)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if the run initialises variables."""
        if any(_initialises(record) for window in windows for record in window.records):
            yield {}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each call; the line before it is known by the variable's number in its process."""
        # Between two steps a model may begin anew, as for another fold: with a new optimizer.
        anew = {record.rank for record in window.calls(MAKE)} if window.step > 0 else set()
        for record in window.records:
            if not _initialises(record):
                continue
            # One line initialises many variables; several lines may each have their part in one.
            key = (record.rank, record.fields[VARIABLE], record.fields["line"])
            times, step = memory.get(key, (0, window.step))
            times = 1 if record.rank in anew and step < window.step else times + 1
            memory[key] = times, window.step
            shape = record.fields.get("arg.0.shape")
            found = f"a variable of shape {shape} was initialised {times} times by one line"
            yield Example(times == 1, (record,), short_name(record.name), found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "No line of code initialises a variable twice."

    def concerns(self, params: Params) -> frozenset[str]:
        """Initialisation."""
        return frozenset({"initialisation"})

    def calls(self, params: Params) -> frozenset[str]:
        """None that only a function mode sees: ``torch.nn.init`` is wrapped."""
        return frozenset()


def _initialises(record: Record) -> bool:
    return record.name.startswith(INITIALISE) and VARIABLE in record.fields


RELATION = InitialisedOnce()
