"""The page that makes a browser a device: how the tracker serves it, and where a user finds it."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from websockets.datastructures import Headers
from websockets.http11 import Response

from tapml_rpc.security.bind import reachable


def page_url(line: Mapping[str, Any], host: str) -> str:
    """The page's URL with the token behind ``#``; `host` replaces an address for all of them."""
    token = f"#token={line['token']}" if "token" in line else ""
    return f"{reachable(line['websocket'], host).replace('ws', 'http', 1)}/{token}"


def how_to_open(line: Mapping[str, Any], host: str) -> list[str]:
    """Lines for a person; none for a tracker that no browser can reach."""
    if "websocket" not in line:
        return []
    url = page_url(line, host)
    lines = ["a browser with WebGPU is a device while it shows", f"   {url}", *_code(url)]
    if url.startswith("https"):
        lines += [
            "browsers show WebGPU to secure pages alone: this one is, once the browser trusts the",
            "certificate. It is this machine's own unless --certificate names one; the browser",
            f"asks, and its SHA-256 must be {line['fingerprint']}",
        ]
    else:
        port = urlsplit(url).port
        lines += [
            "browsers show WebGPU to secure pages alone: this one is, on this machine. A phone on",
            f"a cable comes by `adb reverse tcp:{port} tcp:{port}`; others need a tracker with",
            "--websocket 'wss://*:PORT'",
        ]
    return lines


def _code(url: str) -> list[str]:
    """The address for a camera, if the package segno is installed."""
    try:
        segno = importlib.import_module("segno")
    except ImportError:
        return []
    drawn = io.StringIO()
    segno.make(url, error="l", micro=False).terminal(out=drawn, compact=True)
    return drawn.getvalue().splitlines()


FOLDER: Final = Path(__file__).parent.parent / "web_page"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # A page of one release talks to a tracker of the same.
    "Cache-Control": "no-cache",
}


def page_response(target: str) -> Response | None:
    """The answer to a request for a file of the page (``/`` for the page); None for none."""
    path = target.partition("?")[0]
    found = _files().get("/index.html" if path == "/" else path)
    if found is None:
        return None
    kind, body = found
    headers = Headers(_HEADERS)
    headers["Content-Type"] = kind
    headers["Content-Length"] = str(len(body))
    headers["Connection"] = "close"
    return Response(HTTPStatus.OK.value, HTTPStatus.OK.phrase, headers, body)


@cache
def _files() -> dict[str, tuple[str, bytes]]:
    if not FOLDER.is_dir():
        return {}
    return {
        f"/{path.name}": (_TYPES[path.suffix], path.read_bytes())
        for path in FOLDER.iterdir()
        if path.suffix in _TYPES
    }
