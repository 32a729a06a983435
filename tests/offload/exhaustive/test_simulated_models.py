"""The shipped model, whole, moves to every simulated device of the platforms without a GPU here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml_targets.platforms import load_driver_module
from tests.offload.commands import run_here
from tests.offload.sessions import read_report, states

PLACES = [("metal", 0), ("cuda", 0), ("rocm", 0), ("rocm", 1)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("platform", "at"), PLACES)
def test_the_shipped_model_moves(platform: str, at: int, dtype: str, tmp_path: Path) -> None:
    listed = load_driver_module(platform).list_devices()
    simulated = [each.index for each in listed if each.device_type == "simulated"]
    session = tmp_path / "session"
    ended = run_here(
        "offload", "--model", "pydoc-llama", "--dtype", dtype,
        "--device", f"{platform}:{simulated[at]}", "--session", str(session),
        cache=tmp_path / "cache",
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    assert set(states(session).values()) == {"moved"}
    assert "tokens equal the reference's" in read_report(session)["outcome"]["text"]
