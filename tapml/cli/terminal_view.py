"""The live view of a session in a terminal.

Finished operators scroll away above a few live lines: the phase, the current step, a field with one
character per operator, and totals. They are redrawn several times a second at the terminal's width.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from itertools import groupby
from typing import Final, Literal, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from tapml.cli.operator_text import REPORTED, HeldBack, operator_line, remaining, verdicts_text
from tapml.runs.events import Event, Note, PhaseEnded
from tapml.runs.wording import duration
from tapml.session.events import OperatorChanged
from tapml.session.run_state import ACTIVE, MOVING, NO_PHASE, RunState

_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES: Final = "|/-\\"
_FRAMES_PER_SECOND: Final = 5
_GROUP: Final = 10
_FIELD_LINES: Final = 8
_OTHER_LINES: Final = 6
_BAR_CHARACTERS: Final = 20

# Shapes differ, so that colour is optional.
_SIGNS: Final = {
    "moved": ("■", "#", "green"),
    "validated": ("+", "+", "cyan"),
    "failed": ("✗", "x", "bold red"),
    "kept": ("□", "o", "yellow"),
    "compiling": ("c", "c", "bold reverse"),
    "replaying": ("r", "r", "bold reverse"),
    "model check": ("m", "m", "bold reverse"),
    "waiting": ("·", ".", "dim"),
}
_MARKS: Final = {
    "validated": ("+", "+", "cyan"),
    "moved": ("✓", "ok", "green"),
    "failed": ("✗", "x", "red"),
    "kept": ("·", "o", "yellow"),
}


class TerminalView:
    """A watcher that draws.

    A context manager; at its end only finished operators stay on the screen.

    Parameters
    ----------
    console
        On a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state = RunState()
        self._held = HeldBack()
        self._lock = threading.Lock()
        self._ending = False
        self._unicode = not console.options.ascii_only
        self._overflow: Literal["ellipsis", "crop"] = "ellipsis" if self._unicode else "crop"
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=_FRAMES_PER_SECOND,
            transient=True,
            vertical_overflow="crop",
            # Leave redirected output alone.
            redirect_stdout=sys.stdout.isatty(),
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._release()
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        with self._lock:
            self._state.apply(event)
        if isinstance(event, OperatorChanged):
            if event.state in REPORTED and not self._held.take(event):
                self._release()
                self._finished(event)
        elif isinstance(event, PhaseEnded):
            self._release()
            self._console.print(
                f"[bold]{escape(event.name)}[/] {escape(event.detail)} "
                f"[dim]{event.seconds:.1f} s[/]"
            )
        elif isinstance(event, Note):
            self._release()
            self._console.print(f"[dim]note: {escape(event.text)}[/]")

    def interrupted(self) -> None:
        """Show the interrupt at the next redraw."""
        self._ending = True

    def _finished(self, event: OperatorChanged) -> None:
        sign, plain, style = _MARKS[event.state]
        line = Text("  ").append(sign if self._unicode else plain, style)
        line.append(f" {event.operator} ").append(operator_line(event), "dim")
        if event.state in {"moved", "validated"}:
            line.truncate(self._console.width - 1, overflow=self._overflow)
        self._console.print(line)

    def _release(self) -> None:
        text, listed = self._held.release()
        if text:
            self._console.print(f"  [dim]{escape(text)}[/]")
        for event in listed:
            self._finished(event)

    def _draw(self) -> Text:
        """The live lines, cut to the terminal's width."""
        width, height = self._console.size
        with self._lock:
            lines = list(self._lines(width - 1, height))
        for line in lines:
            line.truncate(width - 1, overflow=self._overflow)
        return Text("\n", no_wrap=True).join(lines[: max(height - 1, 1)])

    def _lines(self, width: int, height: int) -> Iterator[Text]:
        state = self._state
        yield self._head(width)
        if state.phase != MOVING:
            if state.detail:
                yield Text(f"  {state.detail}", "dim")
            return
        yield self._in_hand()
        yield from self._field(width, height - _OTHER_LINES)
        yield self._legend()
        yield from self._so_far(width)

    def _head(self, width: int) -> Text:
        state = self._state
        frames = _FRAMES if self._unicode else _PLAIN_FRAMES
        frame = frames[int(time.monotonic() * _FRAMES_PER_SECOND) % len(frames)]
        line = Text(f"{frame} ", "cyan").append(state.phase or NO_PHASE, "bold")
        if self._ending:
            return line.append("  interrupted: ending the step in hand", "bold yellow")
        if state.total:
            if state.phase != MOVING and width > 3 * _BAR_CHARACTERS:
                line.append("  ").append_text(self._bar(state.done / state.total))
            line.append(f"  {state.done}/{state.total}")
        line.append(f"  {duration(state.phase_seconds)}", "dim")
        if remaining(state):
            line.append(f", {remaining(state)}")
        return line

    def _bar(self, share: float) -> Text:
        full, empty = ("━", "━") if self._unicode else ("#", "-")
        count = round(min(share, 1.0) * _BAR_CHARACTERS)
        return Text(full * count, "cyan").append(empty * (_BAR_CHARACTERS - count), "dim")

    def _in_hand(self) -> Text:
        """The current operator and step."""
        state = self._state
        if not state.current:
            return Text("  between two operators", "dim")
        name, what = state.current, state.step.removeprefix(state.current)
        text = Text("  ").append(name, "bold").append(what)
        return text.append(f"  {duration(state.step_seconds)}", "dim")

    def _field(self, width: int, most: int) -> Iterator[Text]:
        """One character for every operator, in groups of ten."""
        state = self._state
        states = [str(line.state) for line in state.operators.values()]
        states += ["waiting"] * (state.operator_count - len(states))
        row = max((width - 2 + 1) // (_GROUP + 1), 1) * _GROUP
        rows = [states[start : start + row] for start in range(0, len(states), row)]
        most = max(min(most, _FIELD_LINES), 1)
        first = 0
        if len(rows) > most:
            names = list(state.operators)
            here = names.index(state.current) if state.current else state.done
            first = min(max(here // row - most // 2, 0), len(rows) - most)
        for shown in rows[first : first + most]:
            text = Text("  ")
            for start in range(0, len(shown), _GROUP):
                text.append(" " if start else "")
                for each, alike in groupby(shown[start : start + _GROUP]):
                    text.append(self._sign(each) * len(list(alike)), _SIGNS[each][2])
            yield text

    def _legend(self) -> Text:
        text = Text("  ")
        for name, count in sorted(self._state.counts.items(), key=lambda each: _ORDER[each[0]]):
            if name not in ACTIVE:
                text.append(self._sign(name), _SIGNS[name][2]).append(f" {count} {name}   ")
        text.rstrip()
        return text

    def _so_far(self, width: int) -> Iterator[Text]:
        """The worst error, runs of the model, and the source of verdicts."""
        state = self._state
        parts = []
        if state.worst is not None:
            ratio, name = state.worst
            parts.append(f"worst ratio {ratio:.3g} in {name}")
        if state.promised:
            parts.append(f"model runs {state.model_runs} of {state.promised}")
        if verdicts_text(state):
            parts.append(verdicts_text(state))
        line = "  "
        for part in parts:
            if len(line) > 2 and len(line) + 3 + len(part) > width:
                yield Text(line, "dim")
                line = "  "
            line += f"   {part}" if line.strip() else part
        if line.strip():
            yield Text(line, "dim")

    def _sign(self, state: str) -> str:
        return _SIGNS[state][0 if self._unicode else 1]


_ORDER: Final = {name: position for position, name in enumerate(_SIGNS)}
