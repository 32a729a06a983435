"""Devices and clients without ZeroMQ: registered, lent, reached, whatever the other speaks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.cli.main import main
from tapml.devices.listing import list_devices
from tapml.devices.reach import open_device
from tapml_rpc import wire
from tapml_rpc.client import connect
from tapml_rpc.tracker.request import QueuePlace, request_device
from tapml_rpc.websocket import frames
from tapml_targets.errors import NoSuchDeviceError, SetupError
from tests.rpc.tracker.trackers import (
    PATIENCE_SECONDS,
    Child,
    RawPeer,
    TrackerProcess,
    made_up_device,
    registered,
    wait_for,
)
from tests.rpc.websocket.peers import open_connection, receive

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "tracker_websocket.json").read_text("utf-8")
)


@pytest.fixture(params=["over ZeroMQ", "over WebSocket"])
def asked(request: pytest.FixtureRequest, shared_tracker: TrackerProcess) -> str:
    """The tracker's address, of either binding."""
    over_zmq = request.param == "over ZeroMQ"
    return shared_tracker.address if over_zmq else shared_tracker.websocket


def speaking(monkeypatch: pytest.MonkeyPatch, *bindings: str) -> None:
    """Let this process's clients speak these alone."""
    monkeypatch.setattr("tapml_rpc.tracker.request.own_bindings", lambda: list(bindings))


def test_a_device_of_another_making_is_lent_by_name_and_computes(
    foreign: Child, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_TRACKER", asked)
    with open_device("tracker:page") as session:
        assert session.device.name == "a page's memory"
        buffer = session.allocate(6 << 20)
        payload = os.urandom(6 << 20)
        session.write(buffer, payload)
        assert bytes(session.read(buffer)) == payload
        session.fence()
        (held,) = list_devices(asked)[0].leases
        assert held.phase == "held"


@pytest.mark.parametrize("spec", ["tracker:kind=webgpu", "tracker:feature=float16"])
def test_it_is_lent_by_what_it_is(
    foreign: Child, asked: str, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_TRACKER", asked)
    with open_device(spec) as session:
        session.fence()


def test_a_queue_is_one_for_both_bindings(foreign: Child, shared_tracker: TrackerProcess) -> None:
    places: list[QueuePlace] = []
    with request_device(shared_tracker.address, name="page", label="ada"):
        with pytest.raises(SetupError, match="not free"):
            request_device(
                shared_tracker.websocket, name="page", timeout=0.3, on_queue=places.append
            )
        assert str(places[0]) == "number 1 in the queue for page, held by ada"
    request_device(shared_tracker.websocket, name="page", timeout=PATIENCE_SECONDS).release()


def test_who_comes_without_the_lease_is_turned_away_by_tracker_and_device(
    foreign: Child, shared_tracker: TrackerProcess
) -> None:
    with request_device(shared_tracker.websocket, name="page") as lease:
        address = lease.address.rpartition("/")[0]
        with pytest.raises(SetupError, match="the lease has ended, or never was"):
            connect(f"{address}/{'0' * 32}", lease=lease.token)
        with pytest.raises(SetupError, match="another one's device"):
            connect(lease.address, lease="guess")
    with pytest.raises(SetupError, match="the lease has ended, or never was"):
        connect(lease.address, lease=lease.token)


def test_each_client_is_given_the_address_it_can_use(
    shared_tracker: TrackerProcess, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct, beside = "tcp://127.0.0.1:9", "ws://127.0.0.1:10"
    with registered(shared_tracker.address, "both", address=direct, websocket=beside):
        (listed,) = [each for each in list_devices(asked) if each.name == "both"]
        assert (listed.address, listed.websocket) == (direct, beside)
        for bindings, address in (
            (["zmq", "websocket"], direct),
            (["websocket"], beside),
        ):
            speaking(monkeypatch, *bindings)
            with request_device(asked, name="both") as lease:
                assert lease.address == address


def test_a_device_whose_binding_a_client_lacks_is_not_lent_to_it(
    shared_tracker: TrackerProcess, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaking(monkeypatch, "websocket")
    with (
        registered(shared_tracker.address, "old", made_up_device("cuda")),
        pytest.raises(NoSuchDeviceError, match="old"),
    ):
        request_device(asked, kind="cuda", timeout=0.3)
    # Over ZeroMQ a client that says nothing speaks that alone.
    with (
        registered(
            shared_tracker.websocket, "new", made_up_device("metal"), address="ws://[::1]:9"
        ),
        RawPeer(shared_tracker.address) as client,
    ):
        wanted = {"kind": "metal"}
        client.send(type="request", versions=[2], request=1, label="x", wanted=wanted)
        assert client.receive("queued", "granted")["devices"] == []


def test_without_zeromq_and_numpy_devices_register_and_clients_compute(
    foreign: Child, shared_tracker: TrackerProcess
) -> None:
    script = (
        "import importlib.util, sys\n"
        "sys.modules['zmq'] = sys.modules['numpy'] = None\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'zmq' else find(name)\n"
        "from tapml.devices.reach import open_device\n"
        "from tapml.devices.listing import list_devices\n"
        "from tapml_rpc.tracker.registration import Registration\n"
        "tracker = sys.argv[1]\n"
        "like = list_devices(tracker)[0].description\n"
        "with Registration(tracker, like, 'ws://127.0.0.1:9', name='bare') as bare:\n"
        "    bare.wait(30)\n"
        "    print(*(device.name for device in list_devices(tracker)))\n"
        "    with open_device('tracker:page') as session:\n"
        "        buffer = session.allocate(4)\n"
        "        session.write(buffer, b'tapm')\n"
        "        print(bytes(session.read(buffer)).decode())\n"
        "    try:\n"
        "        list_devices('tcp://127.0.0.1:9')\n"
        "    except Exception as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, shared_tracker.websocket],
        env=os.environ | {"TAPML_TRACKER": shared_tracker.websocket},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names, read, refused = done.stdout.splitlines()
    assert (names, read) == ("bare page", "tapm")
    assert "give the tracker's ws:// or wss:// address" in refused


def test_tapml_devices_lists_them_as_a_table_and_as_json(
    shared_tracker: TrackerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    website = shared_tracker.websocket
    beside = {"relayed": True, "address": "ws://127.0.0.1:9"}
    with registered(website, "hidden", made_up_device("cpu"), **beside):
        command = ["devices", "--platform", "cpu", "--tracker"]
        assert main([*command, website]) == 0
        assert "tracker:hidden: through the tracker; fingerprint" in capsys.readouterr().out
        assert main([*command, website, "--json"]) == 0
        (remote,) = json.loads(capsys.readouterr().out)["remote"]
        assert (remote["spec"], remote["address"]) == ("tracker:hidden", "relay+ws")
    with pytest.raises(SetupError, match=r"no tracker answers at ws://127\.0\.0\.1:1 within"):
        list_devices("ws://127.0.0.1:1", timeout=0.2)


def test_garbage_costs_its_sender_and_nobody_else(
    foreign: Child, shared_tracker: TrackerProcess
) -> None:
    rng = random.Random(0)
    values = [7, -1, "x" * 300, b"\x00", None, [[]], {}, "relay+ws", True]
    fields = ["lease", "leases", "name", "device", "wanted", "request", "load", "bindings"]
    with request_device(shared_tracker.websocket, name="page") as lease:
        for _ in range(10):
            with open_connection(f"{shared_tracker.websocket}/tracker") as stranger:
                for number in range(20):
                    header: dict[str, object] = {field: rng.choice(values) for field in fields}
                    kinds = ["register", "request", "renew", "load", "list", "release", "dial"]
                    header |= {"type": rng.choice(kinds), "versions": [2]}
                    garbage = rng.randbytes(rng.randrange(60))
                    message = garbage if number % 3 == 2 else frames.join(wire.pack(header))
                    stranger.send(message)
                assert receive(stranger)[0]["type"]
        assert lease.lost is None
        (page,) = list_devices(shared_tracker.websocket)
        assert (page.name, page.leases[0].id) == ("page", lease.id)
    assert shared_tracker.process.poll() is None


def test_a_peers_messages_are_those_of_the_document(shared_tracker: TrackerProcess) -> None:
    """The bytes of the golden vectors, sent to a tracker, are answered as they say."""
    vectors = {each["name"]: each for each in GOLDEN["messages"]}

    def sent(name: str) -> bytes:
        return bytes.fromhex(vectors[name]["message"])

    with (
        open_connection(f"{shared_tracker.websocket}/tracker") as device,
        open_connection(f"{shared_tracker.websocket}/tracker") as client,
    ):

        def answer(peer: object, *kinds: str) -> dict[str, object]:
            while True:
                header, chunk = receive(peer)  # type: ignore[arg-type]
                assert chunk == b""
                if header["type"] in kinds:
                    return header

        device.send(sent("register"))
        assert answer(device, "registered", "refused") == vectors["registered"]["header"]
        device.send(sent("load"))
        assert answer(device, "pong") == {"type": "pong"}
        client.send(sent("request"))
        offered = answer(device, "lease")
        assert offered.keys() == vectors["lease"]["header"].keys()
        lease = offered["lease"]
        accepted = {**vectors["lease-accepted"]["header"], "lease": lease}
        device.send(frames.join(wire.pack(accepted)))
        granted = answer(client, "granted")
        assert granted.keys() == vectors["granted"]["header"].keys()
        assert (granted["address"], granted["lease"]) == ("relay+ws", lease)
        client.send(frames.join(wire.pack({**vectors["renew"]["header"], "leases": [lease]})))
        assert answer(client, "pong", "lease-ended") == {"type": "pong"}
        client.send(frames.join(wire.pack({**vectors["release"]["header"], "lease": lease})))
        ended = answer(device, "lease-ended")
        assert ended == {**vectors["lease-ended"]["header"], "lease": lease}
        device.send(frames.join(wire.pack({"type": "lease-cleared", "lease": lease})))
        device.send(sent("goodbye"))
        wait_for(lambda: "page-1" not in [d.name for d in list_devices(shared_tracker.address)])


@pytest.mark.parametrize("message", GOLDEN["messages"], ids=lambda message: message["name"])
def test_the_vectors_are_one_encoding_of_their_headers(message: dict[str, object]) -> None:
    packed, chunk = frames.split(bytes.fromhex(str(message["message"])))
    header = wire.unpack(packed)
    expected = json.loads(json.dumps(message["header"]), object_hook=_bytes)
    assert (header, bytes(chunk)) == (expected, b"")
    assert frames.join(wire.pack(header)).hex() == message["message"]


def _bytes(value: dict[str, object]) -> object:
    return bytes.fromhex(str(value["$bytes"])) if value.keys() == {"$bytes"} else value
