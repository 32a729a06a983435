"""``tapml invariants``: learns what holds in training runs, and finds what breaks it."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.model_arguments import number
from tapml.invariants.no_collection import no_collection
from tapml.runs.wording import counted
from tapml_targets.errors import EXIT_MISMATCH, EXIT_USAGE, InputError

if TYPE_CHECKING:
    from tapml.invariants.checking import CheckReport
    from tapml.invariants.invariant import InvariantSet
    from tapml.invariants.launch import Collected

_EPILOG: Final = """\
examples:
  tapml invariants collect good -- python train.py --epochs 1
  tapml invariants infer good --output train.invariants
  tapml invariants check train.invariants -- python train.py
  tapml invariants check train.invariants other-trace --report violations.html
  tapml invariants collect ranks -- torchrun --nproc-per-node 2 train.py
  tapml invariants show train.invariants
  tapml invariants merge one.invariants two.invariants --output both.invariants
"""
_COLLECT_EPILOG: Final = """\
examples:
  tapml invariants collect good -- python train.py --epochs 1
  tapml invariants collect ranks -- torchrun --nproc-per-node 2 train.py

The script needs no change. Every Python process that the command starts is recorded from its
first training step. Losses stay as they are, bit for bit. Five steps are enough to learn from.

exit codes: 0 recorded; 2 the command failed or did not train; 130 interrupted
"""
_INFER_EPILOG: Final = """\
examples:
  tapml invariants infer good --output train.invariants
  tapml invariants infer seed-0 seed-1 adamw --output train.invariants

More runs make better invariants: what differs between them is no invariant. All runs must have
been right.

exit codes: 0 learned; 2 usage or input
"""
_MERGE_EPILOG: Final = """\
examples:
  tapml invariants merge one.invariants pytorch --output both.invariants
  tapml invariants merge train.invariants --suppress 3f2a91c0 --select 100 --output short.invariants

exit codes: 0 written; 2 usage or input
"""
_CHECK_EPILOG: Final = """\
examples:
  tapml invariants check train.invariants trace
  tapml invariants check train.invariants -- python train.py
  tapml invariants check train.invariants --on-violation stop --port 0 -- python train.py
  tapml invariants check train.invariants trace --report violations.html --json
  tapml invariants check train.invariants trace --suppress 3f2a91c0 --select 100

A command is checked while it trains, with all its ranks, and needs no change.

exit codes: 0 nothing is violated; 1 violations; 2 usage, input, or the command failed
"""
_FINDINGS_SHOWN: Final = 5
_LETTERS_OF_AN_ID: Final = 8
_LEAST_OF_AN_ID: Final = 4


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "invariants",
        help="find silent errors in training runs",
        description="Learn what always holds in training runs that are right, and check others.",
        epilog=_EPILOG,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_collect(actions)
    _add_infer(actions)
    _add_check(actions)
    _add_merge(actions)
    show: argparse.ArgumentParser = actions.add_parser(
        "show",
        help="print the invariants of a set as sentences",
        description="Print the invariants of a set as sentences, with their ids.",
        epilog="examples:\n  tapml invariants show train.invariants --select 20\n",
    )
    _add_set(show)
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=_show)


def _add_collect(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "collect",
        help="record a training run",
        description="Run a command and record what it trains.",
        epilog=_COLLECT_EPILOG,
    )
    parser.add_argument("trace", type=Path, help="folder for the trace; an old trace is replaced")
    _add_command(parser, "-- COMMAND", "the command that trains")
    parser.set_defaults(run=_collect)


def _add_infer(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "infer",
        help="learn invariants from recorded runs",
        description="Learn invariants from runs that were right.",
        epilog=_INFER_EPILOG,
    )
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="recorded runs")
    _add_output(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_infer)


def _add_check(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "check",
        help="test a run against invariants",
        description="Test a recorded run, or run a command and test it.",
        epilog=_CHECK_EPILOG,
    )
    _add_set(parser)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write an HTML page")
    parser.add_argument(
        "--on-violation",
        choices=("report", "warn", "stop"),
        help="of a command: report at its end, warn at once (default), or stop it",
    )
    parser.add_argument(
        "--port",
        type=number("a port of 0 to 65535", int, 0, 65535),
        help="of a command: serve a live page on this machine while it runs; 0 takes a free port",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_command(parser, "TRACE | -- COMMAND", "a recorded run, or a command that trains")
    parser.set_defaults(run=_check)


def _add_merge(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "merge",
        help="make one set of several, or a shorter one",
        description="Make one set of several; equal invariants become one, most telling first.",
        epilog=_MERGE_EPILOG,
    )
    parser.add_argument("sets", type=Path, nargs="+", metavar="SET", help="sets of invariants")
    _add_output(parser)
    _add_choice(parser)
    parser.set_defaults(run=_merge)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", "-o", type=Path, required=True, metavar="FILE", help="the set's file"
    )


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("set", type=Path, help="a file of `infer`, or `pytorch`, which ships")
    _add_choice(parser)


def _begin_of_an_id(text: str) -> str:
    if len(text) < _LEAST_OF_AN_ID:
        raise argparse.ArgumentTypeError(
            f"expected at least the first {_LEAST_OF_AN_ID} letters of an id, got {text!r}"
        )
    return text


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suppress",
        type=_begin_of_an_id,
        action="append",
        default=[],
        metavar="ID",
        help="leave out an invariant, by the first letters of its id; may be repeated",
    )
    parser.add_argument(
        "--select",
        type=number("a whole number of at least 1", int, 1, sys.maxsize),
        metavar="N",
        help="use the N most telling invariants",
    )


def _add_command(parser: argparse.ArgumentParser, name: str, meaning: str) -> None:
    parser.add_argument(
        "--eager", action="store_true", help="run a script that compiles its model uncompiled"
    )
    parser.add_argument("words", nargs="+", metavar=name, help=meaning)


def _import_pyarrow() -> None:
    """Import it without what no trace needs: NumPy takes longer than pyarrow itself."""
    aside = [name for name in ("numpy", "cloudpickle") if name not in sys.modules]
    if "numpy" in sys.modules or "pyarrow" in sys.modules:
        return
    # The import system takes None for a package that is not installed.
    for name in aside:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import_module("pyarrow")
    finally:
        for name in aside:
            del sys.modules[name]


def _collect(arguments: argparse.Namespace) -> int:
    """Record a run; 2 if it failed or did not train."""
    _import_pyarrow()
    from tapml.invariants.launch import collect

    collected = collect(arguments.words, arguments.trace, eager=arguments.eager)
    _tell_end(arguments.words, collected)
    trace = collected.trace
    if trace is not None:
        for note in trace.notes:
            print(f"note: {note}", file=sys.stderr)
        parts = (
            counted(trace.steps, "step"),
            counted(len(trace.processes), "process"),
            counted(trace.rows, "row"),
        )
        print(f"{arguments.trace}: {', '.join(parts)}")
    return EXIT_USAGE if collected.exit_code or trace is None or not trace.steps else 0


def _tell_end(command: list[str], collected: Collected) -> None:
    """Say that a command failed or made no training step."""
    shown, code = shlex.join(command), collected.exit_code
    if code:
        print(f"tapml: the command ended with exit code {code}: {shown}", file=sys.stderr)
    elif collected.trace is None:
        print(
            f"tapml: {shown} made no training step: expected a model's forward call and "
            "optimizer.step() in a Python process with PyTorch",
            file=sys.stderr,
        )
    elif not collected.trace.steps:
        print(
            f"tapml: {shown} ran a model and completed no training step: expected optimizer.step() "
            "of a torch.optim.Optimizer, whose calls are the steps",
            file=sys.stderr,
        )


def _infer(arguments: argparse.Namespace) -> int:
    """Learn a set."""
    with no_collection():
        return _learn(arguments)


def _learn(arguments: argparse.Namespace) -> int:
    _import_pyarrow()
    from tapml.invariants.inference import infer, run_of
    from tapml.invariants.invariant import write_set
    from tapml.invariants.trace import read_trace

    runs = []
    for folder in arguments.traces:
        trace = read_trace(folder)
        for note in trace.notes:
            print(f"note: {folder}: {note}", file=sys.stderr)
        runs.append(run_of(trace))
    counts: dict[str, int] = {}

    def progress(relation: str, count: int) -> None:
        counts[relation] = count
        if count and not arguments.json:
            print(f"{relation}: {count}", file=sys.stderr)

    found = infer(runs, progress)
    if not found.invariants:
        raise InputError("these runs have no invariant in common; check that each of them trains")
    write_set(found, arguments.output)
    if arguments.json:
        learned = {"output": str(arguments.output), "runs": found.runs, "invariants": counts}
        _print_json(learned)
    else:
        learned_from = counted(len(runs), "run")
        print(
            f"{arguments.output}: {counted(len(found.invariants), 'invariant')} of {learned_from}"
        )
    return 0


def _merge(arguments: argparse.Namespace) -> int:
    """Make one set of several."""
    from tapml.invariants.invariant import merged, read_set, write_set

    found = _chosen(arguments, merged([read_set(path) for path in arguments.sets]))
    write_set(found, arguments.output)
    count = counted(len(found.invariants), "invariant")
    print(f"{arguments.output}: {count} of {counted(len(arguments.sets), 'set')}")
    return 0


def _read(arguments: argparse.Namespace) -> InvariantSet:
    from tapml.invariants.invariant import read_set

    return _chosen(arguments, read_set(arguments.set))


def _chosen(arguments: argparse.Namespace, found: InvariantSet) -> InvariantSet:
    """A set without what is suppressed, and of it what is selected."""
    if not found.invariants:
        raise InputError(
            "the set holds no invariant that a run could break; learn from runs that were right "
            "with `tapml invariants infer`"
        )
    found = found.without(arguments.suppress)
    if not found.invariants:
        raise InputError("--suppress leaves no invariant of the set")
    return found if arguments.select is None else found.selected(arguments.select)


def _check(arguments: argparse.Namespace) -> int:
    """Test a run; 1 if it violates an invariant."""
    from tapml.durable.files import write_text

    _import_pyarrow()
    words: list[str] = arguments.words
    # A single word that is no program is the folder of a trace.
    stored = len(words) == 1 and (Path(words[0]).is_dir() or shutil.which(words[0]) is None)
    found = _read(arguments)
    failed = False
    if stored:
        from tapml.invariants.checking import check_trace
        from tapml.invariants.trace import read_trace

        if arguments.on_violation is not None or arguments.port is not None:
            raise InputError("--on-violation and --port need a command: -- python train.py")
        report = check_trace(read_trace(Path(words[0])), found)
    else:
        from tapml.invariants.online import check_command

        collected, checked = check_command(
            words,
            found,
            eager=arguments.eager,
            on_violation=arguments.on_violation or "warn",
            port=arguments.port,
            tell=lambda line: print(f"tapml: {line}", file=sys.stderr, flush=True),
        )
        if not collected.stopped:
            _tell_end(words, collected)
            failed = collected.exit_code != 0
        if checked is None:
            return EXIT_USAGE
        report = checked
    if arguments.report is not None:
        from tapml.invariants.page import render

        write_text(arguments.report, render(report))
    if arguments.json:
        _print_json(report.to_json())
    else:
        _print(report)
    if report.violated:
        return EXIT_MISMATCH
    return EXIT_USAGE if failed else 0


def _print_json(data: dict[str, Any]) -> None:
    # Most commands print none, and learning takes little longer than what it imports.
    import json

    print(json.dumps(data, indent=1, allow_nan=False))


def _print(report: CheckReport) -> None:
    from tapml.invariants.checking import step_text

    for note in report.notes:
        print(f"note: {note}")
    for index, cause in enumerate(report.causes, 1):
        where = f" ({cause.source})" if cause.source else ""
        first = step_text(cause.first_step)
        print(f"cause {index}, first in {first}{where}: {cause.head.first.found}")
        for each in cause.findings[:_FINDINGS_SHOWN]:
            times = "once" if each.count == 1 else f"{each.count} times"
            identity = each.invariant.id[:_LETTERS_OF_AN_ID]
            print(f"  [{identity}] {each.invariant.text} Violated {times}.")
        hidden = len(cause.findings) - _FINDINGS_SHOWN
        if hidden > 0:
            print(f"  and {hidden} more (--json or --report shows them)")
    print(f"{report.headline}; {report.idle_text}")


def _show(arguments: argparse.Namespace) -> int:
    """Print a set."""
    found = _read(arguments)
    if arguments.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        return 0
    for run in found.runs:
        print(f"from {run}")
    for each in found.invariants:
        print(f"{each.id[:_LETTERS_OF_AN_ID]}  {each.text}  ({each.relation}, {each.examples})")
    return 0
