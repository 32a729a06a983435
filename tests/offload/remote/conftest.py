"""A few processes that offer one device over every road, for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tapml.cli.main import main
from tapml.devices.listing import list_devices
from tests.offload.remote.served import Road, Served
from tests.offload.sessions import FinishedSession
from tests.rpc.tracker.trackers import TrackerProcess, wait_for

LOOPBACK = ("--bind", "tcp://127.0.0.1:0", "--websocket", "ws://127.0.0.1:0")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's folder with a device's keys, a client's, who is admitted, and a token's hash."""
    folder = tmp_path_factory.mktemp("config")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPML_CONFIG_DIR", str(folder))
        for name in ("device", "client"):
            assert main(["rpc", "keygen", "--name", name]) == 0
        client = str(folder / "keys" / "client.public")
        assert main(["rpc", "keygen", "--authorize", client]) == 0
    yield folder


@pytest.fixture(scope="module")
def tracker() -> Iterator[TrackerProcess]:
    """What lends the devices of `roads`."""
    with TrackerProcess() as process:
        yield process


@pytest.fixture(scope="module")
def roads(
    finished: FinishedSession, config: Path, tracker: TrackerProcess
) -> Iterator[Mapping[str, Road]]:
    """Every road by name; all lead to the device of `finished`.

    Two servers: one as it is started on a desk, one as it is started where others are about.
    """
    lent = ("--tracker", tracker.address)
    keys = config / "keys"
    with ExitStack() as stack:
        plain = Served(*lent, "--name", "open", *LOOPBACK, device=finished.device, config=config)
        stack.enter_context(plain)
        (config / "tokens").touch(mode=0o600)
        guarded = Served(
            *lent,
            *("--name", "guarded", "--through-tracker"),
            *("--key", str(keys / "device.secret"), "--tokens", str(config / "tokens")),
            *("--bind", "tcp://127.0.0.1:0", "--websocket", "wss://127.0.0.1:0"),
            device=finished.device,
            config=config,
        )
        stack.enter_context(guarded)
        wait_for(lambda: len(list_devices(tracker.address)) == 2)
        # A host needs no driver: nothing here may be done by a device of its own.
        host = {"OCL_ICD_VENDORS": str(config / "no drivers")}
        own = {**host, "TAPML_RPC_KEY": str(keys / "client.secret")}
        theirs = {"TAPML_RPC_SERVER_KEY": str(keys / "device.public")}
        pages = {
            **host,
            "TAPML_RPC_TOKEN": guarded.line["token"],
            "TAPML_RPC_FINGERPRINT": guarded.line["fingerprint"],
        }
        asked = {**host, "TAPML_TRACKER": tracker.address}
        yield {
            "tcp": Road(plain.line["address"], host),
            "ws": Road(plain.line["websocket"], host),
            "tcp with keys": Road(guarded.line["address"], own | theirs),
            "wss": Road(guarded.line["websocket"], pages),
            "lent": Road("tracker:open", asked),
            # The lease says which key is the device's.
            "lent through the tracker, with keys": Road("tracker:guarded", asked | own),
        }
