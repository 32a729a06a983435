"""A bundle for a machine with an NVIDIA GPU: what it carries, what it finds, what it says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.environment import ROOT, SetupError
from scripts.nvidia_bundle.prepare import (
    carried_wheels,
    distribution,
    normalized,
    requirements,
    write_archive,
)
from scripts.nvidia_bundle.rows import NO_DEVICE, Row, exit_code, read_results, table, write_results
from scripts.nvidia_bundle.run import ended_process, is_nvidia_gpu, main
from scripts.nvidia_bundle.unpacking import (
    ARCHIVE,
    BundleError,
    checksum,
    fitting,
    read_manifest,
    unpacked,
)
from tests.conftest import RequireDevice

MACHINE = {"gpu": "NVIDIA H100", "driver": "580.1", "date": "2026-11-26", "python": "3.12.3"}
PASSED = Row("package", "cuda", "pass", "fine", 2.0, {"tokens_per_second": 1234.5})
SKIPPED = Row("package", "opencl", "skip", NO_DEVICE)
FAILED = Row("suite", "cuda", "fail", "3 of 4 tests pass", 9.0, {"passed": 3, "of": 4})
HERE = {
    "spec": "cuda:0", "name": "NVIDIA H100 80GB HBM3", "vendor_platform": "NVIDIA CUDA",
    "driver_version": "CUDA 13.0", "device_type": "gpu",
}  # fmt: skip


def test_a_failure_a_pass_and_nothing_at_all_have_exit_codes_of_their_own() -> None:
    assert exit_code([PASSED, SKIPPED]) == 0
    assert exit_code([PASSED, FAILED]) == 1
    assert exit_code([SKIPPED, Row("device", "cuda", "pass", "there")]) == 3
    # PyTorch alone shows nothing of a device of tapml's.
    assert exit_code([Row("torch", "", "pass", "fast"), SKIPPED]) == 3
    assert exit_code([Row("compile", "cuda", "pass", "by NVRTC"), SKIPPED]) == 3


def test_the_table_has_a_column_a_platform_and_says_what_is_missing() -> None:
    text = table(MACHINE, [PASSED, SKIPPED, FAILED])
    assert "GPU NVIDIA H100, driver 580.1, Python 3.12.3; 2026-11-26." in text
    assert "| | cuda | opencl |" in text
    assert "| demo package, decode tokens a second | 1,234 | skip |" in text
    assert "| the exported suite replayed | **fail** |  |" in text
    assert "- suite cuda: fail: 3 of 4 tests pass" in text
    assert "see above" not in text


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_results(tmp_path, MACHINE, [PASSED, FAILED])
    assert read_results(tmp_path / "results.json") == (MACHINE, [PASSED, FAILED])
    (tmp_path / "results.json").write_text('{"format": "another"}')
    with pytest.raises(ValueError, match="holds no results: expected tapml-nvidia/1"):
        read_results(tmp_path / "results.json")


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, True),
        ({"device_type": "simulated"}, False),
        ({"name": "llvmpipe", "vendor_platform": "Mesa", "driver_version": "22.3"}, False),
        ({"vendor_platform": "Vulkan", "driver_version": "NVIDIA 580.1"}, True),
    ],
)
def test_only_a_gpu_by_nvidias_driver_counts(changed: dict[str, str], found: bool) -> None:
    assert is_nvidia_gpu(HERE | changed) is found


def test_what_is_carried_is_the_base_install_the_platforms_and_pytest() -> None:
    project = {
        "dependencies": ["numpy>=1"],
        "optional-dependencies": {
            "cuda": ["cuda-core>=1"], "vulkan": ["vulkan>=1"], "test": ["pytest>=9", "ruff"],
        },
    }  # fmt: skip
    needed = requirements({"project": project}, ("cuda",))
    assert needed == ["numpy>=1", "cuda-core>=1", "pytest>=9"]
    assert distribution("nvidia_cuda_nvrtc-13.5.37-py3-none-any.whl") == "nvidia-cuda-nvrtc"


def test_a_distribution_that_is_left_out_is_one_that_is_needed(tmp_path: Path) -> None:
    for name in ("numpy-2.1-cp312-cp312-linux.whl", "nvidia_cuda_nvrtc-13.5-py3-none-any.whl"):
        (tmp_path / name).touch()
    without = frozenset({normalized("NVIDIA_cuda.nvrtc")})
    assert [each.name[:5] for each in carried_wheels(tmp_path, without)] == ["numpy"]
    with pytest.raises(SetupError, match="--without nmpy: there are numpy, nvidia-cuda-nvrtc"):
        carried_wheels(tmp_path, frozenset({"nmpy"}))


def test_each_version_of_python_takes_its_own_wheels() -> None:
    names = (
        "numpy-2.1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "numpy-2.1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "tvm_ffi-0.1-cp38-abi3-manylinux_2_28_x86_64.whl",
        "pyzmq-27-cp312-abi3-manylinux_2_28_x86_64.whl",
        "pyzmq-27-cp311-cp311-manylinux_2_28_x86_64.whl",
        "vulkan-1.3-py2.py3-none-any.whl",
        "pip-25-py3-none-any.whl",
    )
    wheels = [Path(name) for name in names]
    for version, expected in (((3, 11), {0, 2, 4, 5, 6}), ((3, 12), {1, 2, 3, 5, 6})):
        assert {each.name for each in fitting(wheels, version)} == {names[i] for i in expected}
    with pytest.raises(BundleError, match=r"no wheel of numpy for Python 3.13, .*--python 3.13"):
        fitting(wheels, (3, 13))


def test_what_is_run_is_unpacked_to_a_folder_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried, place = tmp_path / "carried", tmp_path / "deep" / "place"
    carried.mkdir()
    (carried / "model").write_text("weights")
    write_archive(carried, tmp_path / ARCHIVE)
    manifest = {"files": {ARCHIVE: checksum(tmp_path / ARCHIVE)}}
    # As Python 3.11.3 is.
    monkeypatch.delattr(tarfile, "data_filter")
    found = unpacked(tmp_path, manifest, place)
    assert (found / "model").read_text() == "weights"
    assert place.stat().st_mode & 0o777 == found.stat().st_mode & 0o777 == 0o700
    assert unpacked(tmp_path, manifest, place) == found
    place.chmod(0o777)
    with pytest.raises(BundleError, match="may be written by others: name a folder of your own"):
        unpacked(tmp_path, manifest, place)
    place.chmod(0o700)
    found.rename(place / "elsewhere")
    found.symlink_to(place / "elsewhere")
    with pytest.raises(BundleError, match="is no folder"):
        unpacked(tmp_path, manifest, place)


def test_a_part_ends_at_its_deadline_with_all_that_it_started() -> None:
    program = "import subprocess, sys; print('begun', file=sys.stderr, flush=True); "
    program += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    began = time.monotonic()
    ended = ended_process([sys.executable, "-c", program], {}, 1.0)
    assert ended.timed_out
    assert ended.code == -signal.SIGTERM
    # Its child held the pipe as well.
    assert time.monotonic() - began < 10
    assert ended_process(["/no/such/python"], {}, 1.0).code == 127


def test_a_damaged_bundle_and_another_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is no bundle"):
        read_manifest(tmp_path)
    (tmp_path / "carried").write_text("changed")
    manifest: dict[str, Any] = {"format": "tapml-nvidia-bundle/1", "files": {"carried": "0" * 64}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="carried of the bundle is damaged: copy"):
        read_manifest(tmp_path)


def test_both_halves_have_help_with_examples_and_refuse_bad_input(tmp_path: Path) -> None:
    script = str(ROOT / "scripts" / "nvidia_machine.py")

    def told(*arguments: str) -> subprocess.CompletedProcess[str]:
        asked = [sys.executable, script, *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=False)

    help_text = told("--help")
    assert help_text.returncode == 0
    assert "prepare bundle --python 3.12" in help_text.stdout
    missing = told("table", str(tmp_path / "results.json"))
    assert missing.returncode == 2
    assert missing.stderr.startswith("scripts/nvidia_machine.py: ")
    assert "holds no results" in missing.stderr
    assert len(missing.stderr.splitlines()) == 1


def test_a_bundle_runs_on_a_device_that_is_here(
    tmp_path: Path, require_device: RequireDevice
) -> None:
    """The whole road of one part: unpacked, listed, run in a process, written."""
    require_device("opencl")
    carried = tmp_path / "carried"
    carried.mkdir()
    write_archive(carried, tmp_path / ARCHIVE)
    manifest = {
        "format": "tapml-nvidia-bundle/1", "made_of": "a test", "architecture": "sm_90",
        "platforms": ["opencl"], "parts": {"opencl": ["conformance"]},
        "files": {ARCHIVE: checksum(tmp_path / ARCHIVE)},
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    given = ["--out", str(tmp_path / "out"), "--unpack", str(tmp_path / "there")]
    assert main(tmp_path, [*given, "--only", "opencl", "--only", "conformance"]) == 3
    _, rows = read_results(tmp_path / "out" / "results.json")
    assert [row.status for row in rows] == ["skip", "skip"]
    assert "no NVIDIA GPU among opencl:" in rows[0].line
    assert main(tmp_path, [*given, "--only", "conformance", "--any-device"]) == 0
    _, rows = read_results(tmp_path / "out" / "results.json")
    assert [row.name for row in rows] == ["device opencl", "conformance opencl"]
    assert rows[1].figures["passed"] > 15
    assert main(tmp_path, [*given, "--only", "metal"]) == 2
