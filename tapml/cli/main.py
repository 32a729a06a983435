"""Entry point of the ``tapml`` command: subcommands, exit codes, one clear line per error."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import shlex
import sys
from typing import Any, Final, NoReturn

from tapml.cli.termination import ended_by_sigterm, exit_code_of, word_for
from tapml.cli.variables import misspelt
from tapml_targets.errors import (
    EXIT_USAGE,
    DeviceLostError,
    RemoteError,
    TapmlError,
)
from tapml_targets.installed import (
    BASE_PACKAGES,
    WITHOUT_PYZMQ,
    install_hint,
    package_hint,
    package_version,
)

# Each module has add_parser(subparsers), which sets `run`: arguments -> exit code.
COMMANDS: Final = (
    "offload",
    "carve",
    "replay",
    "validate",
    "package",
    "run",
    "serve",
    "report",
    "bundle",
    "kernel",
    "reduce",
    "diff",
    "inspect",
    "compare",
    "distributed",
    "invariants",
    "policy",
    "devices",
    "doctor",
    "rpc",
)

_LINES_SHOWN: Final = 20
# An error line of a driver or compiler; faulthandler's headline only repeats the signal's name.
_ERROR_LINE: Final = re.compile(r"^(?!Fatal Python error).*\berror\b", re.IGNORECASE)

_EPILOG: Final = """\
examples:
  tapml offload --model pydoc-llama --target opencl     move the shipped model to OpenCL
  tapml offload --model ~/models/my-llama --target opencl --session my-session
  tapml run my-session --prompt "The value of the attribute"
  tapml devices                                         what can be reached from here
  tapml compare model.onnx --backends onnxruntime,openvino --data data.npz
  tapml distributed check train.py
  tapml invariants collect good -- python train.py

exit codes:
  0 pass   1 mismatch, or operators on the source that should have moved
  2 usage, input or environment
  3 no such device, or a server or tracker does not answer
  4 device lost   130 interrupted   143 ended by SIGTERM
"""


class _Parser(argparse.ArgumentParser):
    """A parser that keeps the lines of help texts and suggests a known word for a mistyped one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Report unknown words with this command's options."""
        known, unknown = super().parse_known_args(args, namespace)
        option = next((word for word in unknown if word.startswith("-")), None)
        if option is not None:
            given = option.partition("=")[0]
            options = [name for action in self._actions for name in action.option_strings]
            hint = _meant(given, options)
            self.exit(
                EXIT_USAGE,
                f"{self.prog}: unknown option {given!r}.{hint} See `{self.prog} --help`.\n",
            )
        if unknown:
            meant = self._with_quotes(sys.argv[1:] if args is None else list(args), unknown)
            hint = f"; one value with spaces takes quotes: {meant}" if meant else ""
            self.error(f"unexpected {' '.join(map(repr, unknown))}{hint}")
        return known, unknown

    def _with_quotes(self, words: list[str], unknown: list[str]) -> str:
        """The quoted form of an option whose value continues in `unknown`, or empty."""
        for action in self._actions:
            for name in action.option_strings:
                if action.nargs is None and name in words:
                    start = words.index(name) + 1
                    end = start + 1 + len(unknown)
                    if words[start + 1 : end] == unknown:
                        return f"{name} {shlex.quote(' '.join(words[start:end]))}"
        return ""

    def error(self, message: str) -> NoReturn:
        word = message.partition("invalid choice: ")[2].partition("'")[2].partition("'")[0]
        choices = [str(choice) for action in self._actions for choice in (action.choices or ())]
        hint = _meant(word, choices) if word else ""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}.{hint} See `{self.prog} --help`.\n")


class _Version(argparse.Action):
    """Says the version. To find it takes longer than a short command runs."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        print(f"tapml {package_version('tapml') or '(not installed)'}")
        parser.exit()


def make_parser(command: str = "") -> argparse.ArgumentParser:
    """Build the command line's parser: of one command, or of all.

    Importing what all commands take costs more time than a short one runs.
    """
    parser = _Parser(
        prog="tapml",
        description="Move a model to a new device, one operator at a time, and show that it works.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error as well"
    )
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for name in (command,) if command in COMMANDS else COMMANDS:
        importlib.import_module(f"tapml.cli.{name}").add_parser(subparsers)
    return parser


def _meant(word: str, known: list[str]) -> str:
    """A question with the known word that is nearest, if one is near."""
    # Most commands need no help, and all wait for what is imported.
    import difflib

    near = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = argparse.Namespace(debug=False)
    words = sys.argv[1:] if argv is None else argv
    first = next((word for word in words if word != "--debug"), "")
    try:
        arguments = make_parser(first).parse_args(argv)
        for line in misspelt(os.environ):
            print(line, file=sys.stderr)
        with ended_by_sigterm():
            return int(arguments.run(arguments))
    except KeyboardInterrupt as interrupt:
        word = word_for(interrupt)
        print(f"tapml: {word}; no partial files are left", file=sys.stderr)
        return exit_code_of(interrupt)
    except BrokenPipeError:
        # The reader of our output is gone; avoid a second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_USAGE
    except (TapmlError, OSError, ModuleNotFoundError) as error:
        if arguments.debug:
            import traceback

            traceback.print_exc()
        print(f"tapml: {_explain(error, arguments.debug)}", file=sys.stderr)
        return error.exit_code if isinstance(error, TapmlError) else EXIT_USAGE


def _explain(error: TapmlError | OSError | ModuleNotFoundError, debug: bool) -> str:
    if isinstance(error, RemoteError):
        return _explain_remote(error, debug)
    if isinstance(error, TapmlError):
        return str(error) if debug else _shorten(str(error))
    if isinstance(error, ModuleNotFoundError):
        return _explain_missing(error.name or str(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error.filename or error}); free some space and run it again"
    return str(error)


def _explain_missing(module: str) -> str:
    """What to install for a missing import: a package of the base, or the toolkit."""
    package = {"zmq": "pyzmq"}.get(module, module)
    said = f"this command needs the Python package {package!r}, which is not installed"
    if package not in BASE_PACKAGES:
        from tapml_targets.platforms import DEFAULT_PLATFORM

        extra = "invariants" if module == "pyarrow" else DEFAULT_PLATFORM
        return f"{said}; install the toolkit: {install_hint('host', extra)}"
    beside = f", or {WITHOUT_PYZMQ}" if package == "pyzmq" else ""
    return f"{said}: {package_hint(package)}{beside}"


def _explain_remote(error: RemoteError, debug: bool) -> str:
    """A remote error in a line or two; with `debug`, all its details."""
    details = {
        "command": error.command,
        "on the device": error.remote_traceback,
        "driver log": error.driver_log,
    }
    if debug:
        parts = [f"{title}:\n{text.rstrip()}" for title, text in details.items() if text]
        return "\n".join([str(error), *parts])
    first, _, rest = str(error).partition("\n")
    said = next(filter(_ERROR_LINE.search, f"{rest}\n{error.driver_log}".splitlines()), "").strip()
    if not said and isinstance(error, DeviceLostError):
        from tapml.replaying.failure_text import last_driver_line

        said = last_driver_line(error)
    if said and said not in first:
        first += f"\n  {said}"
    if rest or any(details.values()):
        first += "\n(tapml --debug shows the remote traceback and the last output)"
    return first


def _shorten(text: str) -> str:
    """Cut a long log down to the part with the first error."""
    lines = text.rstrip().splitlines()
    if len(lines) <= _LINES_SHOWN:
        return text
    errors = (i for i, line in enumerate(lines[1:], 1) if _ERROR_LINE.search(line))
    last = len(lines) - _LINES_SHOWN + 1
    start = min(next(errors, 1), last)
    shown = [lines[0], *lines[start : start + _LINES_SHOWN - 1]]
    hidden = len(lines) - len(shown)
    return "\n".join([*shown, f"({hidden} more lines: tapml --debug)"])


if __name__ == "__main__":
    sys.exit(main())
