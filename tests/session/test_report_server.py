"""A session's report over HTTP: a real server process, real requests."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tapml.report.content_policy import served_policy
from tapml.runs.events import PhaseProgressed, PhaseStarted, ignore
from tapml.runs.live_file import LiveFile, LiveReader
from tapml.runs.lock import LOCK, RunLock
from tapml.session.events import OperatorChanged
from tapml.session.live import SessionLive
from tapml.session.run_state import RunState
from tests.offload.commands import Started, started
from tests.offload.sessions import FinishedSession
from tests.report.browser import open_browser

ORDER = ("waiting", "compiling", "replaying", "validated", "model check", "moved")
NAMES = ("/", "/report.html", "/report.json", "/live.json")


@dataclass(frozen=True)
class Response:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: str

    def json(self) -> Any:
        """The body as data."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    """A `tapml report --serve` that runs."""

    port: int
    process: Started

    def get(self, target: str, *, host: str | None = None, method: str = "GET") -> Response:
        """One request, its target as it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.port}")
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, body)


@contextmanager
def serving(folder: Path, cache: Path, *more: str) -> Iterator[Server]:
    """Serve `folder` in a process of its own, at a free port."""
    with started("report", folder, "--serve", "--port", "0", *more, cache=cache) as process:
        line = process.stdout.readline()
        found = re.search(r"http://[^/]*:(\d+)/", line)
        assert found, line + process.stderr.read()
        yield Server(int(found[1]), process)


@pytest.fixture(scope="module")
def server(finished: FinishedSession) -> Iterator[Server]:
    with serving(finished.folder, finished.cache) as running:
        yield running


def test_the_page_is_the_report_and_asks_for_news(server: Server) -> None:
    page = server.get("/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert re.search(r"<html[^>]* data-live", page.body)
    assert server.get("/report.html").body == page.body


def test_the_data_is_the_file(server: Server, finished: FinishedSession) -> None:
    answer = server.get("/report.json?since=1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == finished.report


def test_a_session_that_has_ended_is_not_running(server: Server) -> None:
    live = server.get("/live.json").json()
    assert live["running"] is False
    assert live["report_version"] > 0
    assert {each["state"] for each in live["operators"].values()} == {"moved"}


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_is_kept_framed_or_guessed_at(server: Server, name: str) -> None:
    headers = server.get(name).headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]


def test_the_policy_names_every_script_of_the_page_and_no_other(server: Server) -> None:
    page = server.get("/")
    policy = page.headers["content-security-policy"]
    assert policy == served_policy(page.body)
    assert policy.count("'sha256-") == page.body.count("<script>") + page.body.count("<style>")
    assert served_policy(page.body.replace("<script>", "<script>evil();", 1)) != policy


@pytest.mark.parametrize(
    "target",
    [
        "/journal.sqlite",
        "/lock",
        "/suite/",
        "/finished",
        "/../report.json",
        "/..%2freport.json",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/./report.json",
        "//report.json/x",
        "/report.json/",
        "/REPORT.JSON",
        "report.json",
        "http://127.0.0.1/report.json",
        "/\\..\\report.json",
        "*",
    ],
)
def test_nothing_else_is_served(server: Server, target: str) -> None:
    answer = server.get(target)
    assert answer.status == 404
    assert answer.body == "expected /, /report.html, /report.json or /live.json\n"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "10.0.0.1:{port}",
             "localhost.evil.example:{port}", "[::1", "", "a b"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["/", "/report.json", "/live.json"])
def test_a_foreign_host_is_refused(server: Server, host: str, name: str) -> None:
    answer = server.get(name, host=host.format(port=server.port) or " ")
    assert answer.status == 421
    assert "tapml" not in answer.body


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_this_machine_has_more_than_one_name(server: Server, host: str) -> None:
    assert server.get("/live.json", host=host.format(port=server.port)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_only_reading_is_offered(server: Server, method: str) -> None:
    assert server.get("/report.json", method=method).status == 501


def test_the_head_of_an_answer_is_the_same(server: Server) -> None:
    head, whole = server.get("/report.json", method="HEAD"), server.get("/report.json")
    assert head.body == ""
    assert head.headers["content-length"] == whole.headers["content-length"]


def test_a_page_waits_for_a_session_and_becomes_its_report(
    tmp_path: Path, finished: FinishedSession
) -> None:
    folder = tmp_path / "later"
    with serving(folder, finished.cache) as server:
        assert "Waiting for a report" in server.get("/").body
        assert server.get("/report.json").status == 404
        assert server.get("/live.json").json()["report_version"] == 0
        folder.mkdir()
        with RunLock(folder / LOCK).hold(), LiveFile(folder, RunState(), ignore) as live:
            live(PhaseStarted("move operators", total=2))
            live(OperatorChanged("softmax", "replaying", 0, 2, {"tests": 3}))
            told = _until(server, lambda data: data["operators"])
            assert told["running"] is True
            assert told["phase"] == "move operators"
            assert told["operators"]["softmax"]["state"] == "replaying"
            (folder / "report.json").write_text(json.dumps(finished.report), encoding="utf-8")
            assert _until(server, lambda data: data["report_version"])["running"] is True
            assert "data-live" in server.get("/").body
        assert _until(server, lambda data: not data["running"])["operators"]
        (folder / "report.json").write_text("{", encoding="utf-8")
        assert server.get("/").status == 500
        assert "run the session again" in server.get("/").body


def test_a_browser_that_waits_sees_the_run_and_then_the_report(
    finished: FinishedSession, tmp_path: Path
) -> None:
    folder = tmp_path / "later"
    with serving(folder, finished.cache) as server, open_browser(tmp_path / "browser") as page:
        page.open(f"http://127.0.0.1:{server.port}/")
        assert str(folder) in page.evaluate("document.body.innerText")
        folder.mkdir()
        with RunLock(folder / LOCK).hold(), LiveFile(folder, RunState(), ignore) as live:
            live(PhaseStarted("carve tests"))
            live(PhaseProgressed("carve tests", 3, 12, "120 tests"))
            page.wait_shown("3 of 12")
            assert "carve tests\n" in page.evaluate("document.body.innerText")
            assert page.evaluate("document.querySelector('progress').value") == 3
            (folder / "report.json").write_text(json.dumps(finished.report), encoding="utf-8")
            page.wait_shown(finished.report["model"]["name"])
    assert page.complaints == []


def test_a_killed_session_is_not_running(tmp_path: Path) -> None:
    with LiveFile(tmp_path, RunState(), ignore) as live:
        live(PhaseStarted("carve tests"))
        left = (tmp_path / "live.json").read_text(encoding="utf-8")
    assert json.loads(left)["running"] is True
    (tmp_path / "live.json").write_text(left, encoding="utf-8")
    (tmp_path / LOCK).write_text("1\n", encoding="utf-8")
    assert LiveReader(tmp_path, SessionLive).read().running is False
    with RunLock(tmp_path / LOCK).hold():
        assert LiveReader(tmp_path, SessionLive).read().running is True


@pytest.mark.parametrize("text", ["", "{", "[]", '{"running": true}', '{"x": NaN}', "[" * 10**5])
def test_a_damaged_live_file_says_that_nothing_runs(tmp_path: Path, text: str) -> None:
    (tmp_path / "live.json").write_text(text, encoding="utf-8")
    with RunLock(tmp_path / LOCK).hold():
        found = LiveReader(tmp_path, SessionLive).read()
    assert found.running is False
    assert found.operators == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_it_ends_cleanly(finished: FinishedSession, number: signal.Signals) -> None:
    with serving(finished.folder, finished.cache) as server:
        assert server.get("/").status == 200
        server.process.send_signal(number)
        output, errors = server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    assert errors == ""
    assert output.endswith("ended\n")


def test_a_port_in_use_is_said_so(finished: FinishedSession) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        with started(
            "report", finished.folder, "--serve", "--port", port, cache=finished.cache
        ) as process:
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in errors
    assert "--port" in errors


def test_other_machines_are_let_in_only_when_asked_and_with_a_warning(
    finished: FinishedSession,
) -> None:
    with serving(finished.folder, finished.cache, "--host", "0.0.0.0") as server:
        assert server.get("/live.json", host=f"192.0.2.7:{server.port}").status == 200
        assert server.get("/live.json", host=f"evil.example:{server.port}").status == 421
        server.process.send_signal(signal.SIGINT)
        _, errors = server.process.communicate(timeout=60)
    assert "anyone who reaches it can read the report" in errors


def test_a_running_session_is_followed_to_its_end(
    finished: FinishedSession, tmp_path: Path
) -> None:
    """Another policy: every verdict of a finished session is made again, and nothing else."""
    session, policy = finished.copy(tmp_path / "session"), tmp_path / "limits.toml"
    policy.write_text(
        '[[override]]\noperator = "*"\npassing = 64.0\ndegraded = 128.0\nreason = "a test"\n'
    )
    arguments = ("offload", "--session", session, "--policy", policy)
    seen: list[dict[str, Any]] = []
    with serving(session, finished.cache) as server:
        before = server.get("/live.json").json()
        with started(*arguments, cache=finished.cache) as process:
            while process.poll() is None:
                seen.append(server.get("/live.json").json())
                time.sleep(0.05)
            assert process.returncode == 0, process.stderr.read()
        after = server.get("/live.json").json()
        report = server.get("/report.json").json()
    assert before["running"] is after["running"] is False
    assert report["loosened"], "the new report is served"
    running = [live for live in seen if live["running"]]
    assert running, "it said that it runs"
    assert [live["version"] for live in running] == sorted(live["version"] for live in running)
    assert "move operators" in {live["phase"] for live in running}
    versions = [live["report_version"] for live in running]
    assert versions == sorted(versions)
    assert len({*versions, after["report_version"]}) >= 3, "the report is written while it runs"
    ranks = {name: rank for rank, name in enumerate(ORDER)}
    moving = [live["operators"] for live in running if live["operators"]]
    for name in after["operators"]:
        states = [ranks[operators[name]["state"]] for operators in moving]
        assert states == sorted(states), f"{name} goes forward"
    assert {each["state"] for each in after["operators"].values()} == {"moved"}
    assert after["verdicts"]["again"] == len(after["operators"])
    assert list(after["verdicts"]["why"]) == ["the policy"]


def _until(server: Server, wanted: Any, seconds: float = 60.0) -> dict[str, Any]:
    """What ``live.json`` says as soon as it says what is wanted."""
    deadline = time.monotonic() + seconds
    while True:
        data: dict[str, Any] = server.get("/live.json").json()
        if wanted(data) or time.monotonic() > deadline:
            return data
        time.sleep(0.05)
