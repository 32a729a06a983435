"""``tapml run --interactive``: a line in, a text out, until the input ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    import argparse

    from tapml.execute.sampling import Sampling
    from tapml.package.target_model import TargetModel

_HELP: Final = (
    "a message a line; /new begins a conversation, Ctrl-C ends an answer, Ctrl-D or /exit ends"
)
_LONGEST_LINE: Final = 1 << 20


def converse(model: TargetModel, arguments: argparse.Namespace, sampling: Sampling) -> None:
    """Answer every line of standard input: a message with ``--chat``, else a text to go on with.

    A conversation is kept until it no longer fits into the context, which is said.

    Raises
    ------
    InputError
        If the model takes no text, or ``--chat`` has no template.
    """
    system = [] if arguments.system is None else [_message("system", arguments.system)]
    said = list(system)
    if arguments.chat:
        # What lacks for it is told before a message is typed.
        model.chat([*system, _message("user", "?")])
    else:
        model.codec  # noqa: B018 - raises if there is none
    print(_HELP, file=sys.stderr)
    for line in _lines():
        if line == "/exit":
            return
        if line == "/new":
            said = list(system)
        elif line and arguments.chat:
            asked = [*said, _message("user", line)]
            answer = _answered(model, lambda asked=asked: model.chat(asked), arguments, sampling)
            if answer is not None:
                said = [*asked, _message("assistant", answer)]
        elif line:
            _answered(model, lambda line=line: model.encode(line), arguments, sampling)


def texts_of(
    model: TargetModel, ids: Sequence[int], tokens: Iterable[int], stops: Sequence[str]
) -> Iterator[str]:
    """The text of tokens, a piece for each and one at the end, up to the first stop."""
    from tapml.serving.answers import StopText

    stream, stop = model.codec.stream(ids), StopText(stops)
    for token in tokens:
        yield stop.push(stream.push(token))
        if stop.reached:
            return
    last = stop.push(stream.finish())
    yield last if stop.reached else last + stop.finish()


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _lines() -> Iterator[str]:
    """Lines of standard input without their ends; a Ctrl-C at one ends them."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline(_LONGEST_LINE)
        if not line:
            return
        try:
            yield line.decode().strip()
        except UnicodeDecodeError as error:
            print(f"the line is not UTF-8 ({error})", file=sys.stderr)


def _answered(
    model: TargetModel, prompt: Any, arguments: argparse.Namespace, sampling: Sampling
) -> str | None:
    """The text, streamed; what there is of it after a Ctrl-C, None if the prompt cannot be used."""
    pieces: list[str] = []
    try:
        ids = prompt()
        steps = model.generate_tokens(
            ids, max_new_tokens=arguments.max_new_tokens, sampling=sampling
        )
        with _interruption() as interrupted:
            for piece in texts_of(model, ids, steps, arguments.stop):
                pieces.append(piece)
                print(piece, end="", flush=True)
                if interrupted():
                    break
    except InputError as error:
        print(f"{error} (/new begins a conversation)", file=sys.stderr)
        return None
    print(flush=True)
    return "".join(pieces)


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Tells whether Ctrl-C was pressed; a second one raises KeyboardInterrupt.

    A command that is half-way when it is raised would cost the device's session.
    """
    pressed = False

    def press(*_: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
