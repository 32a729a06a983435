"""What a server prints in a terminal: what to type on the host."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - what is looked for


def how_to_reach(line: Mapping[str, Any], host: str) -> list[str]:
    """Lines for a person.

    `line` is the announcement; `host` replaces the address of a server that listens on all of them.
    """
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
    parts = urlsplit(address)
    if parts.hostname in _EVERYWHERE:
        address = f"{parts.scheme}://{host}:{parts.port}"
    words = [f"{name}={quote(value)}" for name, value in secrets.items()]
    return " ".join(["  ", *words, "tapml offload --device", address])
