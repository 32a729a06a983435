"""A page over HTTP, of no session: a real server, real requests."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tapml.report.server import PageServer
from tapml_targets.errors import InputError


@dataclass
class Work:
    """What a long piece of work shows of itself."""

    version: int = 1
    made: list[int] = field(default_factory=list)
    progress: bytes | None = None
    damaged: bool = False

    def page(self) -> str:
        self.made.append(self.version)
        if self.damaged:
            raise InputError("the result is cut off; run it again")
        return f"<p>version {self.version}</p><script>go();</script>"


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def server(work: Work) -> Iterator[PageServer]:
    data = {"live.json": lambda: work.progress}
    with PageServer(work.page, lambda: work.version, data) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def get(server: PageServer, name: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", name)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_a_page_is_made_once_for_each_version(server: PageServer, work: Work) -> None:
    for name in ("/", "/report.html", "/?again"):
        assert get(server, name) == (200, "<p>version 1</p><script>go();</script>")
    work.version = 2
    assert "version 2" in get(server, "/")[1]
    assert work.made == [1, 2]


def test_a_page_that_cannot_be_made_says_why_until_there_is_another(
    server: PageServer, work: Work
) -> None:
    work.damaged = True
    assert get(server, "/") == (500, "the result is cut off; run it again\n")
    work.damaged, work.version = False, 2
    assert get(server, "/")[0] == 200


def test_data_is_there_as_soon_as_there_is_some(server: PageServer, work: Work) -> None:
    assert get(server, "/live.json") == (404, "there is no live.json yet\n")
    work.progress = b'{"done": 3}'
    assert get(server, "/live.json") == (200, '{"done": 3}')


def test_a_name_that_is_not_served_is_answered_with_those_that_are(server: PageServer) -> None:
    assert get(server, "/report.json") == (404, "expected /, /report.html or /live.json\n")
