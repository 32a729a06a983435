"""Shows trials of a kernel: plain lines, a live view in a terminal, or JSON."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from tapml.kernels.trial import KernelTrial
from tapml.kernels.trial_result import Times, TrialResult
from tapml.kernels.watching import Looking, Missing, Seen, Tell, WatchEvent

_HISTORY: Final = 6
_REASON_LINES: Final = 24
_REDRAW_SECONDS: Final = 0.1
_STYLES: Final = {"pass": "green", "degraded": "yellow", "not run": "yellow"}
_MARKS: Final = {"pass": "✓", "degraded": "~", "not run": "·"}


def headline(result: TrialResult) -> str:
    """One line with the verdict, tests, probes and worst ratio."""
    parts: list[str] = [result.outcome]
    if result.tests:
        every = f" of {result.of}" if result.tests < result.of else ""
        passing = f"{result.passed} pass of " if not result.passes else ""
        parts.append(f"{passing}{result.tests}{every} tests")
    if result.probes:
        parts.append(f"{result.probes} exact probe{'s' if result.probes > 1 else ''}")
    if result.worst_ratio is not None:
        ratio = result.worst_ratio
        shown = f"{ratio:.3g}" if math.isfinite(ratio) else "not finite"
        parts.append(f"worst ratio {shown}")
    if result.hasty:
        parts.append("a closer look is under way")
    return "  ".join(parts)


def times_line(times: Times) -> str:
    """The time of one call, the compiled kernel's and the reference's; may be empty."""
    if times.kernel is None:
        return ""
    line = f"one call takes {_milliseconds(times.kernel)}"
    for name, other in (("compiled", times.compiled), ("reference", times.reference)):
        if other:
            line += f", {name} {_milliseconds(other)} ({times.kernel / other:.2f} times)"
    return line


def result_lines(result: TrialResult, waited: float | None = None) -> list[str]:
    """A verdict as plain lines."""
    since = f"  {waited:.2f} s after the save" if waited is not None else ""
    lines = [headline(result) + since]
    if not result.passes:
        lines += [f"  {line}" for line in _reason(result)]
    times = times_line(result.times)
    return [*lines, *([f"  {times}"] if times else [])]


def _reason(result: TrialResult) -> list[str]:
    lines = result.reason.rstrip().splitlines()
    if len(lines) > _REASON_LINES:
        lines = [*lines[:_REASON_LINES], f"({len(lines) - _REASON_LINES} more lines)"]
    return lines


def _missing(event: Missing) -> str:
    return f"the verdict is without closer measurements, probes or times: {event.why}"


def _milliseconds(number: float) -> str:
    return f"{number:.3g} ms"


@contextmanager
def watching(trial: KernelTrial, *, as_json: bool, stream: TextIO | None = None) -> Iterator[Tell]:
    """Open a display of a watch's events, which ends with the block."""
    stream = stream or sys.stdout
    if as_json:
        yield _Json(stream)
    elif stream.isatty():
        with _LiveView(trial, stream) as view:
            yield view
    else:
        yield _Lines(trial, stream)


class _Json:
    """One JSON object a verdict."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: WatchEvent) -> None:
        if isinstance(event, Seen):
            data = event.result.to_json()
            data |= {"look": event.number, "seconds_since_save": event.waited}
            print(json.dumps(data), file=self._stream, flush=True)


class _Lines:
    """Verdicts as lines, each once."""

    def __init__(self, trial: KernelTrial, stream: TextIO) -> None:
        self._stream = stream
        self._said: list[str] = []
        self._say([f"watching {trial.manifest.parent}: Ctrl-C ends"])

    def __call__(self, event: WatchEvent) -> None:
        if isinstance(event, Seen):
            self._say(result_lines(event.result, event.waited), always=event.waited is not None)
        elif isinstance(event, Missing):
            self._say([_missing(event)])

    def _say(self, lines: list[str], *, always: bool = False) -> None:
        if always or lines != self._said:
            stamp = time.strftime("%H:%M:%S")
            print(f"{stamp}  " + "\n          ".join(lines), file=self._stream, flush=True)
        self._said = lines


class _LiveView:
    """One panel that is redrawn: current activity, the verdict, earlier verdicts."""

    def __init__(self, trial: KernelTrial, stream: TextIO) -> None:
        self._title = f"{trial.operator.name} on {trial.description.name}"
        self._place = str(trial.manifest.parent)
        self._doing: Looking | None = None
        self._seen: Seen | None = None
        self._past = Text()
        self._drawn = 0.0
        self._history: deque[Text] = deque(maxlen=_HISTORY)
        console = Console(file=stream, highlight=False, emoji=False)
        # Room for the "^C" that a terminal writes after the last line: one that wraps would
        # leave the panel's first line behind.
        self._width = max(1, console.width - len("^C") - 1)
        self._live = Live(
            self._draw(),
            console=console,
            auto_refresh=False,
            vertical_overflow="ellipsis",
        )

    def __enter__(self) -> _LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._doing = None
        self._live.update(self._draw(), refresh=True)
        self._live.stop()

    def __call__(self, event: WatchEvent) -> None:
        if isinstance(event, Looking):
            # Drawing takes a millisecond or two, as long as a small test.
            same = self._doing is not None and self._doing.doing == event.doing
            self._doing = event
            if same and time.monotonic() - self._drawn < _REDRAW_SECONDS:
                return
        elif isinstance(event, Missing):
            self._history.append(Text(_missing(event), style="dim"))
        else:
            self._doing = None
            if self._seen is not None and event.number != self._seen.number:
                self._history.append(self._past)
            self._seen = event
            self._past = self._summary(event)
        self._live.update(self._draw(), refresh=True)
        self._drawn = time.monotonic()

    def _draw(self) -> RenderableType:
        body: list[RenderableType] = []
        style = "dim"
        if self._seen is not None:
            result = self._seen.result
            style = _STYLES.get(result.outcome, "red")
            body.append(self._summary(self._seen, bold=True))
            times = times_line(result.times)
            if times:
                body.append(Text(times))
            if not result.passes:
                body += [Text(line, style="red" if result.outcome == "fail" else "")
                         for line in _reason(result)]  # fmt: skip
        body.append(Text(self._activity(), style="dim"))
        body += [Text("  ") + line for line in reversed(self._history)]
        return Panel(
            Group(*body),
            # A panel grows with its title regardless of its width.
            title=_shortened(self._title, self._width - 6),
            subtitle=self._place,
            border_style=style,
            width=self._width,
        )

    def _activity(self) -> str:
        if self._doing is None:
            return "waiting for a save; Ctrl-C ends"
        progress = f" {self._doing.done}/{self._doing.total}" if self._doing.total else ""
        return f"{self._doing.doing}{progress} ..."

    @staticmethod
    def _summary(seen: Seen, *, bold: bool = False) -> Text:
        result = seen.result
        style = _STYLES.get(result.outcome, "red")
        text = Text(time.strftime("%H:%M:%S  ") if not bold else "")
        text.append(f"{_MARKS.get(result.outcome, '✗')} ", style=style)
        text.append(headline(result), style=f"bold {style}" if bold else style)
        if seen.waited is not None:
            text.append(f"  {seen.waited:.2f} s after the save", style="dim")
        return text


def _shortened(title: str, cells: int) -> Text:
    shown = Text(title)
    shown.truncate(max(1, cells), overflow="ellipsis")
    return shown
