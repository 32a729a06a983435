"""What a tracker prints in a terminal: how a browser becomes a device."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - what is looked for


def page_url(line: Mapping[str, Any], host: str) -> str:
    """The page's URL, with the token behind ``#``, which a browser sends to nobody.

    `line` is the tracker's announcement; `host` replaces the address of a tracker that listens on
    all of them.
    """
    parts = urlsplit(line["websocket"])
    scheme = "https" if parts.scheme == "wss" else "http"
    place = f"{host}:{parts.port}" if parts.hostname in _EVERYWHERE else parts.netloc
    token = f"#token={line['token']}" if "token" in line else ""
    return f"{scheme}://{place}/{token}"


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
