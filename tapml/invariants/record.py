"""The one record schema of traces, and windows of records: one window per optimizer step.

A run emits rows. A call has two, one at its entry and one at its return, so the trace of a killed
run shows which calls were open. Rows become records, and the records of one step of all ranks are
a window: what relations look at. A stored trace and a running process give the same windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

Value: TypeAlias = str | int | float | bool | list[Any] | None
Fields: TypeAlias = Mapping[str, Value]
Made = TypeVar("Made")

CALL: Final = "call"
RETURN: Final = "return"
CHANGE: Final = "change"
STATE: Final = "state"
END: Final = "end"
SEEN: Final = "seen"
"""The field of a return in a watched run with what was called or changed inside the call."""

BEFORE_TRAINING: Final = -1
"""The step of records before the first training step begins."""

PLANNED_STEPS: Final = "meta.planned_steps"
"""Where a context has how many optimizer steps the run is to make."""
PLANNED_BATCHES: Final = "meta.planned_batches"
"""Where it has how many batches an epoch of training is to have, if these are not all."""

BATCH: Final = "torch.utils.data.DataLoader.__next__"
BACKWARD: Final = "torch.autograd.backward"
FORWARD: Final = "model.forward"
"""The forward call of a model as a whole, whatever its class."""
STEP: Final = "torch.optim.Optimizer.step"
ZERO_GRAD: Final = "torch.optim.Optimizer.zero_grad"
SCHEDULE: Final = "torch.optim.lr_scheduler.LRScheduler.step"
SAVE: Final = "torch.save"
LOAD: Final = "torch.nn.Module.load_state_dict"
LOAD_OPTIMIZER: Final = "torch.optim.Optimizer.load_state_dict"
LOAD_SCHEDULE: Final = "torch.optim.lr_scheduler.LRScheduler.load_state_dict"
MAKE: Final = "torch.optim.Optimizer.__init__"
CLIPS: Final = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")
CURRENT: Final = "weights.current"
"""The field of a checkpoint with whether its weights are those of a model that ran."""
ACTIVATION: Final = "arg.activation"
"""The field of a loss in training whose first argument is the result of an activation function."""
INITIALISE: Final = "torch.nn.init."
"""How the names of functions begin that give a variable its first values."""
VARIABLE: Final = "variable"
"""The field of such a call with the variable's number in its process."""
PARTS: Final = "parts"
"""The field of a module's forward call with the APIs of the modules that it has as parts."""
WITHOUT: Final = "input.without"
"""The field of a whole model's call: how many calls in training up to this one, in a row, got no
result of the call before; 0 if this one did, at most :data:`MANY`."""
MANY: Final = 12
REPEATED: Final = "input.repeated"
"""The same: whether it had these arguments before, since the last optimizer step."""
CHANGED: Final = "input.changed"
"""The same, in training: whether it is the first call of its model in a step, and its arguments
differ from those of the first call in the step before."""
UNTRACKED: Final = "norms.untracked"
"""The same, in evaluation: how many norms have trained weights, and statistics of no batch."""
TARGET: Final = "target.changed"
"""The field of a loss in training with whether its target differs from that of the step before.
Only if the target has fractions and the model's input differs."""
ORIGIN: Final = "target.origin"
"""The field of a loss with where its target comes from: a tensor of the batch, or rows beside the
model's input; see :meth:`~tapml.invariants.origins.Origins.of`."""
ELSEWHERE: Final = "elsewhere"
"""The origin of a target that was made of neither."""
NODE: Final = "result.node"
"""The field of a loss with the kind of node that its result has in the graph of gradients."""
GRAPH: Final = "graph"
"""The field of a backward call with the kinds of nodes in the graph that it begins with."""
SCHEDULED: Final = "optimizer.steps"
"""The field of a scheduler's step with whether its optimizer has stepped, where one has."""
SCHEDULE_PLACE: Final = "optimizer.place"
"""The same: the place of its optimizer among those that step."""
CARRIED: Final = "gradients.carried"
"""The field of an optimizer's step, from its second on, with whether it has gradients that it used
in the step before."""
UNUSED: Final = "unused"
"""The field of an optimizer's ``zero_grad`` with whether it clears gradients that came after its
step."""
AGAIN: Final = "parameters.again"
"""The field of an optimizer that is made with whether it gets parameters that are what the last
step of another one left."""
RATE: Final = "rate.zero"
"""The field of an optimizer's step whose learning rates are all zero."""
BEST: Final = "score.best"
"""The field of a checkpoint after an evaluation with whether its weights had the lowest loss."""
OVER: Final = "score.over"
"""The same: whether the last evaluation was of other weights."""
SCORE: Final = "score.loss"
"""The same: the API of the loss."""
ROUNDED: Final = "grad.tiny"
"""The field of a variable's state that did not change, and whose step is rounding error; also of
an optimizer's step in which all were such."""
IDLE: Final = "model.without_gradients"
"""The field of a variable's state if its model never ran with gradients."""
MODEL: Final = "model.place"
"""The field of a variable's state with the place of its model in its process; -1 without one."""
COMPARED: Final = frozenset(
    f"torch.nn.functional.{name}"
    for name in [
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "huber_loss",
        "l1_loss",
        "mse_loss",
        "smooth_l1_loss",
    ]
)
"""Losses with a target of numbers."""
WITH_TARGET: Final = COMPARED | {
    "torch.nn.functional.cross_entropy",
    "torch.nn.functional.nll_loss",
}
"""Losses whose second argument is a target."""
ON_LOGITS: Final = frozenset(
    f"torch.nn.functional.{name}"
    for name in ["binary_cross_entropy_with_logits", "cross_entropy", "mse_loss", "nll_loss"]
)
"""Losses that an activation function before them makes other ones; see :data:`ACTIVATION`."""
OVERWRITE: Final = "torch.nn.Module.__setattr__"
"""An attribute of a module gets another value, and not from the module itself."""


class Row(NamedTuple):
    """What a run emits, one row of a trace.

    Attributes
    ----------
    kind
        ``call``, ``return``, ``change`` (of a variable), ``state`` (of a variable after a step) or
        ``end`` (of the process).
    name
        The API's qualified name, or the variable's name.
    id, parent
        Number of the call in its process, and of the call around it; -1 if none.
    step
        Optimizer steps that have been completed; -1 before training begins.
    rank
        Rank in the job; 0 without one.
    thread
        0 is the thread that started the recording.
    nanoseconds
        Monotonic time.
    source
        ``file:line`` of the script that made the call; empty if it is not known.
    digest
        Digest of a whole tensor; empty if it is not one.
    context
        Epoch, stage, training flag, gradient mode, autocast dtype and :func:`set_meta`'s values.
    fields
        Summaries of arguments, results or attributes.
    """

    kind: str
    name: str
    id: int
    parent: int
    step: int
    rank: int
    thread: int
    nanoseconds: int
    source: str
    digest: str
    context: Fields
    fields: Fields


class Record(msgspec.Struct, eq=False):
    """A call with its result, or a change or state of a variable; attributes as of :class:`Row`."""

    kind: str
    name: str
    id: int
    parent: int
    step: int
    rank: int
    source: str
    digest: str
    context: Fields
    fields: Fields
    done: bool = False
    children: list[Record] = []
    seen: Sequence[str] = ()

    @property
    def facts(self) -> dict[str, Value]:
        """Fields and context, for preconditions."""
        return {"rank": self.rank, **self.context, **self.fields}


class Window(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The records of one step, by process.

    Attributes
    ----------
    step
        Its number; -1 is the time before training.
    processes
        Records of each process, in order.
    last
        Whether the run ended here; the step may be incomplete.
    all_seen
        Whether nothing that the run did is missing: it ended by itself, and all its ranks are here.
    """

    step: int
    processes: tuple[tuple[Record, ...], ...]
    last: bool = False
    all_seen: bool = False

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """All records, one process after the other."""
        return tuple(record for process in self.processes for record in process)

    @cached_property
    def by_name(self) -> dict[str, list[Record]]:
        """Calls by API."""
        found: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            if record.kind == CALL:
                found[record.name].append(record)
        return found

    @cached_property
    def states(self) -> list[Record]:
        """States of variables after the step."""
        return [record for record in self.records if record.kind == STATE]

    @cached_property
    def contents(self) -> dict[int, frozenset[str]]:
        """By the identity of a call's record: what happened directly inside it."""
        return {
            id(record): frozenset([*map(content_name, record.children), *record.seen])
            for record in self.records
            if record.kind == CALL
        }

    @cached_property
    def _kept(self) -> dict[Callable[[Window], Any], Any]:
        return {}

    def kept(self, make: Callable[[Window], Made]) -> Made:
        """What a function makes of this window, made once for all invariants."""
        if make not in self._kept:
            self._kept[make] = make(self)
        made: Made = self._kept[make]
        return made

    def calls(self, name: str) -> list[Record]:
        """The calls of an API."""
        return self.by_name.get(name, [])


def content_name(record: Record) -> str:
    """What a record is inside a call: an API, or a change such as ``data changes``."""
    if record.kind == CALL:
        return record.name
    came = f"becomes {record.fields['to']}" if "to" in record.fields else "changes"
    return f"{record.fields.get('type')}.{record.fields.get('attribute')} {came}"


class Assembler:
    """Makes windows out of the rows of one process."""

    def __init__(self) -> None:
        self._open: dict[int, Record] = {}
        self._records: list[Record] = []
        self._step = BEFORE_TRAINING
        self.end: Row | None = None

    def feed(self, row: Row) -> tuple[int, tuple[Record, ...]] | None:
        """Take a row; returns a step and its records if this row begins a later step."""
        if row.kind == RETURN:
            called = self._open.pop(row.id, None)
            if called is not None:
                called.fields = {**called.fields, **row.fields}
                seen = called.fields.pop(SEEN, None)
                called.seen = seen if isinstance(seen, list) else ()
                called.digest = row.digest or called.digest
                called.done = True
            return None
        if row.kind == END:
            self.end = row
            return None
        closed = None
        if row.step > self._step and row.kind != STATE:
            closed = self.close()
            self._step = row.step
        record = Record(
            row.kind,
            row.name,
            row.id,
            row.parent,
            self._step,
            row.rank,
            row.source,
            row.digest,
            row.context,
            row.fields,
            done=row.kind != CALL,
        )
        parent = self._open.get(row.parent)
        if parent is not None:
            parent.children.append(record)
        if row.kind == CALL:
            self._open[row.id] = record
        self._records.append(record)
        return closed

    def close(self) -> tuple[int, tuple[Record, ...]]:
        """The step at hand and its records so far; the next row begins another."""
        records, self._records = tuple(self._records), []
        return self._step, records


def windows_of(processes: Iterable[Iterable[Row]]) -> Iterator[Window]:
    """The windows of a job in order of their steps.

    Parameters
    ----------
    processes
        The rows of each process. Each is read only as far as the step at hand.
    """
    ends: list[Row] = []
    streams = [_parts(rows, ends) for rows in processes]
    heads = [next(stream, None) for stream in streams]
    while any(head is not None for head in heads):
        step = min(head[0] for head in heads if head is not None)
        found: list[tuple[Record, ...]] = []
        for place, head in enumerate(heads):
            mine = head is not None and head[0] == step
            found.append(head[1] if mine and head is not None else ())
            if mine:
                heads[place] = next(streams[place], None)
        last = all(head is None for head in heads)
        whole = [end for end in ends if not end.fields.get("failure")]
        ranks = max((int(str(end.context.get("world", 1))) for end in whole), default=0)
        yield Window(step, tuple(found), last, last and len(whole) == len(streams) >= ranks)


def _parts(rows: Iterable[Row], ends: list[Row]) -> Iterator[tuple[int, tuple[Record, ...]]]:
    assembler = Assembler()
    for row in rows:
        closed = assembler.feed(row)
        if closed is not None and closed[1]:
            yield closed
    if assembler.end is not None:
        ends.append(assembler.end)
    closed = assembler.close()
    if closed[1]:
        yield closed
