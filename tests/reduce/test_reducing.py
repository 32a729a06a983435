"""A failing test gets as small as its failure allows, and fails as it did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tapml.cli.main import main
from tapml.compiler.compiler import Compiler
from tapml.reduce.device import ReopeningDevice
from tapml.reduce.reducing import reduce_repro
from tapml.reduce.reduction import Reduction
from tapml.repro.folder import read_repro, replay_repro
from tapml.repro.writing import write_repro
from tapml.verdicts.limits import RatioLimits
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import InputError, MismatchError
from tapml_targets.target import Target
from tests.compiler.operators import matmul_transposed
from tests.conftest import RequireDevice
from tests.reduce.planted import COLUMNS, TERMS, failing_folder, inputs

OpenSession = Callable[[], Session]


@pytest.fixture(scope="module")
def found(
    device: ReopeningDevice, open_session: OpenSession, tmp_path_factory: pytest.TempPathFactory
) -> Reduction:
    """What is left of a kernel that forgets a term, from 17 rows."""
    folder = tmp_path_factory.mktemp("repro") / "matmul"
    return reduce_repro(
        read_repro(failing_folder(folder, device, "first term missing")), open_session
    )


def test_a_dynamic_extent_shrinks_and_most_inputs_become_zero(found: Reduction) -> None:
    assert found.before.shapes["p0"] == (17, TERMS)
    assert found.after.shapes == {"p0": (1, TERMS), "p1": (COLUMNS, TERMS), "p2": (1, COLUMNS)}
    # One element of the row and one of the weight, both one.
    assert found.after.nonzero == 2
    assert found.after.long_values == 0
    assert found.ended == "smallest"
    x, w = found.failure.result.case.read_inputs()
    assert (x[0, 0], x.sum(), w.sum()) == (1, 1, 1)


def test_what_was_found_replays_and_says_from_what_to_what(
    found: Reduction, open_session: OpenSession, tmp_path: Path
) -> None:
    document = json.dumps(found.to_json())
    small = write_repro(tmp_path / "small", found.failure, documents={"reduced.json": document})
    repro = read_repro(small)
    with open_session() as session:
        result = replay_repro(repro, session)
    assert (result.verdict.status, result.verdict.reason) == (repro.status, repro.reason)
    assert repro.case.id.endswith(", reduced")
    data = json.loads((small / "reduced.json").read_text())
    assert (data["from"]["nonzero"], data["to"]["nonzero"]) == (17 * TERMS + COLUMNS * TERMS, 2)


def test_a_planted_kernel_is_kept_and_that_is_said(found: Reduction) -> None:
    assert not found.recompiled
    assert any("not this compiler's output" in note for note in found.notes)


def test_a_failure_that_needs_five_rows_keeps_five(
    device: ReopeningDevice, open_session: OpenSession, tmp_path: Path
) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "from five rows on")
    found = reduce_repro(read_repro(folder), open_session, recompile=False)
    assert found.after.shapes["p0"] == (5, TERMS)
    assert found.after.nonzero == 0


def test_a_window_follows_the_worst_element(
    device: ReopeningDevice, open_session: OpenSession, tmp_path: Path
) -> None:
    x, w = inputs()
    x[13, 5] = 50.0
    folder = failing_folder(tmp_path / "matmul", device, "NaN above 40", (x, w))
    found = reduce_repro(read_repro(folder), open_session, recompile=False)
    assert found.kind == "NaN"
    assert found.after.shapes["p0"] == (1, TERMS)
    small, _ = found.failure.result.case.read_inputs()
    assert small[0, 5] > 40
    assert np.count_nonzero(small) == 1


def test_rows_before_the_wrong_one_stay_where_the_kernel_counts_them(
    device: ReopeningDevice, open_session: OpenSession, tmp_path: Path
) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "one element only")
    found = reduce_repro(read_repro(folder), open_session, recompile=False)
    assert found.after.shapes["p0"] == (7, TERMS)
    assert found.after.nonzero == 1


def test_static_extents_shrink_where_the_compiler_makes_the_failing_kernel(
    device: ReopeningDevice, open_session: OpenSession, tmp_path: Path
) -> None:
    # A right kernel under a policy that no rounding satisfies.
    policy = Policy(limits=(("float32", "product", RatioLimits(1e-4, 2e-4)),))
    with Compiler(workers=1) as compiler:
        limits = device.description.limits
        made = compiler.compile(matmul_transposed(), Target("opencl", limits=limits))
    folder = failing_folder(tmp_path / "matmul", device, "", policy=policy, own_library=made)
    found = reduce_repro(read_repro(folder), open_session)
    assert found.recompiled
    # One product of two float32 numbers is rounded, and that is what this policy takes amiss.
    assert found.after.shapes == {"p0": (1, 1), "p1": (1, 1), "p2": (1, 1)}
    repro = read_repro(write_repro(tmp_path / "small", found.failure))
    with open_session() as session:
        assert replay_repro(repro, session).verdict.status == repro.status == "degraded"


def test_a_candidate_that_takes_the_device_down_is_no_smaller_failure(
    device: ReopeningDevice, require_device: RequireDevice, tmp_path: Path
) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "hangs for few rows", inputs(4))
    best = require_device("opencl")[0]
    found = reduce_repro(
        read_repro(folder), lambda: open_local(best, kernel_deadline=2.0), recompile=False
    )
    assert found.device_losses > 0
    assert found.after.shapes["p0"] == (3, TERMS)
    assert found.after.nonzero == 0


def test_the_best_so_far_is_kept_when_time_is_up(
    device: ReopeningDevice, open_session: OpenSession, tmp_path: Path
) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "first term missing")
    found = reduce_repro(read_repro(folder), open_session, seconds=1e-6)
    assert found.ended == "time"
    assert found.after == found.before
    assert found.failure.result.verdict.status == "fail"


def test_an_interruption_keeps_the_best_so_far(
    device: ReopeningDevice, open_session: OpenSession, tmp_path: Path
) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "first term missing")

    def interrupt(_doing: str, _tried: int, kept: int) -> None:
        if kept == 1:
            raise KeyboardInterrupt

    found = reduce_repro(read_repro(folder), open_session, watcher=interrupt)
    assert found.ended == "interrupted"
    assert found.after.shapes["p0"] == (1, TERMS)
    assert found.after.nonzero > 2


def test_a_test_that_passes_is_not_reduced(
    device: ReopeningDevice, open_session: OpenSession, tmp_path: Path
) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "right")
    with pytest.raises(MismatchError, match="nothing to reduce"):
        reduce_repro(read_repro(folder), open_session)


def test_a_folder_without_the_operators_definition_says_how_to_get_one(
    device: ReopeningDevice, open_session: OpenSession, tmp_path: Path
) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "first term missing")
    (folder / "operator.tapml").unlink()
    with pytest.raises(InputError, match="write the repro folder again"):
        reduce_repro(read_repro(folder), open_session)


def test_the_command_writes_a_folder_beside_the_source(
    device: ReopeningDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = failing_folder(tmp_path / "repro" / "matmul", device, "from five rows on")
    assert main(["reduce", str(folder), "--same-kernel"]) == 0
    printed = capsys.readouterr().out
    assert "p0: [17, 48] -> [5, 48]" in printed
    assert "nonzero input elements: 2352 -> 0" in printed
    small = tmp_path / "repro" / "matmul-reduced"
    assert read_repro(small).status == "fail"
    assert main(["reduce", str(folder)]) == 2
    assert "exists" in capsys.readouterr().err
