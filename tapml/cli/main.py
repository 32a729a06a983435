"""Entry point of the ``tapml`` command: subcommands, exit codes, one clear line per error."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import sys
import traceback
from typing import Final, NoReturn

from tapml_targets.errors import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    DeviceLostError,
    RemoteError,
    TapmlError,
)
from tapml_targets.installed import install_hint, package_version

# Each module has add_parser(subparsers); it sets `run`, a function from the arguments to exit code.
COMMANDS: Final = (
    "offload",
    "carve",
    "replay",
    "validate",
    "run",
    "report",
    "devices",
    "doctor",
    "rpc",
)

_EPILOG: Final = """\
examples:
  tapml offload --model pydoc-llama --target opencl     move the shipped model to OpenCL
  tapml offload --model ~/models/my-llama --target opencl --session my-session
  tapml run my-session --prompt "The value of the attribute"
  tapml devices                                         what can be reached from here

exit codes:
  0 pass   1 mismatch, or operators on the source that should have moved
  2 usage, input or environment
  3 no such device   4 device lost   130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    """argparse that names the nearest known word when one is mistyped."""

    def error(self, message: str) -> NoReturn:
        word = message.partition("invalid choice: ")[2].partition("'")[2].partition("'")[0]
        choices = [str(choice) for action in self._actions for choice in (action.choices or ())]
        near = difflib.get_close_matches(word, choices, n=1) if word else []
        hint = f" Did you mean {near[0]!r}?" if near else ""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}.{hint} See `{self.prog} --help`.\n")


def make_parser() -> argparse.ArgumentParser:
    """The whole command line as a parser."""
    parser = _Parser(
        prog="tapml",
        description="Move a model to a new device, one operator at a time, and show that it works.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    number = package_version("tapml") or "(not installed)"
    parser.add_argument("--version", action="version", version=f"tapml {number}")
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error as well"
    )
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for name in COMMANDS:
        importlib.import_module(f"tapml.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = argparse.Namespace(debug=False)
    try:
        arguments = make_parser().parse_args(argv)
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print("tapml: interrupted; nothing half-written was left behind", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; a second error at exit would only hide that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_USAGE
    except (TapmlError, OSError, ModuleNotFoundError) as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"tapml: {_explain(error, arguments.debug)}", file=sys.stderr)
        return error.exit_code if isinstance(error, TapmlError) else EXIT_USAGE


def _explain(error: TapmlError | OSError | ModuleNotFoundError, debug: bool) -> str:
    if isinstance(error, DeviceLostError) and not debug:
        first, _, rest = str(error).partition("\n")
        return first + (" (tapml --debug shows what it printed and was sent last)" if rest else "")
    if isinstance(error, RemoteError):
        parts = [str(error)]
        for title, text in (
            ("command", error.command),
            ("on the device", error.remote_traceback),
            ("driver log", error.driver_log),
        ):
            if text:
                parts.append(f"{title}:\n{text.rstrip()}")
        return "\n".join(parts)
    if isinstance(error, TapmlError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return (
            f"this command needs the Python package {error.name!r}, which is not installed; "
            f"install the toolkit: {install_hint('host', 'opencl')}"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error.filename or error}); free some space and run it again"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
