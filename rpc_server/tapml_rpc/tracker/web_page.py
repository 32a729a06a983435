"""The page that makes a browser a device: as the tracker serves it."""

from __future__ import annotations

import gzip
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Final

from websockets.datastructures import Headers
from websockets.http11 import Response

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
    files = page_files(FOLDER) if FOLDER.is_dir() else {}
    types = {name: _TYPES.get(Path(name).suffix) for name in files}
    return {f"/{name}": (kind, files[name]) for name, kind in types.items() if kind}


def page_files(folder: Path) -> dict[str, bytes]:
    """The files of a built page by name, of which the scripts lie there compressed."""
    return {
        path.name.removesuffix(".gz"): (
            gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        )
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
