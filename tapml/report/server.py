"""A page over HTTP with its data beside it, live while another process writes them.

A fixed set of names and nothing else: no folder is listed and no path of a request becomes one of a
file. It asks nobody who they are, so it listens on this machine alone unless another address is
given; a page of another site that a browser on this machine has open can neither read from it (no
CORS) nor reach it under a name of its own (the Host header is checked, against DNS rebinding).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from tapml.report.content_policy import served_policy
from tapml.report.listening import LOOPBACK, ListeningServer
from tapml_targets.errors import InputError

PAGE: Final = "report.html"
_REQUEST_SECONDS: Final = 30.0
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """What is sent for a request."""

    status: HTTPStatus
    kind: str
    body: bytes
    policy: str = "default-src 'none'; frame-ancestors 'none'"


class PageServer(ListeningServer):
    """Serves one page, under ``/`` and ``/report.html``, and JSON beside it.

    A context manager; :meth:`serve_forever` serves until :meth:`shutdown` or Ctrl-C.

    Parameters
    ----------
    page
        Makes the page. An :class:`InputError` it raises is what the browser is shown.
    version
        Another number for every page that there is to make: the page is made once for each.
    data
        By name, such as ``live.json``: gives the JSON to send, or None where there is none yet.
    host
        Name or address to listen on.
    port
        0 for a free one.

    Raises
    ------
    InputError
        If it cannot listen there: the port is in use or reserved, the host is not one of this
        machine's.
    """

    def __init__(
        self,
        page: Callable[[], str],
        version: Callable[[], int],
        data: Mapping[str, Callable[[], bytes | None]],
        *,
        host: str = LOOPBACK,
        port: int = 0,
    ) -> None:
        self._make_page = page
        self._version = version
        self._data = {f"/{name}": read for name, read in data.items()}
        self._page: tuple[int, Answer] | None = None
        self._rendering = threading.Lock()
        super().__init__(_Handler, host, port)

    def answer(self, name: str) -> Answer:
        """What lies under a name of the fixed set; anything else is not found."""
        if name in ("/", f"/{PAGE}"):
            return self._answer_page()
        if name not in self._data:
            *names, last = ("/", f"/{PAGE}", *self._data)
            return _plain(HTTPStatus.NOT_FOUND, f"expected {', '.join(names)} or {last}")
        found = self._data[name]()
        if found is None:
            return _plain(HTTPStatus.NOT_FOUND, f"there is no {name.removeprefix('/')} yet")
        return Answer(HTTPStatus.OK, _JSON, found)

    def _answer_page(self) -> Answer:
        # One at a time: a large page takes a moment to make, and it is the same one for all.
        with self._rendering:
            version = self._version()
            if self._page is None or self._page[0] != version:
                self._page = version, self._made()
            return self._page[1]

    def _made(self) -> Answer:
        try:
            text = self._make_page()
        except InputError as error:
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return Answer(HTTPStatus.OK, _HTML, text.encode(), served_policy(text))


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "tapml"
    sys_version = ""
    timeout = _REQUEST_SECONDS
    server: PageServer

    def do_GET(self) -> None:
        """Answer with the page or the data."""
        self._send(self._answer(), with_body=True)

    def do_HEAD(self) -> None:
        """The same without its content."""
        self._send(self._answer(), with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a page that is open asks every second."""

    def _answer(self) -> Answer:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.knows(hosts[0]):
            return _plain(
                HTTPStatus.MISDIRECTED_REQUEST, f"this server is {self.server.url}, not another"
            )
        return self.server.answer(self.path.partition("?")[0])

    def _send(self, answer: Answer, *, with_body: bool) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Content-Security-Policy", answer.policy)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)


def _plain(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, _TEXT, f"{text}\n".encode())
