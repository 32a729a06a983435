"""Who gets which device, told by a registry with neither sockets nor a clock."""

from __future__ import annotations

from typing import Any

import pytest

from tapml_rpc.tracker.leases import CLEAR_SECONDS, OFFER_SECONDS
from tapml_rpc.tracker.lent import Lent
from tapml_rpc.tracker.records import LEASE_SECONDS, VERSION, Lease, Sender
from tapml_rpc.tracker.registry import SILENCE_SECONDS, Registry
from tapml_rpc.tracker.request import queue_place
from tapml_targets.description import to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, ProtocolError, SetupError, TapmlError
from tests.rpc.tracker.trackers import made_up_device

LIFE = b"0123456789abcdef"


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Office:
    """A registry whose messages are kept, with devices that answer as they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.open: set[str] = set()
        self.registry = Registry(self, lambda: self.now)
        self.silent: set[str] = set()
        self.late: list[tuple[str, dict[str, Any]]] = []

    def send(self, key: bytes, header: dict[str, Any]) -> None:
        name = key.decode()
        self.sent.setdefault(name, []).append(header)
        if name in self.silent:
            return
        answers = {"lease": "lease-accepted", "lease-ended": "lease-cleared"}
        if header["type"] in answers and name.startswith("device"):
            self.late.append((name, {"type": answers[header["type"]], "lease": header["lease"]}))

    def open_relay(self, lease: Lease) -> None:
        self.open.add(lease.id)

    def close_relay(self, lease: Lease) -> None:
        self.open.discard(lease.id)

    def say(self, who: str, **header: Any) -> None:
        self.late = []
        self.registry.receive(Sender(who.encode()), header)
        self.settle()

    def settle(self) -> None:
        """Let time stand still while everybody answers."""
        self.registry.tick()
        while self.late:
            name, header = self.late.pop(0)
            self.registry.receive(Sender(name.encode()), header)
            self.registry.tick()

    def pass_time(self, seconds: float) -> None:
        self.late = []
        self.now += seconds
        self.settle()

    def leave(self, who: str) -> None:
        self.late = []
        self.registry.gone(who.encode(), "killed")
        self.settle()

    def register(self, name: str, device: DeviceDescription | None = None, **fields: Any) -> None:
        said: dict[str, Any] = {
            "versions": [VERSION],
            "name": name,
            "life": LIFE,
            "device": to_plain(device or made_up_device()),
            "address": "tcp://127.0.0.1:9",
            **fields,
        }
        self.say(f"device-{name}", type="register", **said)

    def request(self, who: str, *, wanted: Any = None, **fields: Any) -> None:
        asked = {"versions": [VERSION], "request": 1, "wanted": wanted or {}, "label": who}
        self.say(who, type="request", **{**asked, **fields})

    def granted(self, who: str) -> str:
        """The name of the device that was granted last; empty for none."""
        found = [each["name"] for each in self.sent.get(who, []) if each["type"] == "granted"]
        return str(found[-1]) if found else ""

    def lease(self, who: str) -> str:
        return str([e["lease"] for e in self.sent[who] if e["type"] == "granted"][-1])

    def release(self, who: str) -> None:
        self.say(who, type="release", lease=self.lease(who))

    def positions(self, who: str) -> list[int]:
        return [each["position"] for each in self.sent[who] if each["type"] == "queued"]

    def last(self, who: str) -> dict[str, Any]:
        return self.sent[who][-1]


@pytest.fixture
def office() -> Office:
    return Office()


def test_a_free_device_is_granted_at_once_and_its_own_end_knows_the_holder_first(
    office: Office,
) -> None:
    office.register("pixel")
    office.request("ada")
    assert office.granted("ada") == "pixel"
    told, granted = office.sent["device-pixel"][-1], office.last("ada")
    assert (told["lease"], told["token"]) == (granted["lease"], granted["token"])
    assert told["label"] == "ada"


def test_requests_are_met_in_their_order_and_told_as_they_move_up(office: Office) -> None:
    office.register("pixel")
    for who in ("ada", "bob", "cyd", "dan"):
        office.request(who)
    office.release("ada")
    office.release("bob")
    assert [office.granted(who) for who in ("bob", "cyd", "dan")] == ["pixel", "pixel", ""]
    # Each is told again when the one who holds the device is another.
    assert office.positions("dan") == [3, 2, 1]
    assert office.last("dan")["devices"] == [["pixel", "cyd"]]


def test_a_position_counts_those_alone_who_want_the_same_devices(office: Office) -> None:
    office.register("pixel")
    office.register("board", made_up_device("webgpu"))
    for who in ("ada", "bob"):
        office.request(who, wanted={"name": "pixel"})
        office.request(f"{who}-board", wanted={"kind": "webgpu"})
    assert office.positions("bob") == [1] and office.positions("bob-board") == [1]


def test_the_device_with_less_to_do_is_chosen(office: Office) -> None:
    office.register("busy", load={"sessions": 3})
    office.register("idle", load={"sessions": 0})
    office.request("ada")
    assert office.granted("ada") == "idle"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"name": "small"}, "small"),
        ({"kind": "webgpu"}, "browser"),
        ({"features": ["float16", "subgroups"]}, "large"),
        ({"limits": {"min_buffer_bytes": 1 << 30}}, "large"),
        ({"kind": "opencl", "limits": {"min_buffer_bytes": 1}}, "large"),
        ({"limits": {"min_shared_memory_bytes": 1 << 40}}, "browser"),
    ],
)
def test_a_device_meets_name_kind_features_and_limits(
    office: Office, wanted: dict[str, Any], expected: str
) -> None:
    limits = {"max_shared_memory_bytes": 1 << 15}
    office.register("small", made_up_device("opencl", max_buffer_bytes=1 << 20, **limits))
    large = {"max_buffer_bytes": 1 << 32, **limits}
    office.register("large", made_up_device("opencl", "float16", "subgroups", **large))
    # It states no bound on shared memory: that counts as met.
    office.register("browser", made_up_device("webgpu", max_buffer_bytes=1 << 28))
    office.request("ada", wanted=wanted)
    assert office.granted("ada") == expected


def test_who_wants_what_is_not_there_waits_and_hears_what_is(office: Office) -> None:
    office.register("pixel")
    office.request("ada", wanted={"name": "pixle"})
    assert office.last("ada")["devices"] == [] and office.last("ada")["known"] == ["pixel"]
    office.register("pixle")
    assert office.granted("ada") == "pixle"


def test_a_limit_nobody_knows_is_refused_with_those_there_are(office: Office) -> None:
    with pytest.raises(InputError, match=r"min_warp.*min_buffer_bytes"):
        office.request("ada", wanted={"limits": {"min_warp": 1}})


def test_a_holder_that_is_gone_gives_the_device_to_the_next(office: Office) -> None:
    office.register("pixel")
    office.request("ada")
    office.request("bob")
    office.leave("ada")
    assert office.granted("bob") == "pixel"
    ended = [each for each in office.sent["device-pixel"] if each["type"] == "lease-ended"]
    assert [each["why"] for each in ended] == ["its holder is gone: killed"]


def test_a_lease_that_is_not_renewed_expires_and_both_ends_hear_it(office: Office) -> None:
    office.register("pixel")
    office.request("ada")
    office.pass_time(LEASE_SECONDS / 2)
    office.say("ada", type="renew", leases=[office.lease("ada")])
    office.say("device-pixel", type="load", load={})
    office.pass_time(LEASE_SECONDS * 0.9)
    assert office.last("ada")["type"] == "pong"
    office.say("device-pixel", type="load", load={})
    office.pass_time(LEASE_SECONDS * 0.2)
    assert office.last("ada")["type"] == "lease-ended"
    assert "not renewed for 15 s" in office.last("ada")["error"]["message"]


def test_a_device_that_is_gone_ends_its_leases_and_its_holder_hears_which(office: Office) -> None:
    office.register("pixel", address="relay")
    office.request("ada")
    assert office.open == {office.lease("ada")}
    office.leave("device-pixel")
    error = office.last("ada")["error"]
    assert error["kind"] == "DeviceLostError" and "'pixel' is gone: killed" in error["message"]
    assert office.open == set()


def test_a_device_that_says_nothing_is_gone(office: Office) -> None:
    office.register("pixel")
    office.pass_time(SILENCE_SECONDS + 1)
    assert office.registry.devices == {}


def test_nobody_is_blamed_for_a_time_in_which_the_tracker_itself_was_stopped(
    office: Office,
) -> None:
    office.register("pixel")
    office.request("ada")
    office.registry.excuse(100)
    office.pass_time(100)
    assert list(office.registry.devices) == ["pixel"]
    assert office.last("ada")["type"] == "granted"


def test_a_device_that_takes_no_note_of_an_offer_is_passed_over(office: Office) -> None:
    office.register("deaf")
    office.silent.add("device-deaf")
    office.request("ada")
    assert office.granted("ada") == ""
    office.register("pixel")
    office.pass_time(OFFER_SECONDS + 0.1)
    assert office.granted("ada") == "pixel"


def test_a_device_that_declines_is_asked_again_later(office: Office) -> None:
    office.register("pixel")
    office.silent.add("device-pixel")
    office.request("ada")
    offer = office.last("device-pixel")["lease"]
    office.say("device-pixel", type="lease-declined", lease=offer)
    assert office.granted("ada") == ""
    office.silent.clear()
    office.pass_time(2.1)
    assert office.granted("ada") == "pixel"


def test_a_device_is_not_lent_again_before_it_is_rid_of_the_last_holder(office: Office) -> None:
    office.register("pixel")
    office.request("ada")
    office.request("bob")
    office.silent.add("device-pixel")
    office.release("ada")
    assert office.granted("bob") == ""
    office.silent.clear()
    office.say("device-pixel", type="lease-cleared", lease=office.lease("ada"))
    assert office.granted("bob") == "pixel"


def test_a_device_that_never_says_it_is_rid_of_a_holder_does_not_stay_busy(office: Office) -> None:
    office.register("pixel")
    office.request("ada")
    office.request("bob")
    office.silent.add("device-pixel")
    office.release("ada")
    office.silent.clear()
    office.pass_time(CLEAR_SECONDS + 0.1)
    office.pass_time(2.1)
    assert office.granted("bob") == "pixel"


def test_a_name_belongs_to_the_device_that_has_it(office: Office) -> None:
    office.register("pixel")
    office.request("ada")
    fields = {"versions": [VERSION], "device": to_plain(made_up_device()), "address": "relay"}
    with pytest.raises(InputError, match=r"'pixel' is registered and was heard 0.0 s ago"):
        office.say("liar", type="register", name="pixel", life=b"f" * 16, **fields)
    assert office.registry.devices["pixel"].sender.key == b"device-pixel"
    assert office.last("ada")["type"] == "granted"


def test_a_device_replaces_its_own_older_self_and_what_hung_on_that_ends(office: Office) -> None:
    office.register("pixel")
    office.request("ada")
    fields = {"versions": [VERSION], "device": to_plain(made_up_device()), "address": "relay"}
    office.say("device-again", type="register", name="pixel", life=LIFE, **fields)
    assert office.registry.devices["pixel"].sender.key == b"device-again"
    assert office.last("ada")["error"]["kind"] == "DeviceLostError"


def test_nobody_speaks_for_another_ones_lease_or_device(office: Office) -> None:
    office.register("pixel")
    office.register("board")
    office.request("ada", wanted={"name": "pixel"})
    office.say("bob", type="release", lease=office.lease("ada"))
    office.say("device-board", type="lease-cleared", lease=office.lease("ada"))
    office.say("bob", type="renew", leases=[office.lease("ada")])
    assert office.sent["bob"][0]["error"]["kind"] == "InputError"
    assert office.last("ada")["type"] == "granted"
    office.request("cyd", wanted={"name": "pixel"})
    assert office.granted("cyd") == ""


def test_a_client_that_no_longer_waits_is_forgotten(office: Office) -> None:
    office.register("pixel")
    office.request("ada")
    office.request("bob")
    office.request("cyd")
    office.say("bob", type="cancel", request=1)
    office.release("ada")
    assert (office.granted("bob"), office.granted("cyd")) == ("", "pixel")


def test_one_connection_cannot_take_the_whole_queue(office: Office) -> None:
    with pytest.raises(SetupError, match="16 requests and leases"):
        for number in range(17):
            office.request("greedy", request=number)


def test_a_device_on_loopback_is_lent_on_its_own_machine_alone(office: Office) -> None:
    office.register("pixel")
    asked = {"type": "request", "versions": [VERSION], "request": 1, "wanted": {}, "label": "far"}
    office.late = []
    office.registry.receive(Sender(b"far", host="192.0.2.7"), asked)
    office.settle()
    assert office.granted("far") == "" and office.last("far")["known"] == ["pixel"]
    fields = {"versions": [VERSION], "name": "board", "life": LIFE, "address": "tcp://127.0.0.1:9"}
    with pytest.raises(InputError, match=r"another machine.*relay"):
        office.registry.receive(
            Sender(b"board", host="192.0.2.7"),
            {"type": "register", "device": to_plain(made_up_device()), **fields},
        )


def test_a_way_through_a_door_on_loopback_is_given_to_who_knows_one() -> None:
    office = Office()
    office.registry = Registry(office, lambda: office.now, local_door=True)
    fields = {"versions": [VERSION], "name": "page", "life": LIFE, "address": "relay+ws"}
    there = Sender(b"device-page", binding="websocket")
    office.registry.receive(
        there, {"type": "register", "device": to_plain(made_up_device()), **fields}
    )
    asked = {"type": "request", "versions": [VERSION], "request": 1, "label": "x"}
    far = {"host": "192.0.2.7"}
    both = ["zmq", "websocket"]
    for who, sender, bindings in (
        ("far", Sender(b"far", **far), both),
        ("tunnel", Sender(b"tunnel", **far, binding="websocket"), ["websocket"]),
    ):
        office.registry.receive(sender, {**asked, "bindings": bindings, "wanted": {}})
        office.settle()
        assert office.granted(who) == ("page" if who == "tunnel" else "")


def test_a_device_that_listens_on_all_addresses_is_reached_where_it_came_from(
    office: Office,
) -> None:
    fields = {"versions": [VERSION], "name": "board", "life": LIFE, "address": "tcp://0.0.0.0:9000"}
    device = to_plain(made_up_device())
    office.late = []
    office.registry.receive(
        Sender(b"device-board", host="192.0.2.7"), {"type": "register", "device": device, **fields}
    )
    assert office.registry.devices["board"].address == "tcp://192.0.2.7:9000"


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../pixel"},
        {"name": ""},
        {"name": "a" * 64},
        {"life": b"short"},
        {"versions": [99]},
        {"versions": "1"},
        {"device": {"platform": "opencl"}},
        {"address": "file:///etc/passwd"},
        {"address": "tcp://host"},
        {"address": "tcp://host:1\x1b[2J"},
        {"load": {"sessions": -1}},
        {"load": {"sessions": 1 << 63}},
        {"load": {"s" * 33: 1}},
        {"load": {str(number): 1 for number in range(17)}},
        {"load": {"sessions": nested(500)}},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_card_with_a_wrong_field_is_refused(office: Office, wrong: dict[str, Any]) -> None:
    fields = {"versions": [VERSION], "name": "pixel", "life": LIFE, "address": "relay"}
    with pytest.raises(TapmlError):
        office.say(
            "device", type="register", **{**fields, "device": to_plain(made_up_device()), **wrong}
        )
    assert office.registry.devices == {}


def taken(**fields: Any) -> dict[str, Any]:
    """What a device answers to an offer."""
    offer = {"lease": "1", "token": "secret", "identity": "ada", "label": "ada@blobs", **fields}
    return Lent(None, None, None, lambda: None).take(offer)


@pytest.mark.parametrize(
    ("field", "most"), [("lease", 64), ("token", 64), ("identity", 256), ("label", 256)]
)
def test_a_device_takes_no_more_of_an_offer_than_the_bounds(field: str, most: int) -> None:
    assert taken(**{field: "x" * most})["type"] == "lease-accepted"
    with pytest.raises(ProtocolError, match="a lease"):
        taken(**{field: "x" * (most + 1)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": -1},
        {"position": 1 << 63},
        {"known": ["x"] * 65},
        {"known": ["x" * 4097]},
        {"devices": [["x", ""]] * 65},
        {"devices": nested(500)},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_client_takes_no_more_of_a_queue_than_the_bounds(wrong: dict[str, Any]) -> None:
    place = {"position": 1, "devices": [["pixel", "ada"]], "known": ["pixel"]}
    assert queue_place(place).position == 1
    with pytest.raises(ProtocolError):
        queue_place({**place, **wrong})


@pytest.mark.parametrize("type_", [None, 7, "no such thing", ["register"]])
def test_an_unknown_message_is_refused(office: Office, type_: object) -> None:
    with pytest.raises(ProtocolError, match="unknown message type"):
        office.say("ada", type=type_)


def test_the_list_comes_in_pages_that_fit_a_message(office: Office) -> None:
    for number in range(20):
        details = {f"note{index}": "x" * 4000 for index in range(8)}
        plain = {**to_plain(made_up_device()), "details": details}
        office.say(
            f"device-{number}",
            type="register",
            versions=[VERSION],
            name=f"device{number:02}",
            life=LIFE,
            device=plain,
            address="relay",
        )
    names: list[str] = []
    more = True
    while more:
        after = names[-1] if names else ""
        office.say("ada", type="list", versions=[VERSION], after=after)
        page = office.last("ada")
        assert 0 < len(page["devices"]) < 20
        names += [row["name"] for row in page["devices"]]
        more = page["more"]
    assert names == [f"device{number:02}" for number in range(20)]


@pytest.mark.parametrize(
    "wrong", [{"server_key": "short"}, {"certificate": "none"}, {"load": "heavy"}], ids=str
)
def test_a_card_that_is_refused_takes_nothing_from_the_device_of_that_name(
    office: Office, wrong: dict[str, Any]
) -> None:
    office.register("pixel")
    office.request("anna")
    with pytest.raises(TapmlError):
        office.register("pixel", **wrong)
    assert office.registry.devices["pixel"].leases
    assert office.last("anna")["type"] == "granted"
