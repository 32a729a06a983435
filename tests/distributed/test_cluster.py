"""Schedulers of Dask: which may be used."""

from __future__ import annotations

import pytest

from tapml.distributed.cluster import check_address
from tapml_targets.errors import InputError


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:8786", "tcp://[::1]:8786", "tcp://localhost:1", "tls://big:8786"]
)
def test_loopback_and_tls_are_taken(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tcp://10.0.0.7:8786", "is another machine and is not encrypted"),
        ("tcp://big:8786", "is another machine and is not encrypted"),
        ("127.0.0.1", "tcp://127.0.0.1:8786 or tls://HOST:8786"),
        ("http://127.0.0.1:80", "tcp://127.0.0.1:8786 or tls://HOST:8786"),
    ],
)
def test_another_machine_needs_tls(address: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_address(address)
