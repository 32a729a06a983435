"""``tapml report``: a session's status in a few lines, as JSON, or served live."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tapml.cli.model_arguments import number
from tapml.cli.next_step import next_step, resume_command
from tapml.runs.live_file import LiveReader
from tapml.runs.lock import LOCK
from tapml.runs.wording import duration
from tapml.session.folder import REPORT
from tapml.session.live import SessionLive
from tapml.session.model_times import model_times, multiple, slowest_line
from tapml.session.run_state import in_one_line
from tapml_targets.errors import InputError

PAGE: Final = "report.html"
JOURNAL: Final = "journal.sqlite"
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8765
_MAX_PORT: Final = 65535
_FAILURES_SHOWN: Final = 10


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report",
        help="a session's status; its report, live in a browser",
        description="Print a session's status and the path of its report; or print the report as "
        "JSON,\nor serve it to a browser, live while another process runs the session.",
        epilog="examples:\n  tapml report my-session\n"
        "  tapml report my-session --json | jq .summary\n"
        "  tapml report my-session --serve               http://127.0.0.1:8765/ until Ctrl-C\n"
        "  tapml report my-session --serve --port 9000\n"
        "  ssh -L 8765:localhost:8765 board tapml report my-session --serve\n",
    )
    parser.add_argument("session", type=Path, help="folder of the session")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="serve it to a browser until Ctrl-C; the session may begin later",
    )
    parser.add_argument(
        "--port",
        type=number(f"0 to {_MAX_PORT}", int, 0, _MAX_PORT),
        metavar="N",
        help=f"port to serve at, 0 for a free one (default: {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help=f"address to serve at (default: {DEFAULT_HOST}, local only); a report at "
        "another address can be read without authentication by anyone who reaches it",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the summary or the data, or serve."""
    if not arguments.serve:
        for name in ("port", "host"):
            if getattr(arguments, name) is not None:
                raise InputError(f"--{name} goes with --serve")
        return _print(arguments.session, as_json=arguments.json)
    if arguments.json:
        raise InputError("--json prints the report and --serve serves it: choose one")
    return _serve(arguments)


def summary_lines(report: Mapping[str, Any], folder: Path) -> list[str]:
    """A session's status: outcome, counts, times, failures, the next step."""
    summary, operators = report["summary"], report["operators"]
    states = [f"{summary[name]} {name}" for name in ("moved", "failed", "kept", "waiting")]
    count = summary.get("probes") or 0
    probes = f", {count} exact probe{'s' * (count != 1)}" if count else ""
    lines = [
        f"{report['outcome']['status']}: {report['outcome']['text']}",
        f"operators: {', '.join(text for text in states if not text.startswith('0 '))}; "
        f"{summary['tests_passed']} of {summary['tests']} tests pass{probes}",
    ]
    if summary.get("worst_ratio") is not None:
        lines.append(
            f"worst error ratio: {summary['worst_ratio']:.3g} ({summary['worst_operator']})"
        )
    return [*lines, *time_lines(operators), *_failures(operators), next_step(report, folder)]


def time_lines(operators: list[Mapping[str, Any]]) -> list[str]:
    """Times of each entry on both sides, and the slowest operator."""
    times = model_times(operators)
    entries = [
        f"{name} {entry['target_ms']:.3g} ms on the target, {entry['reference_ms']:.3g} ms on the "
        f"reference ({multiple(entry['ratio'])} x)"
        for name, entry in times["entries"].items()
        if entry["ratio"]
    ]
    if not entries:
        return []
    count = len(times["untimed"])
    untimed = f"; {count} operator{'s' * (count != 1)} without a time" if count else ""
    slowest = slowest_line(times)
    return [f"kernels: {'; '.join(entries)}{untimed}", *([slowest] if slowest else [])]


def _print(folder: Path, *, as_json: bool) -> int:
    page, data = folder / PAGE, folder / REPORT
    if not page.is_file() or not data.is_file():
        if (folder / JOURNAL).is_file():
            raise InputError(
                f"the session in {folder} has no report yet: the first one follows "
                f"the carved tests; continue with `{resume_command(folder)}`, or watch it "
                f"with `tapml report {shlex.quote(str(folder))} --serve`"
            )
        raise InputError(
            f"{folder} holds no report: expected a session's folder; run `tapml offload --session "
            "FOLDER` first, or watch it from its start with `tapml report FOLDER --serve`"
        )
    text = data.read_text(encoding="utf-8")
    if as_json:
        print(text)
        return 0
    try:
        lines = summary_lines(json.loads(text), folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{data} cannot be read ({type(error).__name__}: {error}); run the session again with "
            f"`{resume_command(folder)}`"
        ) from error
    live = LiveReader(folder, SessionLive).read()
    if live.running or live.cut_off:
        lines.insert(0, _running(live))
    print("\n".join(lines))
    print(f"report: {page.resolve()}")
    return 0


def _running(live: SessionLive) -> str:
    where = live.phase or "between two steps"
    if live.total:
        where += f", {live.done} of {live.total}"
    if live.cut_off:
        return (
            f"the last run was killed (process {live.process}: {where}); its results are in the "
            "journal; this was its last report:"
        )
    left = live.seconds_left
    tail = f", about {duration(left)} left" if left is not None else ""
    return f"running in process {live.process}: {where}{tail}; the last report:"


def _failures(operators: list[Mapping[str, Any]]) -> list[str]:
    failed = [each for each in operators if each["state"] == "failed"]
    lines = []
    for each in failed[:_FAILURES_SHOWN]:
        lines.append(f"failed: {each['name']}: {in_one_line(each['reason'] or '')}")
        if each.get("repro"):
            lines.append(f"  repro: {each['repro']}")
    if len(failed) > _FAILURES_SHOWN:
        lines.append(f"failed: {len(failed) - _FAILURES_SHOWN} more, see the report")
    return lines


def _serve(arguments: argparse.Namespace) -> int:
    from tapml.session.report_server import ReportServer

    folder: Path = arguments.session
    if not _may_hold_a_session(folder):
        raise InputError(
            f"{folder} holds other files and no session: expected a session's folder, or an empty "
            "one for a new session"
        )
    host = arguments.host or DEFAULT_HOST
    port = DEFAULT_PORT if arguments.port is None else arguments.port
    with ReportServer(folder, host=host, port=port) as server:
        if not server.is_local:
            print(
                f"tapml: warning: other machines reach {host}, and there is no authentication: "
                "anyone who reaches it can read the report",
                file=sys.stderr,
            )
        print(f"report: {server.url} (Ctrl-C ends it)", flush=True)
        if not (folder / JOURNAL).is_file():
            print(f"no session in {folder} yet: the page waits for it", flush=True)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            print("\nended")
    return 0


def _may_hold_a_session(folder: Path) -> bool:
    if not folder.exists():
        return True
    return folder.is_dir() and (
        (folder / JOURNAL).is_file() or all(each.name == LOCK for each in folder.iterdir())
    )
