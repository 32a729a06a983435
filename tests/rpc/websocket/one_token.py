"""The guard of a server with one secret."""

from __future__ import annotations

from tapml_targets.errors import SetupError


class OneToken:
    """See :class:`tapml_rpc.websocket.admission.Guard`."""

    def __init__(self, token: str) -> None:
        self._token = token

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        if token != self._token:
            raise SetupError("the token is not this server's")
        return "token:one"
