"""What a process records: the stack of open calls, the context, and rows for a sink."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import msgspec
import torch

from tapml.invariants.context import Context
from tapml.invariants.record import (
    BEFORE_TRAINING,
    CALL,
    END,
    RETURN,
    SEEN,
    STATE,
    Fields,
    Row,
    Value,
)
from tapml.invariants.repeating import Repeating
from tapml_targets.errors import InputError

_LIBRARIES: Final = tuple(
    f"{Path(place).resolve()}{os.sep}"
    for place in (Path(torch.__file__).parent, Path(__file__).parent)
)


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:  # It was removed.
        return Path(os.sep)


# A script may go elsewhere.
_HERE: Final = _here()
_BUFFERED: Final = 512
_FRAMES: Final = 40
_NO_CONTEXT: Final[Fields] = {}


def _wait_for_gloo() -> None:
    # After its last collective a thread of gloo lets go of the function mode. It needs Python's
    # lock for that, and where Python has ended by then the process is aborted.
    time.sleep(0.3)


class OpenCall(msgspec.Struct, eq=False):
    """A call that has not returned.

    Attributes
    ----------
    number, name
        Its id and API.
    blind
        Nobody looks at it: it has no row, and what happens inside it belongs to no call.
    seen
        What :meth:`Recorder.touch` noted inside it.
    """

    number: int
    name: str
    blind: bool = False
    seen: set[str] | None = None


class _Thread(threading.local):
    """What a thread is in the middle of; each thread has its own.

    Attributes
    ----------
    number
        0 is the thread that started the recording.
    muted
        Whether it is inside the recording or a muted call.
    stack
        Its open calls from the outermost.
    """

    def __init__(self, main: int) -> None:
        mine = threading.get_ident()
        self.number = 0 if mine == main else mine % 1_000_000
        self.muted = False
        self.stack: list[OpenCall] = []


class _Aside:
    """Records nothing of this thread, and sees tensors without function modes."""

    __slots__ = ("_before", "_thread", "_torch")

    def __init__(self, thread: _Thread, *, torch_functions: bool) -> None:
        self._thread = thread
        self._torch = None if torch_functions else torch._C.DisableTorchFunction()

    def __enter__(self) -> None:
        self._before = self._thread.muted
        self._thread.muted = True
        if self._torch is not None:
            self._torch.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._torch is not None:
            self._torch.__exit__(None, None, None)
        self._thread.muted = self._before


def _takes_nothing(*_: object) -> bool:
    return False


class Sink(Protocol):
    """Where rows go."""

    def write(self, rows: list[Row], *, wait: bool) -> None:
        """Take rows; with `wait`, return only when they cannot be lost with this process."""


class Recorder:
    """Collects rows of this process; safe to use from several threads.

    Attributes
    ----------
    step
        Optimizer steps that have been completed; -1 before training begins.
    context
        What the process is doing.
    enabled
        Whether rows are taken. A forked child turns it off: most are workers of a data loader,
        whose parent records what they deliver.
    over
        Whether the recording has ended; a script may keep a function that was wrapped for it.
    again
        Makes the sink of a child that trains after a parent that did not forked it, as ranks are
        started; without one it is not recorded.
    """

    def __init__(self, sink: Sink, repeating: Repeating | None = None) -> None:
        self.step = BEFORE_TRAINING
        self.context = Context()
        self.rank = int(os.environ.get("RANK", "0"))
        self.enabled = True
        self.over = False
        self.again: Callable[[], Sink] | None = None
        self._forked = False
        self.last_source = ""
        self._sink = sink
        self._rows: list[Row] = []
        self._thread = _Thread(threading.get_ident())
        self._next = 0
        self._files: dict[str, str | None] = {}
        self._repeating = repeating
        # Whether a step of a watched run that repeats the one before needs no row.
        self._takes = repeating.takes if repeating is not None else _takes_nothing

    def joins(self, rank: int, world: int) -> None:
        """Take this process's place in its process group."""
        self.rank = rank
        self.context.join(world)
        atexit.unregister(_wait_for_gloo)
        atexit.register(_wait_for_gloo)

    def forked(self) -> None:
        """Note that this is a child; one whose parent trains is no rank of its own."""
        self.enabled, self._forked = False, self.step == BEFORE_TRAINING

    def wakes(self) -> bool:
        """A forked child trains: if it has a sink of its own, it is recorded from here on."""
        if not self._forked or self.again is None:
            return False
        self._forked, self.enabled = False, True
        self._sink, self._rows = self.again(), []
        self._thread = _Thread(threading.get_ident())
        self.step = BEFORE_TRAINING
        self.context.restart()
        return True

    @property
    def muted(self) -> bool:
        """Whether this thread is inside the recording or a muted call, or the recording is over."""
        return not self.enabled or self.over or self._thread.muted

    def mute(self) -> AbstractContextManager[None]:
        """Record nothing of this thread inside the block."""
        return _Aside(self._thread, torch_functions=True)

    def aside(self) -> AbstractContextManager[None]:
        """For the recording's own looks at tensors: mute, and bypass the function modes."""
        return _Aside(self._thread, torch_functions=False)

    def open_calls(self) -> list[OpenCall]:
        """The open calls of this thread from the outermost."""
        return self._thread.stack

    def begin_training(self) -> None:
        """Training begins with this call; what came before was set-up."""
        if self.step == BEFORE_TRAINING:
            self.step = 0
            self.context.follow(training=True)

    def enter(self, name: str, fields: Fields, digest: str = "") -> int:
        """Record the entry of a call and return its id."""
        thread, context = self._thread, self.context.now()
        stack = thread.stack
        number = self._next
        self._next = number + 1
        parent = stack[-1].number if stack else -1
        if thread.number or not self._takes(CALL, name, number, parent, digest, context, fields):
            self._make(CALL, name, number, parent, digest, context, fields)
        stack.append(OpenCall(number, name))
        return number

    @property
    def blind(self) -> bool:
        """Whether nobody looks at the innermost open call."""
        stack = self._thread.stack
        return bool(stack) and stack[-1].blind

    def enter_blind(self, name: str) -> int:
        """A call that nobody looks at begins; :meth:`leave` ends it."""
        number = self._next
        self._next += 1
        self._thread.stack.append(OpenCall(number, name, blind=True))
        return number

    def touch(self, name: str) -> None:
        """Something happens inside the innermost open call: its return says what, once each."""
        stack = self._thread.stack
        call = stack[-1] if stack else None
        if call is not None and not call.blind:
            if call.seen is None:
                call.seen = set()
            call.seen.add(name)

    def leave(self, number: int, fields: Fields, digest: str = "") -> None:
        """Record the return of a call; calls above it that raised are closed with it."""
        thread = self._thread
        stack, call = thread.stack, None
        while stack and stack[-1].number >= number:
            call = stack.pop()
            if call.number == number:
                break
        if call is not None and call.seen:
            fields = {**fields, SEEN: sorted(call.seen)}
        if call is not None and call.blind:
            return
        name = call.name if call else ""
        # Nobody asks a return of a watched run for its context: its call has it.
        context = self.context.now() if self._repeating is None else _NO_CONTEXT
        if thread.number or not self._takes(RETURN, name, number, -1, digest, context, fields):
            self._make(RETURN, name, number, -1, digest, context, fields, source="")

    def note(self, kind: str, name: str, fields: Fields, digest: str = "") -> None:
        """Record a change or state of a variable, inside the innermost open call."""
        thread, context = self._thread, self.context.now()
        parent = thread.stack[-1].number if thread.stack else -1
        if thread.number or not self._takes(kind, name, -1, parent, digest, context, fields):
            source = self.last_source
            self._make(kind, name, -1, parent, digest, context, fields, source=source)

    def note_states(self, names: list[str], states: list[Fields], digests: list[str]) -> None:
        """Record the states of variables after a step, which nobody changes."""
        taken = 0
        thread, repeating = self._thread, self._repeating
        if repeating is not None and self.enabled and not thread.number:
            parent = thread.stack[-1].number if thread.stack else -1
            taken = repeating.takes_states(names, states, digests, parent, self.context.now())
        for place in range(taken, len(names)):
            self.note(STATE, names[place], states[place], digests[place])

    def release(self) -> None:
        """Make the rows that this step has so far: it does not repeat the one before."""
        if self._repeating is not None:
            for row in self._repeating.released(self.step):
                self._put(row)

    def flush(self, *, wait: bool = False) -> None:
        """Hand the rows over."""
        rows, self._rows = self._rows, []
        if rows or wait:
            self._sink.write(rows, wait=wait)

    def end(self, **fields: Value) -> None:
        """Record the end of the process."""
        self._make(END, "", -1, -1, "", self.context.now(), fields, source="")
        self.flush(wait=True)

    def _make(
        self,
        kind: str,
        name: str,
        number: int,
        parent: int,
        digest: str,
        context: Fields,
        fields: Fields,
        *,
        source: str | None = None,
    ) -> None:
        """Make a row; without a source, find the line of the script."""
        if not self.enabled:
            return
        self.release()
        self._put(
            Row(
                kind,
                name,
                number,
                parent,
                self.step,
                self.rank,
                self._thread.number,
                time.monotonic_ns(),
                self._source() if source is None else source,
                digest,
                context,
                fields,
            )
        )

    def _put(self, row: Row) -> None:
        if self._repeating is not None:
            self._repeating.keep(row)
        self._rows.append(row)
        if len(self._rows) >= _BUFFERED:
            self.flush()

    def _source(self) -> str:
        """The innermost line outside PyTorch and the recording."""
        frame = sys._getframe(2)
        for _ in range(_FRAMES):
            name = frame.f_code.co_filename
            if name not in self._files:
                self._files[name] = _shown(name)
            shown = self._files[name]
            if shown is not None:
                self.last_source = f"{shown}:{frame.f_lineno}"
                return self.last_source
            if frame.f_back is None:
                break
            frame = frame.f_back
        return ""


def _shown(filename: str) -> str | None:
    """A file's name for reports, or None for PyTorch, the recording and generated code."""
    path = Path(filename)
    if filename.startswith("<") or not path.exists():
        return None
    whole = str(path.resolve())
    if whole.startswith(_LIBRARIES) or path.stem in {"contextlib", "functools", "runpy"}:
        return None
    if path.resolve().is_relative_to(_HERE):
        return str(path.resolve().relative_to(_HERE))
    return "/".join(path.parts[-2:])


_recorders: list[Recorder] = []


def _forked() -> None:
    for each in _recorders:
        each.forked()


os.register_at_fork(after_in_child=_forked)


def recording() -> Recorder | None:
    """The recorder of this process, if it records."""
    return _recorders[-1] if _recorders else None


@contextmanager
def current(recorder: Recorder) -> Iterator[Recorder]:
    """Make a recorder this process's inside the block."""
    _recorders.append(recorder)
    try:
        yield recorder
    finally:
        _recorders.remove(recorder)
        recorder.over = True


def set_meta(**values: str | float | bool | None) -> None:
    """Add facts about this process to everything it records from here on.

    They can become preconditions of invariants: ``set_meta(tp_rank=0, phase="warm-up")``. A value
    of None removes one. Without a recording it does nothing, so a script may always call it.

    Raises
    ------
    InputError
        If a value is not text, a number, a flag or None.
    """
    for name, value in values.items():
        if value is not None and not isinstance(value, str | int | float | bool):
            raise InputError(
                f"set_meta({name}=...) takes text, numbers, flags or None, not "
                f"{type(value).__name__}"
            )
    recorder = recording()
    if recorder is not None:
        recorder.context.set_meta(values)
