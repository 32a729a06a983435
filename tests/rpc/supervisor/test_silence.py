"""How long a client may say nothing, and when its connection is looked at meanwhile."""

from __future__ import annotations

import time

import pytest

from tapml_rpc.supervisor.relay import Silence


def test_a_silence_is_over_once_it_is_longer_than_is_borne() -> None:
    began = time.monotonic()
    silence = Silence(600)
    assert silence.check(began + 500) == 0
    assert silence.check(began + 5000) == pytest.approx(5000, abs=100)
    silence.broken(began + 5000)
    assert silence.check(began + 5500) == 0


def test_any_silence_is_borne_where_none_is_too_long() -> None:
    began = time.monotonic()
    assert Silence(0).check(began + 1e6) == 0


def test_a_silent_clients_connection_is_looked_at_once_a_second() -> None:
    began = time.monotonic() + 1000
    silence = Silence(0)
    silence.broken(began)
    asked = [silence.asks_for_probe(began + tenths / 10) for tenths in range(60)]
    assert sum(asked) == 4 and not any(asked[:21])
