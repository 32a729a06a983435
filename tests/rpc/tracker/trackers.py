"""A tracker process as a test starts it, devices made up for it, and a peer that speaks by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq

from tapml.devices.listing import list_devices
from tapml_rpc import wire
from tapml_rpc.tracker.records import VERSION
from tapml_rpc.tracker.registration import Registration
from tapml_targets.description import to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import SetupError
from tapml_targets.limits import Limits
from tests.rpc.announced import AnnouncedProcess
from tests.rpc.network import free_ports

PATIENCE_SECONDS = 60.0


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come to hold in time"
        time.sleep(0.01)


def made_up_device(platform: str = "opencl", *features: str, **limits: int) -> DeviceDescription:
    """A device of a platform with these features and limits, behind no driver."""
    return DeviceDescription(
        platform=platform,
        index=0,
        name=f"a {platform} device",
        vendor_platform="Somebody's",
        device_type="gpu",
        driver_version="1.0",
        limits=Limits(features=frozenset(features), **limits),  # type: ignore[arg-type]
    )


class TrackerProcess(AnnouncedProcess):
    """What ``tapml rpc tracker`` starts."""

    def __init__(
        self, bind: str = "tcp://127.0.0.1:0", *arguments: str, in_order: bool = False
    ) -> None:
        words = ("--bind", bind, *arguments)
        super().__init__("tapml.cli.main", "rpc", "tracker", *words, in_order=in_order)
        self.relay_port: int = self.line["relay_port"]
        self.websocket: str = self.line.get("websocket", "")

    def again(self) -> TrackerProcess:
        """A new tracker at the same addresses, which were those of `kept_addresses`."""
        websocket = ["--websocket", self.websocket] if self.websocket else []
        return TrackerProcess(self.address, "--relay-port", str(self.relay_port), *websocket)


def kept_addresses() -> tuple[str, ...]:
    """Where a tracker listens that dies and comes back: a port of the system's choice would be
    anybody's meanwhile."""
    port, relay_port, page_port = free_ports(3)
    relay = ("--relay-port", str(relay_port))
    return (f"tcp://127.0.0.1:{port}", *relay, "--websocket", f"ws://127.0.0.1:{page_port}")


@contextmanager
def registered(
    tracker: str, name: str, device: DeviceDescription | None = None, **options: Any
) -> Iterator[Registration]:
    """A registration of this process for a made-up device, until the tracker lists it no more."""
    registration = Registration(
        tracker,
        device or made_up_device(),
        options.pop("address", "tcp://127.0.0.1:9"),
        name=name,
        report=lambda line: None,
        **options,
    )
    with registration:
        registration.wait(PATIENCE_SECONDS)
        yield registration

    def listed() -> bool:
        try:
            found = list_devices(tracker, credentials=options.get("credentials"), timeout=1.0)
        except SetupError:
            # No tracker any more, and so nobody who lists it.
            return False
        fields = (name, device or made_up_device())
        return fields in [(each.name, each.description) for each in found]

    # Its goodbye comes on a connection of its own, and may be on its way.
    wait_for(lambda: not listed())


class RawPeer:
    """A peer of a tracker that says what ours never say."""

    def __init__(self, address: str, routing_id: bytes = b"") -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if routing_id:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        self.socket.connect(address)

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.context.destroy(linger=0)

    def send(self, **header: Any) -> None:
        """Send a header."""
        self.socket.send(wire.pack(header))

    def receive(self, *kinds: str) -> dict[str, Any]:
        """The next message of one of these types, or of any but a probe."""
        while True:
            assert self.socket.poll(int(PATIENCE_SECONDS * 1000)), "the tracker does not answer"
            header = wire.unpack(self.socket.recv())
            if header["type"] in kinds or not (kinds or header["type"] in ("probe", "pong")):
                return header

    def register(self, name: str, **fields: Any) -> dict[str, Any]:
        """Register a made-up device; the tracker's answer."""
        fields = {
            "versions": [VERSION],
            "name": name,
            "life": os.urandom(16),
            "device": to_plain(made_up_device()),
            "address": "tcp://127.0.0.1:9",
            **fields,
        }
        self.send(type="register", **fields)
        return self.receive("registered", "refused")


class Child:
    """Another process that says a line once it is where it shall be."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.ready = threading.Event()
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self._reader.join(5)
        self.process.communicate()

    def stop(self) -> None:
        """Stop it as a debugger or a sleeping machine would."""
        self.process.send_signal(signal.SIGSTOP)
        # A busy machine delivers the signal late.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Let it run again."""
        self.process.send_signal(signal.SIGCONT)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode().strip())
            self.ready.set()


def foreign_device(tracker: str, name: str) -> Child:
    """A device that is written in nothing of ours, and only connects out."""
    path = Path(__file__).with_name("foreign_device.py")
    return Child(path.read_text("utf-8"), tracker, name)


def holder(tracker: str, name: str, label: str = "holder") -> Child:
    """A process that holds a lease, says its address, and says it when the lease is lost."""
    return Child(
        "import sys\n"
        "from tapml_rpc.tracker.request import request_device\n"
        "with request_device(sys.argv[1], name=sys.argv[2], timeout=60, label=sys.argv[3],\n"
        "    on_lost=lambda error: print(f'\\nlost: {error}\\n', end='', flush=True)) as lease:\n"
        "    print(lease.address, flush=True)\n"
        "    exec(sys.stdin.readline())\n"
        "    sys.stdin.readline()\n",
        tracker,
        name,
        label,
    )


def device_process(tracker: str, name: str) -> Child:
    """A process that has a made-up device registered, and says which leases end."""
    return Child(
        "import sys\n"
        "from tapml_rpc.tracker.registration import Registration\n"
        "from tests.rpc.tracker.trackers import made_up_device\n"
        "with Registration(sys.argv[1], made_up_device(), 'tcp://127.0.0.1:9', name=sys.argv[2],\n"
        "    on_lease_ended=lambda lease: print(f'\\nended: {lease}\\n', end='', flush=True),\n"
        "    report=lambda line: print(line, flush=True)) as registration:\n"
        "    sys.stdin.readline()\n",
        tracker,
        name,
    )
