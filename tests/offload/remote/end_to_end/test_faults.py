"""What ends at the far end, ends a run with what to do about it; the session goes on from there.

`exhaustive` has what dies over the other binding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tapml.devices.listing import list_devices
from tapml.session.journal import open_journal
from tests.offload.commands import Ended
from tests.offload.forked import Forked, forked, run_forked
from tests.offload.processes import half_written
from tests.offload.remote.served import Road, Served
from tests.offload.sessions import FinishedSession, assert_same_verdicts, offload_arguments
from tests.rpc.network import free_ports
from tests.rpc.tracker.trackers import TrackerProcess, kept_addresses, wait_for

LOOPBACK = ("--bind", "tcp://127.0.0.1:0", "--websocket", "ws://127.0.0.1:0")
# Some verdicts are in the journal, others are not.
IN_THE_MIDDLE = "stop@after commit */journal.sqlite#60"


@pytest.fixture
def served(finished: FinishedSession, config: Path) -> Iterator[Served]:
    """A server that a test may kill, at ports that nobody else is given meanwhile."""
    port, page_port = free_ports(2)
    addresses = ("--bind", f"tcp://127.0.0.1:{port}", "--websocket", f"ws://127.0.0.1:{page_port}")
    with Served(*addresses, device=finished.device, config=config) as process:
        yield process


def disturbed(
    road: Road, session: Path, finished: FinishedSession, disturb: Callable[[Forked], object]
) -> Ended:
    """How a session ends that stands still in the middle, and meets what was done meanwhile."""
    with forked(
        *offload_arguments(finished.model, session, road.spec),
        cache=finished.cache,
        errors=session.with_suffix(".errors"),
        fault=IN_THE_MIDDLE,
        **road.environment,
    ) as running:
        running.wait_until_stopped()
        disturb(running)
        running.go_on()
        ended = running.ended()
    assert ended is not None, "it hangs"
    return ended


def assert_says_how_to_go_on(ended: Ended, session: Path) -> None:
    assert ended.exit_code == 4, ended.errors
    (line,) = ended.error_lines
    assert f"continue with `tapml offload --session {session}`" in line
    assert "Traceback" not in ended.errors
    assert half_written(session) == []


def assert_blames_no_operator(session: Path) -> None:
    """What was on its way when the far end went is neither passed nor failed."""
    with open_journal(session / "journal.sqlite") as journal:
        assert list(journal.events("failed")) == []
    assert not any((session / "repro").glob("*"))


def assert_goes_on(session: Path, finished: FinishedSession, road: Road) -> None:
    """What was done is not done again, and the end is that of a session nobody disturbed."""
    errors = session.with_suffix(".errors")
    resumed = run_forked(
        "offload", "--session", session, cache=finished.cache, errors=errors, **road.environment
    )
    assert resumed.exit_code == 0, resumed.errors
    assert "verdicts reused" in resumed.errors
    assert_same_verdicts(session, finished)
    with open_journal(session / "journal.sqlite") as journal:
        steps = Counter(data["operator"] for _, _, data in journal.events("step"))
    assert len(steps) == len(finished.report["operators"])
    again = [name for name, times in steps.items() if times > 1]
    assert len(again) <= 1, "but for the one that was on its way"


@pytest.mark.parametrize("binding", ["ws"])
def test_a_server_that_is_killed_and_started_again_goes_on_with_the_session(
    binding: str, served: Served, finished: FinishedSession, tmp_path: Path
) -> None:
    session, road = tmp_path / "session", served.road(binding)
    ended = disturbed(road, session, finished, lambda _: served.kill())
    assert_says_how_to_go_on(ended, session)
    assert_blames_no_operator(session)
    with served.again():
        assert_goes_on(session, finished, road)


@pytest.mark.parametrize("binding", ["tcp"])
def test_a_worker_that_is_killed_costs_the_run_and_the_next_one_finds_another(
    binding: str, served: Served, finished: FinishedSession, tmp_path: Path
) -> None:
    session, road = tmp_path / "session", served.road(binding)
    ended = disturbed(road, session, finished, lambda _: served.kill_workers())
    assert "signal SIGKILL" in ended.errors
    assert_says_how_to_go_on(ended, session)
    assert_goes_on(session, finished, road)


def test_a_tracker_that_is_killed_ends_its_leases_and_the_next_one_lends_again(
    finished: FinishedSession, config: Path, tmp_path: Path
) -> None:
    session = tmp_path / "session"
    with TrackerProcess(*kept_addresses()) as first:
        road = Road("tracker:lent", {"TAPML_TRACKER": first.address})
        with Served(
            *("--tracker", first.address, "--name", "lent", *LOOPBACK),
            device=finished.device,
            config=config,
        ):
            wait_for(lambda: list_devices(first.address))
            ended = disturbed(road, session, finished, lambda _: first.kill())
            assert "tracker" in ended.errors
            assert_says_how_to_go_on(ended, session)
            assert_blames_no_operator(session)
            with first.again():
                assert_goes_on(session, finished, road)


@pytest.mark.parametrize("way", [(), ("--through-tracker",)], ids=["direct", "relayed"])
def test_ctrl_c_gives_the_device_back(
    way: tuple[str, ...],
    tracker: TrackerProcess,
    finished: FinishedSession,
    config: Path,
    tmp_path: Path,
) -> None:
    session = tmp_path / "session"
    road = Road("tracker:lent", {"TAPML_TRACKER": tracker.address})
    lent = ("--tracker", tracker.address, "--name", "lent", *way, *LOOPBACK)

    def lease_count() -> int:
        return sum(len(device.leases) for device in list_devices(tracker.address))

    def interrupt(running: Forked) -> None:
        assert lease_count() == 1
        running.interrupt()

    with Served(*lent, device=finished.device, config=config):
        wait_for(lambda: list_devices(tracker.address))
        ended = disturbed(road, session, finished, interrupt)
        assert ended.exit_code == 130, ended.errors
        assert "continue with" in ended.errors
        wait_for(lambda: lease_count() == 0)
    wait_for(lambda: not list_devices(tracker.address))
