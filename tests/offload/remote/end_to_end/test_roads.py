"""A device elsewhere is as one that is here: over every road the same session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tapml.devices.listing import list_devices
from tapml.package.make import make_package
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.target import Target
from tests.models.folders import make_folder
from tests.offload.forked import forked, run_forked
from tests.offload.plants import PLANTS, plant
from tests.offload.remote.served import Road
from tests.offload.sessions import (
    NEW_TOKENS,
    TOKENS,
    FinishedSession,
    assert_same_verdicts,
    offload_arguments,
    read_report,
)
from tests.rpc.tracker.trackers import TrackerProcess, wait_for

# The test of two devices at once goes over "ws" and "tcp with keys".
ROADS = ("tcp", "wss", "lent", "lent through the tracker, with keys")
# 72 float32 values a row: 72 KiB.
VOCABULARY = 256


@pytest.mark.parametrize("name", ROADS)
def test_a_session_over_every_road_ends_in_the_verdicts_of_one_at_home(
    name: str,
    roads: Mapping[str, Road],
    finished: FinishedSession,
    tracker: TrackerProcess,
    tmp_path: Path,
) -> None:
    road, session = roads[name], tmp_path / "session"
    ended = run_forked(
        *offload_arguments(finished.model, session, road.spec),
        cache=finished.cache,
        errors=tmp_path / "errors",
        **road.environment,
    )
    assert ended.exit_code == 0, ended.errors
    assert_same_verdicts(session, finished)
    wait_for(lambda: not any(device.leases for device in list_devices(tracker.address)))


def test_a_package_runs_on_a_device_elsewhere_as_it_ran_at_home(
    roads: Mapping[str, Road], finished: FinishedSession, tmp_path: Path
) -> None:
    package = make_package(finished.folder, tmp_path / "package").path
    at_home = finished.report["final"]["prompts"][0]["tokens"]
    for name in ("ws", "lent through the tracker, with keys"):
        road = roads[name]
        ended = run_forked(
            *("run", package, "--device", road.spec, "--tokens", TOKENS, "--json"),
            *("--max-new-tokens", NEW_TOKENS),
            cache=finished.cache,
            errors=tmp_path / "printed",
            **road.environment,
        )
        assert ended.exit_code == 0, ended.errors
        assert json.loads(ended.errors)["tokens"] == at_home


def test_a_second_session_on_the_same_weights_uploads_none_and_no_kernel_either(
    roads: Mapping[str, Road], finished: FinishedSession, tracker: TrackerProcess, tmp_path: Path
) -> None:
    """Weights of less than 64 KiB are not worth the question: this model has two larger ones."""
    model = make_folder(tmp_path / "model", "one_layer", vocab_size=VOCABULARY)

    def kept() -> dict[str, int]:
        (load,) = (d.load for d in list_devices(tracker.address) if d.name == "open")
        return load

    loads = [kept()]
    for number, name in enumerate(("tcp", "ws")):
        ended = run_forked(
            *offload_arguments(model, tmp_path / str(number), roads[name].spec),
            *("--only", "take"),
            cache=finished.cache,
            errors=tmp_path / "errors",
            **roads[name].environment,
        )
        assert ended.exit_code == 0, ended.errors
        wait_for(lambda: kept()["blobs_attached"] > loads[-1]["blobs_attached"])
        wait_for(lambda: kept()["sessions"] == 0)
        loads.append(kept())
    first, *others = (after["blobs_received"] for after in loads[1:])
    assert first > loads[0]["blobs_received"], "the first one brings what it needs"
    assert others == [first]


def test_two_devices_at_once_do_not_meet(
    roads: Mapping[str, Road], finished: FinishedSession, tmp_path: Path
) -> None:
    """Two sessions at the same time, over two roads to two servers."""
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(
                forked(
                    *offload_arguments(finished.model, tmp_path / name, roads[road].spec),
                    cache=finished.cache,
                    errors=tmp_path / f"{name}.errors",
                    **roads[road].environment,
                )
            )
            for name, road in (("open", "ws"), ("guarded", "tcp with keys"))
        }
        for name, each in running.items():
            ended = each.ended()
            assert ended is not None and ended.exit_code == 0, (name, ended)
            assert_same_verdicts(tmp_path / name, finished)


def test_a_failure_is_looked_into_on_the_device_it_happened_on_and_replays_there(
    roads: Mapping[str, Road],
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    tiny_target: Target,
    tmp_path: Path,
) -> None:
    """The device is lent to the session alone: a second look is under the same lease."""
    wrong, road = PLANTS["swapped arguments"], roads["lent through the tracker, with keys"]
    session, errors = tmp_path / "session", tmp_path / "errors"
    cache = finished.copy_cache(tmp_path / "cache")
    plant(wrong, tiny_plan.operators[wrong.operator], tiny_target, cache)
    ended = run_forked(
        *offload_arguments(finished.model, session, road.spec),
        *("--only", wrong.operator),
        cache=cache,
        errors=errors,
        **road.environment,
    )
    assert ended.exit_code == 1 and wrong.says in ended.errors, ended.errors
    (failed,) = (each for each in read_report(session)["operators"] if each["repro"])
    assert failed["name"] == wrong.operator
    assert any(each["kind"] == "cause" for each in failed["diagnosis"]), failed["diagnosis"]
    assert not any("localization stopped" in each["text"] for each in failed["diagnosis"])
    replayed = run_forked(
        *("replay", failed["repro"], "--device", road.spec, "--json"),
        cache=cache,
        errors=errors,
        **road.environment,
    )
    assert replayed.exit_code == 1
    again, first = json.loads(replayed.errors)["verdict"], failed["replay"]["worst"]
    assert (again["status"], again["reason"]) == (first["status"], first["reason"])
