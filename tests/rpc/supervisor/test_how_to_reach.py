"""What is read by whoever starts a server by hand: addresses as a host takes them, and secrets."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from tapml.cli.announcing import how_to_reach
from tapml.cli.server_options import add_serve_options, byte_count, serve_options
from tapml_rpc.supervisor.options import MOST_BLOB_BYTES
from tapml_rpc.supervisor.serve import serve
from tapml_targets.errors import InputError

LINE: dict[str, Any] = {
    "device": {"platform": "opencl", "index": 1, "name": "Mali"},
    "address": "tcp://127.0.0.1:9190",
}


def options(*words: str) -> Any:
    parser = argparse.ArgumentParser()
    add_serve_options(parser)
    return serve_options(parser.parse_args(words))


def test_on_loopback_the_address_is_all_there_is_to_say() -> None:
    assert how_to_reach(LINE, "board") == [
        "serving opencl:1 Mali until Ctrl-C; try",
        "   tapml offload --device tcp://127.0.0.1:9190",
    ]


def test_elsewhere_the_hosts_name_and_the_secrets_are_in_the_command() -> None:
    line = LINE | {
        "address": "tcp://0.0.0.0:9190",
        "server_key": "a&b",
        "websocket": "wss://0.0.0.0:9443",
        "token": "t",
        "fingerprint": "F:F",
    }
    assert how_to_reach(line, "board")[1:] == [
        "   TAPML_RPC_KEY=FILE.secret TAPML_RPC_SERVER_KEY='a&b' tapml offload --device "
        "tcp://board:9190",
        "   TAPML_RPC_TOKEN=t TAPML_RPC_FINGERPRINT=F:F tapml offload --device wss://board:9443",
    ]


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("12", 12), ("2k", 2048), ("512M", 512 << 20), ("4G", 4 << 30)]
)
def test_bytes_are_written_as_people_do(text: str, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "G", "-1", "1.5G", "4GB", "9" * 16, "\u0664"])
def test_what_is_no_number_of_bytes_is_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected bytes such as 512M or 4G"):
        byte_count(text)


def test_what_is_kept_by_hash_takes_no_more_than_a_share_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": (1 << 30) // 4096}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    assert options().blob_bytes == 256 << 20
    pages["SC_PHYS_PAGES"] *= 64
    assert options().blob_bytes == MOST_BLOB_BYTES
    assert options("--blob-bytes", "0").blob_bytes == 0


def test_a_name_without_a_tracker_is_asked_about() -> None:
    with pytest.raises(InputError, match="--name and --through-tracker without a tracker"):
        serve(options("--name", "pixel", "--through-tracker"), print)
