"""What a server or a tracker prints once it listens: one line of JSON, and lines for a person."""

from __future__ import annotations

import importlib
import io
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from tapml_rpc.security.bind import reachable
from tapml_targets.platforms import browser_standard


def announce(line: dict[str, Any], explain: Callable[[Mapping[str, Any], str], list[str]]) -> None:
    """Print a line of JSON, the last on standard output: what others print goes to the other.

    On a terminal the lines of `explain`, which takes the line and this host's name, follow there.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        os.write(output, json.dumps(line).encode() + b"\n")
    finally:
        os.close(output)
    if sys.stderr.isatty():
        for text in explain(line, socket.gethostname()):
            print(f"tapml: {text}", file=sys.stderr, flush=True)


def how_to_reach(line: Mapping[str, Any], host: str) -> list[str]:
    """Lines for a person; `host` replaces an address that stands for all of them."""
    device = line["device"]
    lines = [f"serving {device['platform']}:{device['index']} {device['name']} until Ctrl-C; try"]
    if line["address"]:
        secrets = {}
        if "server_key" in line:
            secrets = {"TAPML_RPC_KEY": "FILE.secret", "TAPML_RPC_SERVER_KEY": line["server_key"]}
        lines.append(_command(line["address"], host, secrets))
    if "websocket" in line:
        names = {"TAPML_RPC_TOKEN": "token", "TAPML_RPC_FINGERPRINT": "fingerprint"}
        given = {variable: line[name] for variable, name in names.items() if name in line}
        lines.append(_command(line["websocket"], host, given))
    return lines


def _command(address: str, host: str, secrets: Mapping[str, str]) -> str:
    words = [f"{name}={quote(value)}" for name, value in secrets.items()]
    return " ".join(["  ", *words, "tapml offload --device", reachable(address, host)])


def page_url(line: Mapping[str, Any], host: str) -> str:
    """The page's URL with the token behind ``#``; `host` replaces an address for all of them."""
    token = f"#token={line['token']}" if "token" in line else ""
    return f"{reachable(line['websocket'], host).replace('ws', 'http', 1)}/{token}"


def how_to_open(line: Mapping[str, Any], host: str) -> list[str]:
    """Lines for a person; none for a tracker that no browser can reach."""
    if "websocket" not in line:
        return []
    url = page_url(line, host)
    standard = browser_standard()
    lines = [f"a browser with {standard} is a device while it shows", f"   {url}", *_code(url)]
    if url.startswith("https"):
        lines += [
            f"browsers show {standard} to secure pages alone: this one is, once the browser trusts",
            "the certificate. It is this machine's own unless --certificate names one; the browser",
            f"asks, and its SHA-256 must be {line['fingerprint']}",
        ]
    else:
        port = urlsplit(url).port
        lines += [
            f"browsers show {standard} to secure pages alone: this one is, on this machine. A",
            f"phone on a cable comes by `adb reverse tcp:{port} tcp:{port}`; others need a tracker",
            "with --websocket 'wss://*:PORT'",
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
