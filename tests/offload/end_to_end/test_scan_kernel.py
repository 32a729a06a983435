"""The paper's case: a scan written by hand moves alone, everything else stays on the source.

Section IV-E of the TapML paper. TVM's own scan, which tapml's takes the place of, races on PoCL: it
fails its carved tests. The kernel of ``docs/examples/scan-kernel`` moves in the same session.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RequireDevice
from tests.offload.commands import Ended, run_here
from tests.offload.sessions import offload_arguments, read_report, states
from tests.offload.warm_cache import warm_cache

SCAN = "gpu_2d_continuous_cumsum"
EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "scan-kernel"
ONLY = ("--only", "*cumsum*")


class Migration:
    """One session of the scan model on PoCL, and how its runs ended."""

    def __init__(self, root: Path, cache: Path, device: str) -> None:
        from tests.models.folders import make_folder

        self.cache = cache
        self.folder = root / "session"
        model = make_folder(root / "scan-llama", "scan_llama", num_hidden_layers=1)
        arguments = offload_arguments(model, self.folder, device)
        with pytest.MonkeyPatch.context() as patch:
            # As TVM writes it for GPUs.
            patch.setattr("tapml.compiler.compiler.function_kind", lambda name: "gpu")
            self.by_the_compiler: Ended = run_here(*arguments, *ONLY, cache=cache)
        self.failed = read_report(self.folder)
        self.by_hand = run_here(
            "offload", "--session", self.folder, *ONLY, "--kernels", EXAMPLE, cache=cache
        )
        self.moved = read_report(self.folder)


@pytest.fixture(scope="module")
def migration(
    require_device: RequireDevice,
    tmp_path_factory: pytest.TempPathFactory,
) -> Migration:
    device = require_device("opencl", vendor="Portable Computing Language")[0]
    root = tmp_path_factory.mktemp("scan")
    return Migration(root, warm_cache(root / "cache"), f"opencl:{device.index}")


def scan_of(report: dict[str, Any]) -> dict[str, Any]:
    operators: dict[str, dict[str, Any]] = {each["name"]: each for each in report["operators"]}
    return operators[SCAN]


def test_the_compilers_scan_fails_its_tests(migration: Migration) -> None:
    assert migration.by_the_compiler.exit_code == 1
    scan = scan_of(migration.failed)
    assert scan["state"] == "failed"
    assert scan["worst_ratio"] > 1000
    assert "scan_llama.py" in scan["origins"][0]["source"]
    assert migration.failed["summary"]["moved"] == 0


def test_the_scan_written_by_hand_moves_alone(migration: Migration) -> None:
    assert migration.by_hand.exit_code == 0, migration.by_hand.errors
    found = {each["name"]: each["state"] for each in migration.moved["operators"]}
    assert found.pop(SCAN) == "moved"
    assert set(found.values()) == {"kept"}
    scan = scan_of(migration.moved)
    assert scan["written"] == str(EXAMPLE / SCAN / "opencl")
    assert "running_sum" in scan["source"]
    assert scan["again"] == ["the kernel"]
    assert scan["worst_ratio"] < scan["limits"]["degraded"]


def test_its_tests_are_real_prompts_and_steps_over_what_they_left(migration: Migration) -> None:
    scan = scan_of(migration.moved)
    assert scan["entries"] == {"prefill": 1, "decode": 1}
    calls = scan["times"]["entries"]
    assert calls["prefill"]["tests"] >= 1
    assert calls["decode"]["tests"] >= 1
    assert scan["tests"]["passed"] == scan["tests"]["total"]


def test_the_hybrid_model_passes_and_only_the_scan_crosses_over(migration: Migration) -> None:
    scan = scan_of(migration.moved)
    assert scan["model_check"]["status"] == "pass"
    moved = migration.moved["moved_bytes"]
    # In and out: 24 rows of 64, once per run.
    for entry in ("prefill", "decode"):
        assert moved[entry]["moved"] == moved[entry]["runs"] * 2 * 24 * 64 * 4


def test_the_whole_model_follows_with_it(migration: Migration) -> None:
    ended = run_here(
        "offload", "--session", migration.folder, "--strategy", "bisect", cache=migration.cache
    )
    assert ended.exit_code == 0, ended.errors
    assert set(states(migration.folder).values()) == {"moved"}
    report = read_report(migration.folder)
    assert scan_of(report)["written"] == str(EXAMPLE / SCAN / "opencl")
    generated = run_here("run", migration.folder, "--tokens", "1 2 3", cache=migration.cache)
    assert generated.exit_code == 0, generated.errors
