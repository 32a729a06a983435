"""What is carved on one platform and moved to another gets the processor's verdicts."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tapml_targets.errors import EXIT_DEVICE_LOST
from tests.conftest import RequireDevice
from tests.offload.commands import run_here, started
from tests.offload.end_to_end.test_interruptions import end, read_until
from tests.offload.processes import MARK, left_after, marked, new_mark
from tests.offload.sessions import (
    NEW_TOKENS,
    TOKENS,
    offload_arguments,
    read_report,
    states,
)
from tests.offload.warm_cache import warm_cache


@pytest.mark.parametrize(("reference", "target"), [("cuda", "webgpu"), ("opencl", "vulkan")])
def test_a_device_as_the_reference_gives_the_processors_verdicts(
    reference: str,
    target: str,
    tiny_model: Path,
    tmp_path: Path,
    require_device: RequireDevice,
) -> None:
    """CUDA is simulated where there is no NVIDIA GPU."""
    recorded_on, moved_to = (
        f"{name}:{require_device(name)[0].index}" for name in (reference, target)
    )
    cache = warm_cache(tmp_path / "cache")
    found = []
    for device in ("cpu", recorded_on):
        suite = tmp_path / device.partition(":")[0]
        ended = run_here(
            "carve", "--model", tiny_model, "--reference", device, "--out", suite, "--tokens",
            TOKENS, "--new-tokens", NEW_TOKENS, cache=cache,
        )  # fmt: skip
        assert ended.exit_code == 0, ended.errors
        ended = run_here("replay", suite, "--device", moved_to, "--json", cache=cache)
        assert ended.exit_code == 0, ended.errors
        verdicts = json.loads(ended.output)["operators"]
        found.append(
            {each["operator"]: [(one["test"], one["status"]) for one in each["tests"]]
             for each in verdicts}
        )  # fmt: skip
    assert found[0] == found[1]
    assert {status for tests in found[0].values() for _, status in tests} == {"pass"}

    session = tmp_path / "session"
    arguments = (*offload_arguments(tiny_model, session, moved_to), "--reference", recorded_on)
    ended = run_here(*arguments, cache=cache)
    assert ended.exit_code == 0, ended.errors
    assert set(states(session).values()) == {"moved"}
    report = read_report(session)
    assert "tokens equal the reference's" in report["outcome"]["text"]
    assert recorded_on in json.dumps([report["reference"], report["reference_device"]])


@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_devices_that_dies_ends_the_run_with_one_line_and_the_session_goes_on(
    victim: int, tiny_model: Path, tmp_path: Path, require_device: RequireDevice
) -> None:
    """The reference's worker, or the target's."""
    devices = require_device("opencl")
    if len(devices) < 2:
        pytest.skip("two OpenCL devices are needed, and one is here")
    reference, target = (f"opencl:{each.index}" for each in devices[:2])
    session, mark, cache = tmp_path / "session", new_mark(), warm_cache(tmp_path / "cache")
    arguments = (*offload_arguments(tiny_model, session, target), "--reference", reference)
    with started(*arguments, cache=cache, **{MARK: mark}) as process:
        read_until(process, "[3/")
        workers = sorted(marked(mark, "tapml_rpc.supervisor.worker"))
        assert len(workers) == 2
        os.kill(workers[victim], signal.SIGKILL)
        ended = end(process)
    assert ended.exit_code == EXIT_DEVICE_LOST, ended.errors
    (line,) = ended.error_lines
    assert f"continue with `tapml offload --session {session}`" in line
    assert left_after(mark) == {}
    resumed = run_here("offload", "--session", session, cache=cache)
    assert resumed.exit_code == 0, resumed.errors
    assert set(states(session).values()) == {"moved"}
