"""``tapml diff``: compares two replays or two sessions."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.model_arguments import number
from tapml.runs.wording import counted
from tapml_targets.errors import EXIT_MISMATCH

if TYPE_CHECKING:
    from rich.text import Text

    from tapml.diff.compare import Diff, Difference, OperatorDifference

_EPILOG: Final = """\
examples:
  tapml replay my-suite --json > before.json      with the old driver, or the old TVM
  tapml replay my-suite --json > after.json       with the new one
  tapml diff before.json after.json               the gate: 1 if anything became worse
  tapml diff session-of-monday session-of-today --json

The first is the known good one. An operator or test is worse if it passed there and is degraded,
fails, was not run or is missing in the second. Different policies, suites or devices are listed
first. Ratios and times are information only.

exit codes: 0 nothing became worse; 1 something did; 2 usage or input
"""
_TESTS_SHOWN: Final = 8


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "diff",
        help="what became worse between two replays or two sessions",
        description="Compare a replay or a session with an earlier one, operator by operator.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "first", type=Path, help="`tapml replay --json` written to a file, or a session"
    )
    parser.add_argument("second", type=Path, help="the same, to compare with the first")
    parser.add_argument(
        "--factor",
        type=number("a number of at least 1", float, 1.0, sys.float_info.max),
        default=4.0,
        metavar="N",
        help="show ratios that differ by more than this factor (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare; 1 if anything became worse."""
    from tapml.diff.compare import compare
    from tapml.diff.outcome import read_outcome

    diff = compare(
        read_outcome(arguments.first), read_outcome(arguments.second), factor=arguments.factor
    )
    if arguments.json:
        print(json.dumps(diff.to_json(), indent=1, allow_nan=False))
    else:
        _print(diff)
    return EXIT_MISMATCH if diff.worse else 0


def _print(diff: Diff) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, emoji=False)
    if diff.facts:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("what differs", "first", "second"):
            table.add_column(title, overflow="fold")
        for fact in diff.facts:
            values = [_shortened(value) for value in (fact.first, fact.second)]
            table.add_row(Text(fact.name), *map(Text, values))
        console.print(table)
        console.print()
    shown = [each for each in diff.operators if each.differs]
    if shown:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("", "operator or test", "first", "second", "ratio"):
            table.add_column(title, overflow="fold")
        for each in shown:
            for cells in _operator_rows(each):
                table.add_row(*cells)
        console.print(table)
        console.print()
    for each in shown:
        if each.operator.reason and each.operator.second != "pass":
            console.print(Text(f"{each.operator.name}: {each.operator.reason}"), soft_wrap=True)
    console.print(Text(_times(diff)), soft_wrap=True)
    console.print(Text(_conclusion(diff)), soft_wrap=True)


def _operator_rows(each: OperatorDifference) -> list[list[Text]]:
    rows = [_cells(each.operator, "")]
    rows += [_cells(test, "  ") for test in each.tests[:_TESTS_SHOWN]]
    hidden = len(each.tests) - _TESTS_SHOWN
    if hidden > 0:
        from rich.text import Text

        rows.append([Text(), Text(f"  and {hidden} more tests"), Text(), Text(), Text()])
    return rows


def _cells(difference: Difference, indent: str) -> list[Text]:
    from rich.text import Text

    style = {"worse": "red", "missing": "red", "better": "green"}.get(difference.change, "")
    ratios = [
        "-" if ratio is None else f"{ratio:.3g}"
        for ratio in (difference.first_ratio, difference.second_ratio)
    ]
    return [
        Text("" if difference.change == "same" else difference.change, style=style),
        Text(indent + difference.name),
        Text(difference.first or "-"),
        Text(difference.second or "-"),
        Text(" → ".join(ratios), style="bold" if difference.ratio_changed else ""),
    ]


def _times(diff: Diff) -> str:
    times = diff.times()
    if not times:
        return "time in kernels: not known on both sides"
    first, second = (sum(getattr(each, side) for each in times) for side in ("first", "second"))
    text = f"time in kernels: {1e3 * first:.3g} ms → {1e3 * second:.3g} ms"
    slower = max(times, key=lambda each: each.second / max(each.first, 1e-9))
    if slower.second > diff.factor * slower.first:
        text += (
            f"; most of all {slower.operator}: "
            f"{1e3 * slower.first:.3g} ms → {1e3 * slower.second:.3g} ms"
        )
    return text


def _conclusion(diff: Diff) -> str:
    counts = {
        change: sum(each.operator.change == change for each in diff.operators)
        for change in ("worse", "missing", "better", "changed", "new")
    }
    parts = [f"{count} {change}" for change, count in counts.items() if count]
    tests = sum(
        test.change in ("worse", "missing") for each in diff.operators for test in each.tests
    )
    if tests:
        parts.append(f"{counted(tests, 'test')} worse or missing")
    if diff.model_worse:
        parts.append("the end-to-end verdict became worse")
    return f"{counted(len(diff.operators), 'operator')}: {', '.join(parts) or 'no status changed'}"


def _shortened(value: str | None) -> str:
    if value is None:
        return "-"
    long_hash = len(value) == 64 and all(letter in "0123456789abcdef" for letter in value)
    return value[:12] if long_hash else value
