"""A model nobody has seen moves to a browser whole, whatever happens to the page meanwhile."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tapml.compiler.compiler import Compiler
from tapml.devices.listing import list_devices
from tapml.plan.graph_plan import GraphPlan
from tapml.session.journal import open_journal
from tapml_targets.target import Target
from tests.offload.forked import forked, run_forked
from tests.offload.plants import Plant, edit, plant
from tests.offload.sessions import FinishedSession, offload_arguments, read_report
from tests.rpc.tracker.trackers import wait_for
from tests.web.doorway import Doorway
from tests.web.pages import NAME, DevicePage

pytestmark = pytest.mark.run_first

# It notices within seconds who gives no sign of life.
TRACKER_OPTIONS = ("--silence", "5")

# Some verdicts are in the journal by then, others are not.
IN_THE_MIDDLE = "stop@after commit */journal.sqlite#12"


def sleep_and_wake(shown: DevicePage, doorway: Doorway) -> None:
    shown.page.signal_browser(signal.SIGSTOP)
    wait_for(lambda: list_devices(shown.tracker.address) == [])
    shown.page.signal_browser(signal.SIGCONT)


def lose_gpu(shown: DevicePage, doorway: Doorway) -> None:
    shown.page.crash_gpu()
    shown.wait("#log", "the GPU device was lost")


FAULTS: dict[str, Callable[[DevicePage, Doorway], object]] = {
    "its tab crashes": lambda shown, doorway: shown.page.crash_tab(),
    "its tab is closed": lambda shown, doorway: shown.page.close_tab(),
    "the way there is cut": lambda shown, doorway: doorway.cut(),
    "its machine sleeps": sleep_and_wake,
    "its GPU is lost": lose_gpu,
}
# What comes back by itself is not opened again.
RETURN = {"the way there is cut", "its machine sleeps", "its GPU is lost"}


def is_back(tracker: str, since: float) -> bool:
    """Whether the page has registered again since then, and nobody holds it."""
    seconds = time.monotonic() - since
    return any(
        not each.leases and each.registered_seconds < seconds for each in list_devices(tracker)
    )


def test_a_session_goes_on_after_what_ends_a_page(
    finished: FinishedSession,
    webgpu_cache: Path,
    shown: DevicePage,
    doorway: Doorway,
    tmp_path: Path,
) -> None:
    """`exhaustive` has every fault."""
    chosen = ("its tab crashes", "its machine sleeps", "its GPU is lost")
    goes_on_after(chosen, finished, webgpu_cache, shown, doorway, tmp_path)


def goes_on_after(
    faults: Sequence[str],
    finished: FinishedSession,
    webgpu_cache: Path,
    shown: DevicePage,
    doorway: Doorway,
    tmp_path: Path,
) -> None:
    """One migration meets fault after fault; at most the step in hand is done again each time."""
    session, errors = tmp_path / "session", tmp_path / "errors"
    tracker = shown.tracker.address
    road = {"TAPML_TRACKER": tracker}
    arguments = offload_arguments(finished.model, session, f"tracker:{NAME}")
    lost_again = False
    for fault in faults:
        ended = None
        while ended is None:
            with forked(
                *(*arguments, "--target", "webgpu"),
                cache=webgpu_cache,
                errors=errors,
                fault=IN_THE_MIDDLE,
                **road,
            ) as running:
                if running.stops():
                    before = time.monotonic()
                    FAULTS[fault](shown, doorway)
                    running.go_on()
                    ended = running.ended()
                    assert ended is not None, "it hangs"
                else:
                    # A browser that has just come back may lose its GPU once more.
                    early = running.ended()
                    assert early and early.exit_code == 4 and not lost_again, (fault, early)
                    lost_again = True
                    wait_for(lambda: list_devices(tracker))
        assert ended.exit_code == 4, (fault, ended.errors)
        (line,) = ended.error_lines
        assert f"continue with `tapml offload --session {session}`" in line, fault
        assert "Traceback" not in ended.errors
        with open_journal(session / "journal.sqlite") as journal:
            assert list(journal.events("failed")) == [], "no operator is to blame"
        if fault not in RETURN:
            shown.open()
        wait_for(partial(is_back, tracker, before))
    finish = partial(run_forked, cache=webgpu_cache, errors=errors, **road)
    last = finish("offload", "--session", session)
    if last.exit_code == 4 and not lost_again:
        lost_again = True
        wait_for(lambda: list_devices(tracker))
        last = finish("offload", "--session", session)
    assert last.exit_code == 0, last.errors
    assert "verdicts reused" in last.errors
    shown.wait_ready()
    assert_moved_whole(session)
    with open_journal(session / "journal.sqlite") as journal:
        steps = Counter(data["operator"] for _, _, data in journal.events("step"))
    again = sum(times - 1 for times in steps.values())
    assert again <= len(faults) + lost_again, steps
    here, there = (each["final"]["prompts"] for each in (read_report(session), finished.report))
    assert here[0]["tokens"] == there[0]["tokens"], "the same as on OpenCL"
    measured = read_report(session)["target"]["self_test"]
    assert "loop_iterations" in [fact["name"] for fact in measured["facts"]], "as any device's"


def test_a_shader_that_does_not_compile_fails_its_operator_with_what_the_browser_says(
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    webgpu_cache: Path,
    shown: DevicePage,
    tmp_path: Path,
) -> None:
    (device,) = list_devices(shown.tracker.address)
    target = Target("webgpu", limits=device.description.limits)
    operator = tiny_plan.operators["softmax"]
    cache = Path(shutil.copytree(webgpu_cache, tmp_path / "cache"))
    with Compiler(cache / "libraries") as compiler:
        assert len(list(compiler.compile_all([operator], target))) == 1
    plant(Plant("softmax", "", edit("workgroupBarrier", "waitForAll"), ""), operator, target, cache)
    ended = run_forked(
        *offload_arguments(finished.model, tmp_path / "session", f"tracker:{NAME}"),
        *("--target", "webgpu", "--only", "softmax"),
        cache=cache,
        errors=tmp_path / "errors",
        TAPML_TRACKER=shown.tracker.address,
    )
    assert ended.exit_code == 1, ended.errors
    assert "failed: softmax: " in ended.errors
    assert "does not compile in this browser" in ended.errors and "waitForAll" in ended.errors
    shown.wait("#log", "waitForAll")


def test_every_operator_moves_to_a_driver_of_this_machine(
    finished: FinishedSession, moved_to_webgpu: Path
) -> None:
    assert_moved_whole(moved_to_webgpu)
    assert read_report(moved_to_webgpu)["final"]["prompts"] == finished.report["final"]["prompts"]


def assert_moved_whole(session: Path) -> None:
    """Everything is on the target, and the model's end is equal under the policy."""
    report = read_report(session)
    assert {each["state"] for each in report["operators"]} == {"moved"}
    assert all("@compute" in each["source"] for each in report["operators"])
    assert not any(each["binaries"] for each in report["operators"])
    assert report["final"]["status"] == "pass"
    assert all(prompt["equal"] for prompt in report["final"]["prompts"])
