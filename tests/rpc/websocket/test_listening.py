"""What a WebSocket server is told to listen with."""

import pytest

from tapml_rpc.websocket.admission import prepare
from tapml_targets.errors import InputError


def test_a_certificate_without_encryption_is_refused() -> None:
    with pytest.raises(InputError, match="a certificate is for wss://, got ws:"):
        prepare("ws://127.0.0.1:0", certificate="a.pem", certificate_key="a.key")
