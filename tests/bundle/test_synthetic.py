"""Random numbers in place of a model's: nothing of it is left, and the failure still shows."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapml.bundle.bundle import read_bundle
from tapml.bundle.synthetic import write_synthetic
from tapml.bundle.traces import find_traces
from tapml.cli.main import main
from tapml.failures.diagnosis import Diagnosis
from tapml.reduce.device import ReopeningDevice
from tapml.repro.folder import failure_of, read_repro, replay_repro
from tapml.repro.writing import write_repro
from tapml.verdicts.limits import RatioLimits
from tapml.verdicts.policy import Override, Policy
from tapml_rpc.client import Session
from tapml_targets.errors import InputError, MismatchError
from tests.reduce.planted import failing_folder, inputs

POLICY = Policy(
    overrides=(Override("secret*", RatioLimits(40.0, 200.0), "for our private model Hush"),)
)
SECRETS = (b"modeling_secret", b"layers.0.mlp", b"private", b"Hush", b"prompt 3", b"@p3")


@pytest.fixture(scope="module")
def folder(device: ReopeningDevice, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A failing test with everything in it that should not get out."""
    path = tmp_path_factory.mktemp("repro") / "matmul"
    failing_folder(path, device, "first term missing", policy=POLICY)
    repro = read_repro(path)
    result = replay_repro(repro, device.memory().session)
    failure = replace(
        failure_of(repro, result, device.description),
        diagnosis=Diagnosis("matmul", notes=("input 0.125 of prompt 3",)),
    )
    return write_repro(path, failure)


def test_a_synthetic_bundle_fails_alike_and_holds_nothing_of_the_model(
    folder: Path, tmp_path: Path, open_session: Callable[[], Session]
) -> None:
    archive = tmp_path / "matmul.tapml.zip"
    assert main(["bundle", str(folder), "--synthetic", "-o", str(archive)]) == 0
    repro = read_bundle(archive)
    with open_session() as session:
        assert replay_repro(repro, session).verdict.status == "fail"
    with zipfile.ZipFile(archive) as file:
        files = {name: file.read(name) for name in file.namelist()}
    assert json.loads(files["matmul/bundle.json"])["synthetic"] is True
    assert json.loads(files["matmul/synthetic.json"])["fails_like_the_original"] is True
    original = read_repro(folder)
    arrays = [*original.case.arrays, *original.case.results]
    pieces = [array.tobytes()[at : at + 8] for array in arrays for at in range(0, array.nbytes, 8)]
    for name, data in files.items():
        assert not [secret for secret in SECRETS if secret in data], name
        assert not [piece for piece in pieces if piece in data], name
    # Not in the archive's own bytes either, where a stored file would show.
    assert not [secret for secret in SECRETS if secret in archive.read_bytes()]


def test_the_original_holds_what_the_test_above_looks_for(folder: Path) -> None:
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert [secret for secret in SECRETS if secret in everything] == list(SECRETS)


def test_a_failure_that_hangs_on_one_number_is_not_bundled_unless_asked(
    device: ReopeningDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, w = inputs(4)
    x[0, 0] = 1.2345
    folder = failing_folder(tmp_path / "matmul", device, "this very number", (x, w))
    archive = tmp_path / "out.tapml.zip"
    arguments = ["bundle", str(folder), "--synthetic", "-o", str(archive)]
    assert main(arguments) == 1
    assert "depends on its values" in capsys.readouterr().out
    assert not archive.exists()
    assert main([*arguments, "--allow-passing"]) == 0
    assert read_bundle(archive).status == "pass"


def test_a_failure_at_large_values_is_found_by_a_later_way_to_draw_them(
    device: ReopeningDevice, tmp_path: Path
) -> None:
    x, w = inputs(4)
    x[2, 5] = 50.0
    folder = failing_folder(tmp_path / "matmul", device, "NaN above 40", (x, w))
    out, lines = write_synthetic(folder, tmp_path / "out")
    assert "uniform" in lines[0] or "large" in lines[0]
    drawn = json.loads((out / "synthetic.json").read_text())
    assert drawn["kinds"][0] == "NaN"


def test_a_test_that_passes_has_nothing_to_fail_alike(
    device: ReopeningDevice, tmp_path: Path
) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "right")
    with pytest.raises(MismatchError, match="does not fail"):
        write_synthetic(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_traces_that_are_left_are_found(folder: Path, tmp_path: Path) -> None:
    repro = read_repro(folder)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kernels").mkdir()
    (tmp_path / "a" / "kernels" / "00.cl").write_text("// from private/modeling_secret.py:12")
    leaked = np.zeros((3, 48), np.float32)
    leaked[1, 8:16] = repro.case.arrays[1][4, 8:16]
    np.save(tmp_path / "a" / "x.npy", leaked)
    found = "\n".join(find_traces(tmp_path / "a", repro))
    assert "modeling_secret.py" in found
    assert "x.npy has 3 pieces" in found


def test_a_trace_keeps_the_bundle_from_being_written(
    device: ReopeningDevice, tmp_path: Path
) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "first term missing")
    source = folder / "kernels" / "00.cl"
    source.write_text(source.read_text() + "// see private/modeling_secret.py\n")
    archive = tmp_path / "out.tapml.zip"
    with pytest.raises(InputError, match="traces of the model"):
        write_synthetic(folder, tmp_path / "out")
    assert main(["bundle", str(folder), "--synthetic", "-o", str(archive)]) == 2
    assert not archive.exists()
