"""More folders nobody has seen before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RequireDevice
from tests.models.folders import make_folder
from tests.offload.commands import run_here
from tests.offload.end_to_end.test_model_folders import check_that_a_folder_moves
from tests.offload.sessions import FinishedSession, offload_arguments, read_report


@pytest.mark.parametrize("kind", ["bfloat16", "rope_llama3"])
def test_every_operator_of_an_unseen_folder_moves(
    finished: FinishedSession, tmp_path: Path, kind: str
) -> None:
    check_that_a_folder_moves(finished, tmp_path, kind)


def test_a_float16_folder_runs_as_float32_where_the_device_has_no_float16(
    finished: FinishedSession, tmp_path: Path, require_device: RequireDevice
) -> None:
    without = [each for each in require_device("opencl") if "float16" not in each.limits.features]
    if not without:
        pytest.skip("every OpenCL device here has float16")
    folder = make_folder(tmp_path / "model", "float16", num_hidden_layers=1)
    session, device = tmp_path / "session", f"opencl:{without[0].index}"
    arguments = offload_arguments(folder, session, device)
    ended = run_here(*arguments, cache=finished.cache)
    assert ended.exit_code == 0, ended.output + ended.errors
    assert "note: the device has no float16: the model runs as float32" in ended.errors
    assert read_report(session)["model"]["dtype"] == "float32"
    refused = run_here(
        *offload_arguments(folder, tmp_path / "other", device), "--dtype", "float16",
        cache=finished.cache,
    )  # fmt: skip
    assert refused.exit_code == 2
    assert "has no float16; choose another device" in refused.error_lines[0]


def test_a_float16_folder_runs_as_float16_where_the_device_has_it(
    finished: FinishedSession, tmp_path: Path, require_device: RequireDevice
) -> None:
    device = require_device("opencl", dtype="float16")[0]
    folder = make_folder(tmp_path / "model", "float16", num_hidden_layers=1)
    session = tmp_path / "session"
    arguments = offload_arguments(folder, session, f"opencl:{device.index}")
    ended = run_here(*arguments, cache=finished.cache)
    assert ended.exit_code == 0, ended.output + ended.errors
    report = read_report(session)
    assert report["model"]["dtype"] == "float16"
    assert report["final"]["status"] == "pass"
    assert any("half" in operator["source"] for operator in report["operators"])
