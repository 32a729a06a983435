"""``tapml run``: generate text with a package or a finished session, on the target only."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.converse import converse, texts_of
from tapml.cli.model_arguments import number, positive
from tapml.cli.remote_devices import add_no_open, on_standard_error, wanted_device
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.execute.sampling import Sampling
    from tapml.package.runnable import Runnable
    from tapml.package.target_model import TargetModel

_EPILOG: Final = """\
examples:
  tapml run my-package --prompt "The value of the attribute"
  tapml run my-package.zip --prompt - < prompt.txt
  tapml run my-package --prompt "The value" --profile trace.json
  tapml run my-session --tokens "1 2 3" --max-new-tokens 20 --device opencl:1
  tapml run my-package --prompt "The value" --json
  tapml run my-package --chat --prompt "Why is the sky blue?" --system "Answer in one sentence."
  tapml run my-package --chat --interactive --max-new-tokens 200
  tapml run my-package --prompt "Once" --temperature 0.8 --top-p 0.95 --top-k 40 --seed 7
  tapml run my-package --prompt "1, 2, 3," --stop "7" --stop $'\\n'
  tapml run my-encoder --prompt "One sentence" --prompt "Another" --json
  tapml run my-classifier --input images.npy
  tapml run my-package --prompt "The value" --device tcp://board:9190
  tapml run my-package --prompt "The value" --device browser     for webgpu: opens a page

It runs a package (`tapml package`), as folder or archive, or a session that has ended with every
operator on the target. Text streams to standard output, the speed goes to standard error. The most
probable token is taken unless --temperature is above 0. `tapml serve` answers over HTTP.
"""
_TOKENS: Final = re.compile(r"\s*\d{1,9}(?:[\s,]+\d{1,9})*\s*")
_LONGEST_PROMPT: Final = 16 << 20
# Larger transfers are announced.
_LARGE_BYTES: Final = 1 << 30


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "run",
        help="run a package or a finished session on its device",
        description="Generate text, or encode sentences, or run a module, on the target.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "model", type=Path, metavar="PACKAGE_OR_SESSION", help="a package, or a finished session"
    )
    parser.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="- reads standard input, without its last line end; several for an encoder's batch",
    )
    parser.add_argument("--tokens", action="append", metavar="IDS", help='token ids, "1 2 3"')
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="an array in NumPy's format, for a plain module"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=positive,
        metavar="N",
        help="tokens to generate, of a model that writes (default: 40)",
    )
    add_sampling_arguments(parser)
    parser.add_argument(
        "--chat",
        action="store_true",
        help="--prompt is a message, put into the model's chat template (extra `chat`)",
    )
    parser.add_argument(
        "--system", metavar="TEXT", help="with --chat: a message of the system before it"
    )
    parser.add_argument(
        "--interactive",
        action="store_true",
        help="a prompt a line from standard input, with --chat the messages of a conversation",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="opencl, opencl:1, a server's tcp://HOST:PORT or wss://HOST:PORT, tracker:NAME, "
        "browser (default: the one it was validated on, else the best one)",
    )
    add_no_open(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check the hash of a package's weights even if they are large",
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="print the time of each operator, and write a trace for chrome://tracing or Perfetto; "
        "the run itself is slower then",
    )
    parser.add_argument(
        "--own-process",
        action="store_true",
        help="drive the device in a separate process: a driver crash becomes an error message; "
        "every token costs one more round trip",
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON, at the end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Stream the text to standard output, the speed to standard error."""
    started = time.monotonic()
    runnable = open_runnable(arguments.model, verify=arguments.verify)

    from tapml.execute.generate import NEW_TOKENS
    from tapml.package.target_model import TargetModel

    if runnable.nbytes >= _LARGE_BYTES:
        print(f"sending {runnable.nbytes / 1e9:.1f} GB of weights to the device", file=sys.stderr)
    with TargetModel(
        runnable,
        wanted_device(arguments),
        own_process=arguments.own_process,
        profile=arguments.profile is not None,
        say=on_standard_error,
    ) as model:
        for note in model.notes:
            print(f"note: {note}", file=sys.stderr)
        if not model.workload.generates:
            from tapml.cli.run_once import run_once

            check_no_text(model.name, arguments, writes=model.workload.writes)
            run_once(model, arguments, time.monotonic() - started)
            return _profile(model, arguments.profile)
        arguments.max_new_tokens = arguments.max_new_tokens or NEW_TOKENS
        sampling = sampling_of(arguments)
        if arguments.interactive:
            _check_interactive(arguments)
            converse(model, arguments, sampling)
            return _profile(model, arguments.profile)
        ids, text = _prompt(model, arguments)
        ready = time.monotonic() - started
        result = _generate(model, ids, text, arguments, sampling)
        if arguments.json:
            print(json.dumps(_data(model, result, ready), indent=1))
        else:
            memory = f"{model.device_bytes / 1e6:.1f} MB on the device"
            print(f"{result.speed}; ready in {ready:.2f} s; {memory}", file=sys.stderr)
            if result.full:
                print(f"stopped at the context of {model.context_length} tokens", file=sys.stderr)
        return _profile(model, arguments.profile)


def _profile(model: TargetModel, path: Path | None) -> int:
    """Show where the time went and write the trace, if that was asked for."""
    if path is not None:
        from tapml.cli.operator_times import show_times
        from tapml.durable.files import write_json, writing
        from tapml.execute.profiling import chrome_trace

        with writing(path):
            write_json(path, chrome_trace(model.runs, model.device.name))
        show_times(model.runs)
        print(f"trace: {path} (open it in chrome://tracing or Perfetto)", file=sys.stderr)
    return 0


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--temperature``, ``--top-p``, ``--top-k``, ``--seed`` and ``--stop``."""
    parser.add_argument(
        "--temperature",
        type=number("a number from 0 to 100", float, 0, 100),
        default=0.0,
        metavar="T",
        help="0 takes the most probable token; above, tokens are drawn, flatter the higher it is "
        "(default: 0)",
    )
    parser.add_argument(
        "--top-p",
        type=number("a number above 0 and up to 1", float, 1e-9, 1),
        default=1.0,
        metavar="P",
        help="draw from the most probable tokens that have this share together (default: 1)",
    )
    parser.add_argument(
        "--top-k",
        type=number("a whole number from 0", int, 0, (1 << 31) - 1),
        default=0,
        metavar="K",
        help="draw from the K most probable tokens (default: 0, from all)",
    )
    parser.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        default=[],
        help="ends the text before it; may be given several times",
    )
    parser.add_argument(
        "--seed",
        type=number("a whole number from 0", int, 0, (1 << 63) - 1),
        metavar="N",
        help="the same seed gives the same text (default: another one each time)",
    )


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """How tokens are chosen.

    Raises
    ------
    InputError
        If --top-p, --top-k or --seed is given where nothing is drawn, or a --stop is empty.
    """
    from tapml.execute.sampling import Sampling

    drawn = arguments.top_p < 1 or arguments.top_k or arguments.seed is not None
    if not arguments.temperature and drawn:
        raise InputError(
            "--top-p, --top-k and --seed say how tokens are drawn, and at temperature 0 none is: "
            "give --temperature 1"
        )
    if "" in arguments.stop:
        raise InputError("--stop: expected a text that is not empty")
    return Sampling(arguments.temperature, arguments.top_p, arguments.seed, arguments.top_k)


def open_runnable(path: Path, *, verify: bool = False) -> Runnable:
    """Open a package or a finished session."""
    from tapml.package.files import is_package, recover_package

    if recovered := recover_package(path):
        print(f"note: {recovered}", file=sys.stderr)
    if is_package(path):
        return _open_package(path, verify=verify)
    if not path.exists():
        expected = ": expected a package (`tapml package`) or a finished session (`tapml offload`)"
        raise InputError(f"{path} does not exist{_near(path) or expected}")
    if path.is_file():
        raise InputError(
            f"{path} is not a package: expected a zip archive or a folder made by `tapml package`"
        )
    from tapml.session.folder import is_session

    if not is_session(path):
        raise InputError(
            f"{path} is neither a package nor a session: expected a folder made by `tapml package` "
            "or `tapml offload --session`"
        )
    from tapml.package.from_session import open_finished

    return open_finished(path).runnable()


def _open_package(path: Path, *, verify: bool) -> Runnable:
    from tapml.package.load import open_package

    if not verify:
        return open_package(path)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("hashing the weights", total=None)
        return open_package(
            path,
            verify=True,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def _near(path: Path) -> str:
    """A suggestion for a mistyped name."""
    try:
        names = [each.name for each in path.absolute().parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _prompt(
    model: TargetModel, arguments: argparse.Namespace
) -> tuple[tuple[int, ...], str | None]:
    """Token ids of the prompt, and its text if the model has a tokenizer."""
    given = [*(arguments.prompt or ()), *(arguments.tokens or ())]
    if len(given) != 1 or arguments.input is not None:
        raise InputError(
            f"{model.name} continues one text: give one --prompt TEXT or one --tokens IDS"
        )
    (value,) = given
    if arguments.system is not None and not arguments.chat:
        raise InputError("--system goes with --chat")
    if arguments.tokens is None:
        text = _read_input() if value == "-" else str(value)
        if arguments.chat:
            system = [] if arguments.system is None else [("system", arguments.system)]
            said = [*system, ("user", text)]
            ids = model.chat([{"role": role, "content": content} for role, content in said])
            return ids, ""
        return model.encode(text), text
    if arguments.chat:
        raise InputError("--chat takes a --prompt: token ids are given as they are")
    if not _TOKENS.fullmatch(value):
        raise InputError(
            f"tokens {value[:60]!r}: expected whole numbers with spaces or commas "
            'between, like "1 2 3"'
        )
    ids = tuple(int(number) for number in re.findall(r"\d+", value))
    try:
        return ids, model.codec.decode(ids)
    except InputError:
        return ids, None


def check_no_text(name: str, arguments: argparse.Namespace, *, writes: bool) -> None:
    """Raise InputError if an option is given that only a text has.

    A model that `writes` one of its own has the length of it.
    """
    given = {
        "--max-new-tokens": arguments.max_new_tokens is not None and not writes,
        "--interactive": arguments.interactive,
        "--chat": arguments.chat,
        "--system": arguments.system,
        "--temperature": arguments.temperature,
        "--top-p": arguments.top_p < 1,
        "--top-k": arguments.top_k,
        "--seed": arguments.seed is not None,
        "--stop": arguments.stop,
    }
    found = [option for option, value in given.items() if value]
    if found:
        raise InputError(f"{name} continues no text: leave {', '.join(found)} out")


def _check_interactive(arguments: argparse.Namespace) -> None:
    """Raise InputError if something is given that has no meaning there."""
    given = arguments.prompt or arguments.tokens or arguments.input or arguments.json
    if given:
        raise InputError(
            "--interactive reads prompts from standard input: leave --prompt, --tokens, --input "
            "and --json out"
        )
    if arguments.system is not None and not arguments.chat:
        raise InputError("--system goes with --chat")


def _read_input() -> str:
    content = sys.stdin.buffer.read(_LONGEST_PROMPT + 1)
    if len(content) > _LONGEST_PROMPT:
        raise InputError(f"the prompt has more than {_LONGEST_PROMPT} bytes: shorten it")
    try:
        return re.sub(r"\r?\n\Z", "", content.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"the prompt on standard input is not UTF-8 ({error})") from error


@dataclass(frozen=True)
class _Result:
    prompt: str | None
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    first_seconds: float
    seconds: float
    full: bool

    @property
    def rate(self) -> float:
        """Tokens per second after the first, which includes the prefill."""
        following = len(self.tokens) - 1
        return following / (self.seconds - self.first_seconds) if following else 1 / self.seconds

    @property
    def prefill_rate(self) -> float:
        """Tokens of the prompt per second, until the first token is there."""
        return len(self.prompt_ids) / self.first_seconds

    @property
    def speed(self) -> str:
        """A line for people."""
        count, given = len(self.tokens), len(self.prompt_ids)
        prompt = f"prompt {given} token{'s' * (given > 1)}, {self.prefill_rate:.1f} a second"
        return (
            f"{count} token{'s' * (count > 1)} in {self.seconds:.2f} s, the first after "
            f"{self.first_seconds:.2f} s ({prompt})"
            + (f", then {self.rate:.1f} a second" * (count > 1))
        )


def _generate(
    model: TargetModel,
    ids: tuple[int, ...],
    text: str | None,
    arguments: argparse.Namespace,
    sampling: Sampling,
) -> _Result:
    """Generate; stream the text unless JSON was asked for."""

    def show(piece: str) -> None:
        if not arguments.json:
            print(piece, end="", flush=True)

    if text is None and arguments.stop:
        raise InputError("--stop is a text, and the model takes token ids alone: leave it out")
    tokens: list[int] = []
    pieces: list[str] = []
    first = 0.0
    started = time.monotonic()
    steps = model.generate_tokens(ids, max_new_tokens=arguments.max_new_tokens, sampling=sampling)

    def counting() -> Iterator[int]:
        nonlocal first
        for token in steps:
            first = first or time.monotonic() - started
            tokens.append(token)
            yield token

    try:
        show(" ".join(map(str, ids)) if text is None else text)
        plain = (f" {token}" for token in counting())
        for piece in plain if text is None else texts_of(model, ids, counting(), arguments.stop):
            pieces.append(piece)
            show(piece)
    finally:
        # Also after Ctrl-C: later output starts a new line.
        show("\n")
    seconds = time.monotonic() - started
    room = model.context_length - len(ids) + 1
    full = len(tokens) == room < arguments.max_new_tokens
    return _Result(text, ids, tuple(tokens), "".join(pieces), first, seconds, full)


def _data(model: TargetModel, result: _Result, ready: float) -> dict[str, Any]:
    return {
        "model": model.name,
        "device": model.device.name,
        "notes": list(model.notes),
        "prompt": result.prompt,
        "prompt_ids": list(result.prompt_ids),
        "tokens": list(result.tokens),
        "text": result.text if result.prompt is not None else None,
        "context_full": result.full,
        "ready_seconds": ready,
        "first_token_seconds": result.first_seconds,
        "prefill_tokens_per_second": result.prefill_rate,
        "tokens_per_second": result.rate,
        "device_bytes": model.device_bytes,
    }
