"""What the tracker's door gives who asks over HTTP: the page of a browser's device, and no more."""

from __future__ import annotations

import http.client
from contextlib import closing

import pytest

from tapml_rpc.tracker.web_page import FOLDER, page_files
from tests.rpc.tracker.trackers import TrackerProcess


def get(tracker: TrackerProcess, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    place = tracker.websocket.removeprefix("ws://")
    with closing(http.client.HTTPConnection(place, timeout=60)) as connection:
        connection.putrequest("GET", path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def test_the_tracker_serves_the_files_of_the_page(shared_tracker: TrackerProcess) -> None:
    files = page_files(FOLDER)
    assert {"index.html", "page.js", "worker.js"} <= set(files)
    for name, content in files.items():
        status, headers, body = get(shared_tracker, f"/{name}?version=1")
        assert (status, body) == (200, content)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert get(shared_tracker, "/")[2] == (FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize(
    "path",
    ["/../__init__.py", "/%2e%2e/__init__.py", "//etc/passwd", "/page.js/", "/web_page/page.js"],
)
def test_nothing_else_is_served(shared_tracker: TrackerProcess, path: str) -> None:
    assert get(shared_tracker, path)[0] == 404


def test_a_page_is_none_where_a_websocket_is_asked_for(shared_tracker: TrackerProcess) -> None:
    assert get(shared_tracker, "/", Upgrade="websocket", Connection="Upgrade")[0] == 404
