"""A session's report over HTTP, live while another process runs the session.

Four names and nothing else: no folder is listed and no path of a request becomes one of a file. It
asks nobody who they are, so it listens on this machine alone unless told otherwise; a page of
another site that a browser on this machine has open can neither read from it (no CORS) nor reach it
under a name of its own (the Host header is checked, against DNS rebinding).
"""

from __future__ import annotations

import base64
import hashlib
import html
import ipaddress
import json
import re
import socket
import sys
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from socketserver import TCPServer
from string import Template
from typing import Any, Final
from urllib.parse import urlsplit

from tapml.offload.live import REPORT, LiveReader, report_version
from tapml.report.html import render
from tapml_targets.errors import InputError

LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_REQUEST_SECONDS: Final = 30.0
_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
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


class ReportServer(ThreadingHTTPServer):
    """Serves one session's folder, which need not exist yet.

    A context manager; :meth:`serve_forever` serves until :meth:`shutdown` or Ctrl-C.

    Parameters
    ----------
    folder
        The session's.
    host
        Name or address to listen on.
    port
        0 for a free one.

    Raises
    ------
    InputError
        If it cannot listen there: the port is in use or reserved, the host is none of this
        machine's.
    """

    daemon_threads = True

    def __init__(self, folder: Path, *, host: str = LOOPBACK, port: int = 0) -> None:
        self.folder = folder
        self.host = host
        self._live = LiveReader(folder)
        self._page: tuple[int, Answer] | None = None
        self._rendering = threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}"
                "; name another port with --port (0 takes a free one), or an address of this "
                "machine with --host"
            ) from error

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's full name, as the base class does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that has gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        name = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}/"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        address = str(self.server_address[0])
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server and not what somebody else's DNS makes of it."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            port = urlsplit(f"//{host}").port or 80
        except ValueError:
            return False
        if port != self.server_port:
            return False
        if name in _LOOPBACK_NAMES or name == self.host.lower():
            return True
        if self.is_local:
            return False
        # Rebinding takes a name; an address is what it is.
        return _is_address(name) or name == socket.gethostname().lower()

    def answer(self, name: str) -> Answer:
        """What lies under a name of the fixed set; anything else is not found."""
        if name in ("/", "/report.html"):
            return self._report_page()
        if name == f"/{REPORT}":
            return self._report_data()
        if name == "/live.json":
            return Answer(HTTPStatus.OK, _JSON, json.dumps(self._live.read()).encode())
        return _plain(HTTPStatus.NOT_FOUND, "expected /, /report.html, /report.json or /live.json")

    def _report_data(self) -> Answer:
        try:
            return Answer(HTTPStatus.OK, _JSON, (self.folder / REPORT).read_bytes())
        except OSError:
            return _plain(HTTPStatus.NOT_FOUND, "there is no report yet")

    def _report_page(self) -> Answer:
        # One at a time: a page of hundreds of operators takes a moment, and it is the same one.
        with self._rendering:
            version = report_version(self.folder)
            if not version:
                return _page(_waiting(self.folder))
            if self._page is None or self._page[0] != version:
                self._page = version, self._rendered()
            return self._page[1]

    def _rendered(self) -> Answer:
        try:
            report: dict[str, Any] = json.loads((self.folder / REPORT).read_bytes())
            return _page(render(report, live=True))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            what = f"{type(error).__name__}: {error}"
            text = f"{self.folder / REPORT} cannot be shown ({what}); run the session again"
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR, text)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "tapml"
    sys_version = ""
    timeout = _REQUEST_SECONDS
    server: ReportServer

    def do_GET(self) -> None:
        """Answer with the page, the report or where the run stands."""
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


def policy_of(page: str) -> str:
    """The content security policy that lets a page's own inline code run, and nothing else."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    sources = {kind: " ".join(each) or "'none'" for kind, each in hashes.items()}
    return (
        f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _page(text: str) -> Answer:
    return Answer(HTTPStatus.OK, _HTML, text.encode(), policy_of(text))


def _plain(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, _TEXT, f"{text}\n".encode())


def _waiting(folder: Path) -> str:
    template = resources.files("tapml.report").joinpath("waiting.html.in").read_text("utf-8")
    message = f"No session has got that far in {folder}. This page becomes the report by itself."
    return Template(template).substitute(
        session=html.escape(str(folder)), message=html.escape(message)
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
