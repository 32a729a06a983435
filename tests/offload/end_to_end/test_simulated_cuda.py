"""A model of one layer moves to CUDA where there is no NVIDIA GPU: its kernels are simulated."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import RequireDevice
from tests.offload.commands import run_here
from tests.offload.sessions import NEW_TOKENS, offload_arguments, read_report, states
from tests.offload.warm_cache import warm_cache


def test_every_operator_moves_to_the_simulated_device(
    tiny_model: Path, require_device: RequireDevice, tmp_path: Path
) -> None:
    devices = [each for each in require_device("cuda") if each.device_type == "simulated"]
    session = tmp_path / "session"
    device = f"cuda:{devices[0].index}"
    cache = warm_cache(tmp_path / "cache")
    ended = run_here(*offload_arguments(tiny_model, session, device), cache=cache)
    assert ended.exit_code == 0, ended.errors
    report = read_report(session)
    assert set(states(session).values()) == {"moved"}
    assert report["target"]["platform"] == "cuda"
    assert all('extern "C" __global__' in each["source"] for each in report["operators"])
    assert len(report["final"]["prompts"][0]["tokens"]) == int(NEW_TOKENS)
    assert "tokens equal the reference's" in report["outcome"]["text"]
