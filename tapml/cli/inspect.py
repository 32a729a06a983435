"""``tapml inspect``: the contents of suites, sessions, packages, repros, bundles and Libraries."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.inspection.page import Cell, Page, Table

_EPILOG: Final = """\
examples:
  tapml inspect my-suite                   tests per operator, bytes, what the budget left out
  tapml inspect my-suite --verify          every chunk against its hash as well
  tapml inspect my-suite --tests           the ids of its tests
  tapml inspect my-suite --test prefill/layers.0.self_attn/softmax@p0.s0
  tapml inspect my-session-package         model, device, sizes, entries, operators, hashes
  tapml inspect my-session my-session/repro/softmax softmax.tapml.zip library.tapml --json

A killed carve leaves its suite in <name>.partial, which can be inspected and verified, too.

exit codes: 0 no damage was found; 2 it is damaged or of no known kind
"""
_ROWS_SHOWN: Final = 400


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect",
        help="show the contents of a suite, session, package, repro folder, bundle or Library",
        description="Describe a file or folder written by tapml.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="a suite, session, package, repro folder, bundle, Library or exported tests",
    )
    parser.add_argument("--test", metavar="ID", help="one test of a suite, with its numbers")
    parser.add_argument("--tests", action="store_true", help="list the tests of a suite")
    parser.add_argument(
        "--verify", action="store_true", help="check all of a suite or a package against its hashes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Describe each path."""
    pages = [_describe(path, arguments) for path in arguments.paths]
    if arguments.json:
        print(json.dumps([page.to_json() for page in pages], indent=1, allow_nan=False))
    else:
        for page in pages:
            _print(page)
    return 0


def _describe(path: Path, arguments: argparse.Namespace) -> Page:
    from zipfile import is_zipfile

    from tapml.bundle.bundle import EXTENSION
    from tapml.export.cases import SUITE, is_export
    from tapml.inspection import others
    from tapml.inspection.packages import describe_package
    from tapml.package.files import has_manifest
    from tapml.repro.folder import is_repro
    from tapml.session.folder import is_session
    from tapml.suite.index import INDEX_NAME

    of_suite = arguments.test is not None or arguments.tests or arguments.verify
    if not is_session(path) and has_manifest(path):
        if arguments.test is not None or arguments.tests:
            raise InputError(f"{path} is a package: --test and --tests need a suite")
        return describe_package(path, verify=arguments.verify)
    if is_session(path) or is_export(path):
        if of_suite:
            return _describe_suite(path / SUITE, arguments)
        return others.describe_session(path) if is_session(path) else others.describe_export(path)
    if (path / INDEX_NAME).is_file():
        return _describe_suite(path, arguments)
    if of_suite:
        raise InputError(
            f"{path} is not a suite: --test, --tests and --verify need one"
            + (", or a package for --verify" if arguments.verify else "")
        )
    if is_repro(path):
        return others.describe_repro(path)
    if path.is_file() and (is_zipfile(path) or path.name.endswith(EXTENSION)):
        return others.describe_bundle(path)
    if others.begins_as_library(path):
        return others.describe_library(path)
    fault = f"{path} cannot be inspected"
    if not path.exists():
        fault = f"{path} does not exist"
    raise InputError(
        f"{fault}: expected a suite, a session, a package, a repro folder, a bundle, a folder of "
        "exported tests or a packed Library"
    )


def _describe_suite(path: Path, arguments: argparse.Namespace) -> Page:
    from dataclasses import replace

    from tapml.inspection.page import Table
    from tapml.inspection.suites import describe_suite, describe_test
    from tapml.suite.suite import Suite

    with Suite.open(path) as suite:
        if arguments.test is not None:
            page = describe_test(suite.test(arguments.test), str(path))
        else:
            page = describe_suite(suite)
        if arguments.tests:
            rows = tuple((test.id, test.operator) for test in suite.tests())
            page = replace(page, tables=(*page.tables, Table("tests", ("test", "operator"), rows)))
        if arguments.verify:
            count = suite.verify()
            page = replace(page, facts={**page.facts, "verified": f"all {count} chunks"})
    return page


def _print(page: Page) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, emoji=False)
    console.print(Text(f"{page.kind} {page.path}", style="bold"), soft_wrap=True)
    grid = Table(box=None, pad_edge=False, show_header=False)
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in page.facts.items():
        grid.add_row(Text(name), Text(_cell(value)))
    console.print(grid)
    for table in page.tables:
        console.print()
        console.print(_table(table))
        hidden = len(table.rows) - _ROWS_SHOWN
        if hidden > 0:
            console.print(f"and {hidden} more rows; --json has them all")
    console.print()


def _table(table: Table) -> Any:
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        numbers = all(
            isinstance(row[table.columns.index(column)], int | float) for row in table.rows
        )
        drawn.add_column(Text(column), overflow="fold", justify="right" if numbers else "left")
    for row in table.rows[:_ROWS_SHOWN]:
        drawn.add_row(*(Text(_cell(value)) for value in row))
    return drawn


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else value
