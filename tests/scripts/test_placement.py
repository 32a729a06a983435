from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from scripts.processes import family
from scripts.wire_peers import placement, raw_socket, tapml
from scripts.wire_peers.placement import APART, FREE, ONE_CORE, fixed_placements, placed


@pytest.fixture
def two_cores() -> None:
    if not fixed_placements():
        pytest.skip("this machine has one core, or lets nobody choose")


@pytest.mark.usefixtures("two_cores")
def test_two_ends_share_no_core_and_one_core_is_one() -> None:
    apart, one = fixed_placements()
    assert (apart.name, one.name) == (APART, ONE_CORE)
    assert apart.client and apart.servers and not apart.client & apart.servers
    assert apart.client | apart.servers == os.sched_getaffinity(0)
    assert len(one.client) == 1 and one.client == one.servers


@pytest.mark.usefixtures("two_cores")
def test_a_server_stays_with_all_its_children_and_the_client_goes_to_its_own_cores() -> None:
    apart = fixed_placements()[0]
    before = os.sched_getaffinity(0)
    # What other tests have started and keep.
    others = set(family(os.getpid()))
    with placed(apart) as go_to_client, tapml.open_zmq(), raw_socket.open_peer():
        go_to_client()
        servers = [process for process in family(os.getpid()) if process not in others]
        # Ours has a supervisor and a worker at least.
        assert len(servers) > 2
        assert _cores(servers) == {apart.servers}
        assert _cores(_threads()) == {apart.client}
    assert _cores(_threads()) == {frozenset(before)}


def test_free_leaves_the_cores_alone() -> None:
    before = os.sched_getaffinity(0)
    with placed(FREE) as go_to_client:
        go_to_client()
        assert os.sched_getaffinity(0) == before


@pytest.mark.usefixtures("two_cores")
def test_with_one_core_nothing_can_be_placed() -> None:
    with placed(fixed_placements()[1]):
        assert fixed_placements() == []


def test_a_system_without_affinities_has_the_free_placement_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    assert fixed_placements() == []


@pytest.mark.parametrize(("listed", "client"), [("0,2 1,3", {0, 2}), ("0-1 2-3", {0, 1})])
def test_threads_of_one_core_belong_to_one_end(
    listed: str, client: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = listed.split()
    for thread in range(4):
        folder = tmp_path / f"cpu{thread}/topology"
        folder.mkdir(parents=True)
        siblings = first if thread in client else second
        (folder / "thread_siblings_list").write_text(f"{siblings}\n", "ascii")
    monkeypatch.setattr(placement, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    apart = fixed_placements()[0]
    assert apart.client == client
    assert apart.servers == {0, 1, 2, 3} - client


def _cores(tasks: list[int]) -> set[frozenset[int]]:
    found = set()
    for task in tasks:
        # One may have ended meanwhile.
        with suppress(ProcessLookupError):
            found.add(frozenset(os.sched_getaffinity(task)))
    return found


def _threads() -> list[int]:
    return [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
