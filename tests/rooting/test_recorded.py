"""What PyTorch computed is kept in a file, and roots a reference where no PyTorch is."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapml.importing.importer import export_model
from tapml.rooting.recorded import RecordedRoots
from tapml_targets.errors import InputError, MismatchError
from tests.rooting.test_rooting import WithFault, scale
from tests.small_llama import SmallLlama


@pytest.fixture(scope="module")
def roots(llama: SmallLlama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, imported = llama.model, llama.imported
    if not imported.exported:
        imported = replace(imported, exported=export_model(model))
    path = tmp_path_factory.mktemp("roots") / "roots.npz"
    RecordedRoots.record(imported, model.rooting_runs(), model.empty_state()).write(path)
    return path


def test_a_reference_is_rooted_as_with_pytorch(llama: SmallLlama, roots: Path) -> None:
    plan, weights = llama.imported.plan, llama.imported.weights
    report = RecordedRoots.read(roots).root(plan, weights, llama.reference)
    assert report.sites == sum(len(entry.calls) for entry in plan.entries.values())
    assert report.not_comparable == ()


def test_a_wrong_operator_is_named(llama: SmallLlama, roots: Path) -> None:
    plan, weights = llama.imported.plan, llama.imported.weights
    wrong = next(name for name in plan.operators if "softmax" in name)
    faulty = WithFault(llama.reference, wrong, scale)
    with pytest.raises(MismatchError, match=wrong):
        RecordedRoots.read(roots).root(plan, weights, faulty)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "roots.npz"
    for content in (b"", b"no archive"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="holds no recorded values"):
            RecordedRoots.read(path)
    np.savez(path, other=np.zeros(1))
    with pytest.raises(InputError, match="holds no recorded values"):
        RecordedRoots.read(path)


def test_it_needs_neither_pytorch_nor_tvm() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'tvm', 'transformers')))\n"
        "import tapml.rooting.recorded, tapml.carving.record, tapml.execute.device_reference"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
