from __future__ import annotations

import http.server
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.environment import pytorch_index
from scripts.environment.installer import Durations, Pip
from scripts.environment.record import python_of
from tests.rpc.network import free_ports
from tests.scripts.conftest import SetUp


class _Empty(http.server.BaseHTTPRequestHandler):
    """An index that is there and has nothing."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def empty_index() -> Iterator[str]:
    """The address of an HTTP server that answers 404 to everything."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def closed_port() -> int:
    """A port of this machine on which nothing listens."""
    [port] = free_ports(1)
    return port


def test_an_index_that_answers_with_an_error_answers(empty_index: str) -> None:
    assert pytorch_index.answers(empty_index)


def test_a_closed_port_is_no_answer(closed_port: int) -> None:
    assert not pytorch_index.answers(f"http://127.0.0.1:{closed_port}")


def test_a_silent_index_is_given_up_within_the_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not pytorch_index.answers(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.3)


def test_without_the_index_pytorch_is_left_to_the_default_one(
    tmp_path: Path, closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pip = Pip(Path(sys.executable), tmp_path / "log", (), Durations())
    assert not pytorch_index.install_cpu_build(pip, tmp_path, f"http://127.0.0.1:{closed_port}")
    assert "the default index is used instead" in capsys.readouterr().err
    assert not pip.log.exists()


@pytest.mark.slow
def test_an_index_without_a_build_for_this_machine_is_done_without(
    set_up: SetUp,
    empty_index: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    project, folder = set_up.project, set_up.first.folder
    pip = Pip(python_of(folder), folder / "log", (), Durations())
    assert not pytorch_index.install_cpu_build(pip, project, empty_index)
    said = capsys.readouterr().err
    assert "There is no build of torch==2.13.0 for Python" in said
    assert said.endswith("The default index is used instead.\n")
