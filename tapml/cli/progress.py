"""What a session shows while it runs: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tapml.offload.events import (
    Event,
    Note,
    OperatorChanged,
    PhaseEnded,
    PhaseProgressed,
    PhaseStarted,
    Watcher,
)

_MARKS = {"moved": "[green]✓[/]", "failed": "[red]✗[/]", "kept": "[yellow]·[/]"}


@contextmanager
def watch(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Watcher]:
    """A watcher for `OffloadSession.run`; the display ends with the block."""
    stream = stream or sys.stderr
    if quiet:
        yield _Plain(stream, only_failures=True)
    elif stream.isatty():
        with _Live(Console(file=stream, highlight=False)) as live:
            yield live
    else:
        yield _Plain(stream)


def operator_line(event: OperatorChanged) -> str:
    """One operator's result in a line: tests, worst ratio, time on the target."""
    numbers = event.numbers
    parts = [f"{numbers['tests']} tests"] if "tests" in numbers else []
    if numbers.get("probes"):
        count = numbers["probes"]
        parts.append(f"{count} exact probe{'s' if count > 1 else ''}")
    ratio = numbers.get("worst_ratio")
    if ratio is not None and numbers.get("tests"):
        parts.append(
            f"worst ratio {ratio:.3g}" if math.isfinite(ratio) else "worst ratio not finite"
        )
    if numbers.get("reused"):
        parts.append("from the journal")
    parts += map(str, numbers.get("suspects", ()))
    if event.state in {"failed", "kept"} and numbers.get("reason"):
        parts.append(in_one_line(str(numbers["reason"])))
    return ", ".join(parts)


def in_one_line(reason: str) -> str:
    """The first line; where it announces others, the first of them that speaks of an error."""
    first, *others = [line.strip() for line in reason.splitlines() if line.strip()] or [""]
    if not first.endswith(":") or not others:
        return first
    return f"{first} {next((line for line in others if 'error' in line.lower()), others[0])}"


def remaining(started: float, done: int, total: int) -> str:
    """Time left, from the mean of what is done; empty until there is something to go by."""
    if not 0 < done < total:
        return ""
    seconds = (time.monotonic() - started) / done * (total - done)
    return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"


class _Plain:
    """One line per finished thing, for logs."""

    def __init__(self, stream: TextIO, *, only_failures: bool = False) -> None:
        self._stream = stream
        self._only_failures = only_failures
        self._started = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, PhaseStarted):
            self._started = time.monotonic()
        line = self._line(event)
        if line:
            print(line, file=self._stream, flush=True)

    def _line(self, event: Event) -> str:
        if isinstance(event, OperatorChanged):
            if event.state not in _MARKS or (self._only_failures and event.state == "moved"):
                return ""
            left = remaining(self._started, event.done, event.total)
            tail = f"  ({left})" if left else ""
            return (
                f"[{event.done}/{event.total}] {event.operator}: {event.state}, "
                f"{operator_line(event)}{tail}"
            )
        if self._only_failures:
            return ""
        if isinstance(event, PhaseEnded):
            return f"{event.name}: {event.detail or 'done'} ({event.seconds:.1f} s)"
        return f"note: {event.text}" if isinstance(event, Note) else ""


class _Live:
    """A bar for the phase in hand; finished things scroll up above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._started = 0.0
        self._worst = 0.0
        self._worst_operator = ""

    def __enter__(self) -> _Live:
        self._progress.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, PhaseStarted):
            self._started = time.monotonic()
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(
                event.name, total=event.total or None, state=event.detail
            )
        elif isinstance(event, PhaseProgressed):
            if self._task is not None:
                left = remaining(self._started, event.done, event.total)
                self._progress.update(
                    self._task,
                    completed=event.done,
                    total=event.total or None,
                    state=f"{event.detail}  {left}",
                )
        elif isinstance(event, PhaseEnded):
            if self._task is not None:
                self._progress.remove_task(self._task)
                self._task = None
            self._console.print(
                f"[bold]{escape(event.name)}[/] {escape(event.detail)} "
                f"[dim]{event.seconds:.1f} s[/]"
            )
        elif isinstance(event, OperatorChanged):
            self._operator(event)
        else:
            self._console.print(f"[dim]note: {escape(event.text)}[/]")

    def _operator(self, event: OperatorChanged) -> None:
        ratio = event.numbers.get("worst_ratio")
        if ratio is not None and ratio > self._worst:
            self._worst, self._worst_operator = ratio, event.operator
        if event.state in _MARKS:
            self._console.print(
                f"  {_MARKS[event.state]} {escape(event.operator)} "
                f"[dim]{escape(operator_line(event))}[/]"
            )
        if self._task is not None:
            worst = f"worst {self._worst:.3g} in {self._worst_operator}" if self._worst else ""
            left = remaining(self._started, event.done, event.total)
            current = "" if event.state in _MARKS else f"{event.operator}: {event.state}"
            self._progress.update(
                self._task,
                completed=event.done,
                total=event.total,
                # What a narrow terminal cuts off stands last.
                state="  ".join(
                    part for part in (f"{event.done}/{event.total}", left, worst, current) if part
                ),
            )
