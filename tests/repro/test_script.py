"""``repro.py``: one command from anywhere, the verdict of then, and what is different now."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tapml.reduce.device import ReopeningDevice
from tapml.repro.folder import read_repro
from tapml.repro.script import main
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tests.conftest import RequireDevice
from tests.reduce.planted import failing_folder

Edit = Callable[[str], str]


@pytest.fixture(scope="module")
def best(require_device: RequireDevice) -> DeviceDescription:
    return require_device("opencl")[0]


@pytest.fixture(scope="module")
def written(best: DeviceDescription, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repro folder of a kernel that leaves a term out."""
    with ReopeningDevice(lambda: open_local(best)) as device:
        yield failing_folder(tmp_path_factory.mktemp("repro") / "m", device, "first term missing")


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "matmul")


def edit(folder: Path, change: Edit) -> None:
    source = folder / "kernels" / "00.cl"
    source.write_text(change(source.read_text()))


def test_it_prints_the_verdict_of_then_from_anywhere(
    folder: Path, tmp_path: Path, best: DeviceDescription
) -> None:
    repro = read_repro(folder)
    ended = subprocess.run(
        [sys.executable, str(folder / "repro.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.splitlines() == [
        f"fail: {repro.case.id} on {best.name}: {repro.reason}",
        "the same as when it was written",
    ]


def test_an_edited_kernel_passes_and_then_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = read_repro(folder).reason
    edit(folder, lambda source: source.replace("sum -= ", "sum -= 0.0f * "))
    assert main(folder, []) == 0
    first, edited, then = capsys.readouterr().out.splitlines()
    assert first.startswith("pass: ")
    assert edited == "kernels edited since: 00.cl"
    assert then == f"then: fail: {reason}; now: pass"


def test_an_edit_that_does_not_build_shows_the_compilers_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder, lambda source: source.replace("float sum", "flaot sum"))
    assert main(folder, []) == 1
    output = capsys.readouterr().out
    source = folder / "kernels" / "00.cl"
    line = next(n for n, text in enumerate(source.read_text().splitlines(), 1) if "flaot" in text)
    assert f"\n{source}:{line}:" in output
    assert "the same as when it was written" not in output


def test_a_kernel_that_takes_the_device_down_is_a_verdict_with_exit_code_4(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(
        folder,
        lambda source: source.replace("float sum", "*(volatile __global int*)8 = 1; float sum"),
    )
    assert main(folder, []) == 4
    assert capsys.readouterr().out.startswith("fail: ")


def test_a_folder_without_the_file_is_replayed_as_well(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As those are that were written before there was a ``repro.py``."""
    (folder / "repro.py").unlink()
    assert main(folder, []) == 1
    assert "the same as when it was written" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [(["--device", "opencl:99"], 3, "opencl:99"), (["--device", "toaster"], 2, "toaster")],
)
def test_a_device_that_is_not_here_is_refused(
    folder: Path,
    arguments: list[str],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(folder, arguments) == code
    assert words in capsys.readouterr().err


def test_a_damaged_folder_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "repro.json").write_text("{}")
    assert main(folder, []) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernels": None}, "has no kernels to try"),
        ({"format": 99}, "has failure format 99"),
        ({"format": 1}, "has failure format 1; this tapml reads 2: write it again"),
        ({"cause": "bad luck"}, "damaged"),
        ({"kernels": ["../../other.cl"]}, "no name of a file"),
        ({"symbols": 3}, "damaged"),
    ],
)
def test_an_attempt_is_checked_field_by_field(
    folder: Path, change: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = {
        "format": 2,
        "operator": "matmul",
        "device": {"platform": "opencl", "name": "a", "vendor_platform": "b"},
        "kernels": ["00.cl"],
        "symbols": [{"n": 17}],
        "reason": "",
        "cause": "kernels not built",
    }
    (folder / "repro.json").unlink()
    (folder / "failure.json").write_text(json.dumps(attempt | change))
    assert main(folder, []) == 2
    assert words in capsys.readouterr().err


def test_a_compilers_text_is_the_same_though_its_file_has_another_name(
    folder: Path, best: DeviceDescription, capsys: pytest.CaptureFixture[str]
) -> None:
    """PoCL names a temporary file, Intel's runtime numbers its builds."""
    edit(folder, lambda source: source.replace("float sum", "flaot sum"))
    assert main(folder, []) == 1
    reason = capsys.readouterr().out.partition(f" on {best.name}: ")[2]
    attempt = {
        "format": 2,
        "operator": "matmul",
        "device": json.loads((folder / "repro.json").read_text())["device"],
        "kernels": ["00.cl"],
        "symbols": [{"n": 17}],
        "reason": reason.partition("kernels edited since")[0].strip(),
        "cause": "kernels not built",
    }
    (folder / "repro.json").unlink()
    (folder / "failure.json").write_text(json.dumps(attempt))
    assert main(folder, []) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the same as when it was written"
