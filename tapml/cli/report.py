"""``tapml report``: where a session's report is, or the report as JSON."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tapml_targets.errors import InputError


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report",
        help="the report of a session",
        description="Print where the report of a session is, or the report itself as JSON.",
        epilog="examples:\n  tapml report my-session\n"
        "  tapml report my-session --json | jq .summary\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("session", type=Path, help="folder of the session")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the path or the data."""
    page, data = arguments.session / "report.html", arguments.session / "report.json"
    if not page.is_file() or not data.is_file():
        raise InputError(
            f"{arguments.session} holds no report: expected a session's folder; "
            "run `tapml offload --session FOLDER` first"
        )
    print(data.read_text(encoding="utf-8") if arguments.json else page.resolve())
    return 0
