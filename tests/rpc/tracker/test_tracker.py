"""The tracker process with devices and clients of ours: asked for, waited for, held, given back."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tapml.devices.listing import list_devices
from tapml_rpc.client import connect
from tapml_rpc.tracker.lent import HeldLease
from tapml_rpc.tracker.process import TrackerLoop
from tapml_rpc.tracker.request import QueuePlace, request_device
from tapml_targets.description import fingerprint, from_plain
from tapml_targets.errors import (
    DeviceLostError,
    InputError,
    NoSuchDeviceError,
    SetupError,
)
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import open_descriptors
from tests.rpc.network import free_ports
from tests.rpc.peers import ServerProcess
from tests.rpc.tracker.trackers import (
    RawPeer,
    TrackerProcess,
    holder,
    made_up_device,
    registered,
    wait_for,
)


def test_it_prints_one_line_and_ends_with_its_parent_or_a_signal() -> None:
    script = (
        "import os, subprocess, sys\n"
        "serve = [sys.executable, '-m', 'tapml.cli.main', 'rpc', 'tracker', '--bind',\n"
        "    'tcp://127.0.0.1:0', '--parent', str(os.getpid())]\n"
        "child = subprocess.Popen(serve, stdin=subprocess.PIPE)\n"
        "sys.stdin.readline()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None and b'"relay_port"' in parent.stdout.readline()
    parent.kill()
    assert parent.stdout.read() == b""  # its child has ended too, with the pipe
    parent.communicate()
    with TrackerProcess() as tracker:
        tracker.process.terminate()
        assert tracker.process.wait(60) == 0
        assert tracker.process.communicate() == (b"", b"")


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:0", "tcp://*:0"])
def test_off_loopback_it_wants_a_secret(bind: str) -> None:
    with pytest.raises(AssertionError, match="without a secret only loopback is safe"):
        TrackerProcess(bind)


def test_an_address_in_use_is_said() -> None:
    with (
        TrackerProcess() as tracker,
        pytest.raises(AssertionError, match="another address to --bind"),
    ):
        TrackerProcess(tracker.address)


def test_a_websocket_beside_the_address_leaves_the_relay_another_port() -> None:
    """As in ``--websocket ws://127.0.0.1:9191`` beside the usual 9190."""
    port, next_port, after_next = free_ports(3)
    websocket = f"ws://127.0.0.1:{next_port}"
    with TrackerProcess(f"tcp://127.0.0.1:{port}", "--websocket", websocket) as tracker:
        assert (tracker.websocket, tracker.relay_port) == (websocket, after_next)


def test_where_no_tracker_is_the_message_says_how_to_start_one() -> None:
    with pytest.raises(SetupError, match="tapml rpc tracker"):
        list_devices(f"tcp://127.0.0.1:{free_ports(1)[0]}", timeout=0.3)
    with pytest.raises(InputError, match="tcp://HOST:PORT"):
        list_devices("localhost:9190")


def test_a_device_is_listed_with_what_it_is_and_does_and_who_has_it(
    shared_tracker: TrackerProcess,
) -> None:
    device = made_up_device("webgpu", "float16", max_buffer_bytes=1 << 28)
    load = {"sessions": 2, "device_bytes": 4096}
    with (
        registered(shared_tracker.address, "listed", device, load=lambda: load),
        request_device(shared_tracker.address, name="listed", label="ada") as lease,
    ):
        (listed,) = list_devices(shared_tracker.address)
        assert (listed.name, listed.description) == ("listed", device)
        assert listed.fingerprint == fingerprint(device)
        assert listed.load == load
        (held,) = listed.leases
        assert (held.holder, held.id) == ("ada", lease.id)
        assert 0 <= held.age_seconds < 10
        assert lease.token not in repr(listed.to_plain())
    assert list_devices(shared_tracker.address) == []


def test_a_lease_is_known_to_the_device_and_ends_there_when_it_is_released(
    shared_tracker: TrackerProcess,
) -> None:
    taken: list[HeldLease] = []
    ended: list[str] = []
    with registered(
        shared_tracker.address, "asked", on_lease=taken.append, on_lease_ended=ended.append
    ):
        with request_device(shared_tracker.address, name="asked", label="ada") as lease:
            assert (taken[0].label, taken[0].identity) == ("ada", "loopback")
        wait_for(lambda: ended == [lease.id])


def test_a_device_that_declines_is_not_lent(shared_tracker: TrackerProcess) -> None:
    def decline(lease: HeldLease) -> None:
        raise SetupError("somebody plays on it")

    with (
        registered(shared_tracker.address, "unwilling", on_lease=decline),
        pytest.raises(SetupError, match=r"not free within 0\.5 s"),
    ):
        request_device(shared_tracker.address, name="unwilling", timeout=0.5)


def test_a_device_that_is_slow_to_let_go_stays_registered(shared_tracker: TrackerProcess) -> None:
    go_on = threading.Event()
    with registered(
        shared_tracker.address, "slow", on_lease_ended=lambda lease: go_on.wait(60) and None
    ):
        with request_device(shared_tracker.address, name="slow"):
            pass
        with pytest.raises(SetupError, match="not free"):
            request_device(shared_tracker.address, name="slow", timeout=0.5)
        go_on.set()
        request_device(shared_tracker.address, name="slow", timeout=60).release()


def test_what_is_not_there_is_said_with_what_is(shared_tracker: TrackerProcess) -> None:
    places: list[QueuePlace] = []
    with (
        registered(shared_tracker.address, "pixel"),
        pytest.raises(NoSuchDeviceError, match=r"a device named pixle for 0\.3 s.*are pixel"),
    ):
        request_device(shared_tracker.address, name="pixle", timeout=0.3, on_queue=places.append)
    assert [str(place) for place in places] == [
        "no registered device meets the request (registered: pixel); waiting for one"
    ]


def test_four_clients_have_one_device_one_after_the_other(shared_tracker: TrackerProcess) -> None:
    inside: list[str] = []
    places: dict[str, list[int]] = {}

    def use(who: str) -> None:
        def told(place: QueuePlace) -> None:
            places.setdefault(who, []).append(place.position)

        with request_device(
            shared_tracker.address, name="only", label=who, timeout=60, on_queue=told
        ):
            inside.append(who)
            time.sleep(0.02)
            inside.append(who)

    with registered(shared_tracker.address, "only"):
        threads = [threading.Thread(target=use, args=(f"client{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(inside) == 8
    assert all(inside[n] == inside[n + 1] for n in range(0, 8, 2)), inside
    assert all(told == sorted(told, reverse=True) for told in places.values()), places


def test_a_client_killed_with_a_lease_gives_it_to_the_next(shared_tracker: TrackerProcess) -> None:
    ended: list[str] = []
    with (
        registered(shared_tracker.address, "orphan", on_lease_ended=ended.append),
        holder(shared_tracker.address, "orphan") as first,
    ):
        assert first.ready.wait(60)
        started = time.monotonic()
        first.process.kill()
        with request_device(shared_tracker.address, name="orphan", timeout=60):
            assert time.monotonic() - started < 30
            assert len(ended) == 1


def test_two_devices_through_the_relay_are_not_mistaken_for_each_other(
    shared_tracker: TrackerProcess, require_device: RequireDevice
) -> None:
    require_device("opencl")
    ports = free_ports(2)
    with (
        ServerProcess("--data-port", str(ports[0])) as one,
        ServerProcess("--data-port", str(ports[1])) as two,
    ):
        registrations = [
            registered(
                shared_tracker.address,
                name,
                from_plain(server.line["device"]),
                address=server.address,
                data_address=f"tcp://127.0.0.1:{port}",
                relayed=True,
            )
            for name, server, port in zip(("left", "right"), (one, two), ports, strict=True)
        ]
        with (
            registrations[0],
            registrations[1],
            request_device(shared_tracker.address, name="left") as left,
            request_device(shared_tracker.address, name="right") as right,
            connect(left.address) as first,
            connect(right.address) as second,
        ):
            assert [link.epoch.hex() for link in (first._link, second._link)] == [
                one.line["epoch"],
                two.line["epoch"],
            ]
            left.verify(first.device)
            rng = np.random.default_rng(0)
            payloads = [rng.bytes(5 << 20) for _ in range(2)]
            got: dict[int, bytes] = {}

            def work(number: int) -> None:
                session = (first, second)[number]
                for _ in range(3):
                    buffer = session.allocate(5 << 20)
                    session.write(buffer, payloads[number])
                    got[number] = bytes(session.read(buffer))
                    session.free(buffer)

            threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert got == dict(enumerate(payloads))
            # What ends a lease ends what goes through it, and nothing else.
            left.release()
            with pytest.raises(DeviceLostError):
                for _ in range(6000):
                    first.fence()
                    time.sleep(0.01)
            second.fence()
        with pytest.raises(SetupError, match="has ended"):
            connect(left.address)


def test_a_device_that_is_not_what_it_was_registered_as_is_found_out(
    shared_tracker: TrackerProcess, require_device: RequireDevice
) -> None:
    require_device("opencl")
    with (
        ServerProcess() as server,
        registered(shared_tracker.address, "liar", made_up_device(), address=server.address),
        request_device(shared_tracker.address, name="liar") as lease,
        connect(lease.address) as session,
        pytest.raises(NoSuchDeviceError, match="registered as a opencl device"),
    ):
        lease.verify(session.device)


def test_a_name_that_is_taken_is_refused_and_free_again_when_its_device_is_gone(
    shared_tracker: TrackerProcess,
) -> None:
    with registered(shared_tracker.address, "pixel"):
        with (
            pytest.raises(InputError, match="a device called 'pixel' is registered"),
            registered(shared_tracker.address, "pixel"),
        ):
            pass
        assert [device.name for device in list_devices(shared_tracker.address)] == ["pixel"]
    with registered(shared_tracker.address, "pixel"):
        pass


def test_200_messages_of_garbage_leave_it_serving(tracker: TrackerProcess) -> None:
    rng = np.random.default_rng(0)
    with (
        registered(tracker.address, "good"),
        RawPeer(tracker.address) as stranger,
        request_device(tracker.address, name="good") as lease,
    ):
        words = ["register", "request", "renew", "load", "list", "release", "lease-accepted"]
        for number in range(200):
            if number % 2:
                frames = [rng.bytes(int(rng.integers(0, 60))) for _ in range(rng.integers(1, 4))]
                stranger.socket.send_multipart(frames)
            else:
                value = [7, -1, "x" * 300, b"\x00", None, [[]], {}][number // 2 % 7]
                fields = ["lease", "leases", "name", "device", "wanted", "request", "load"]
                stranger.send(
                    type=words[number // 2 % 7],
                    versions=[2],
                    **{field: value for field in fields if rng.integers(2)},
                )
        stranger.socket.send(bytes(1 << 20))  # over the bound
        assert lease.lost is None
        assert [device.name for device in list_devices(tracker.address)] == ["good"]
        assert list_devices(tracker.address)[0].leases[0].id == lease.id
    assert tracker.process.poll() is None


def test_an_old_version_is_refused_with_a_reason_the_peer_can_read(
    shared_tracker: TrackerProcess,
) -> None:
    with RawPeer(shared_tracker.address) as peer:
        answer = peer.register("old", versions=[0])
        assert "speaks version 2, the other end [0]" in answer["error"]["message"]


def test_a_peer_cannot_choose_to_be_taken_for_another(shared_tracker: TrackerProcess) -> None:
    with RawPeer(shared_tracker.address, b"victim") as peer:
        assert "routing id" in peer.register("chosen")["error"]["message"]
    assert list_devices(shared_tracker.address) == []


def test_nothing_is_left_behind_by_many_leases(shared_tracker: TrackerProcess) -> None:
    def descriptors() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    def of_the_tracker() -> int:
        return len([*Path(f"/proc/{shared_tracker.process.pid}/fd").iterdir()])

    with registered(shared_tracker.address, "worn"):
        request_device(shared_tracker.address, name="worn").release()
        before, there = descriptors(), of_the_tracker()
        for _ in range(20):
            request_device(shared_tracker.address, name="worn").release()
        wait_for(lambda: descriptors() <= before and of_the_tracker() <= there)


@pytest.mark.parametrize("taken", ["address", "relay"])
def test_a_tracker_that_cannot_listen_leaves_nothing_open(taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ports = (port, 0) if taken == "address" else (0, port)
        counts: list[int] = []
        for _ in range(4):
            with pytest.raises(SetupError, match="cannot listen on"):
                TrackerLoop(f"tcp://127.0.0.1:{ports[0]}", ports[1])
            counts.append(open_descriptors())
        # The first may open what a process has once.
        wait_for(lambda: open_descriptors() <= counts[0])
