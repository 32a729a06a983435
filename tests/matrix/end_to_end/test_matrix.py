"""The same kernels on two drivers and a dead one: verdicts side by side, and what differs."""

from __future__ import annotations

import json
import math

import pytest

import tapml as tml
from tapml.matrix.finding import Difference
from tapml.matrix.page import render
from tapml.matrix.report import MatrixReport, lines_of
from tapml_targets.errors import EXIT_MISMATCH, InputError
from tests.conftest import RequireDevice
from tests.matrix.edges import inputs


def labels(matrix: MatrixReport) -> tuple[str, str, str]:
    lavapipe, swiftshader, dead = (each.label for each in matrix.implementations)
    return lavapipe, swiftshader, dead


def difference(matrix: MatrixReport, operator: str) -> Difference:
    (found,) = (each for each in matrix.differences if each.operator == operator)
    return found


@pytest.mark.parametrize(
    ("operator", "wrong", "index", "float64"),
    [("log", 1, (3,), -math.inf), ("tanh", 1, (3,), 1.0), ("sin", 1, None, None)],
)
def test_a_driver_whose_functions_go_wrong_is_the_likely_side(
    matrix: MatrixReport, operator: str, wrong: int, index: tuple[int], float64: float
) -> None:
    found = difference(matrix, operator)
    assert (found.kind, found.kernels) == ("values", (f"{operator}_of_each",))
    assert found.suspects == (labels(matrix)[wrong],)
    assert index is None or (found.index, found.expected) == (index, float64)
    assert found.distance > found.limit
    # Both kernels come from one compiler.
    assert "naga compiles for all sides" in found.layer


def test_a_loop_that_one_driver_ends_is_told_by_element_value_and_the_devices_own_facts(
    matrix: MatrixReport,
) -> None:
    lavapipe, swiftshader, _ = labels(matrix)
    found = difference(matrix, "sum")
    assert (found.suspects, found.groups) == ((lavapipe,), ((lavapipe,), (swiftshader,)))
    short, whole = found.readings
    assert found.expected is not None and short.value is not None and whole.value is not None
    assert short.value < 0.7 * found.expected and abs(whole.value - found.expected) < 0.01
    assert (short.status, whole.status) == ("fail", "pass")
    assert whole.units is not None and short.units is not None and whole.units < found.limit
    assert short.units > found.limit
    assert any("65,535" in line for line in found.explanations)


def test_what_is_equally_wrong_everywhere_is_no_difference(matrix: MatrixReport) -> None:
    """WGSL lets a compiler assume that there are no NaNs: every implementation here does."""
    (row,) = (each for each in matrix.rows if each.operator == "fused_isnan_where")
    ran = [row.cells[label].status for label in labels(matrix)[:2]]
    assert (ran, row.differences) == (["fail", "fail"], ())
    assert row.bits["webgpu"].pairs == {}


def test_a_device_that_is_not_there_is_not_run_with_the_reason_and_never_a_pass(
    matrix: MatrixReport,
) -> None:
    dead = labels(matrix)[2]
    cells = [row.cells[dead] for row in matrix.all_rows]
    assert {cell.status for cell in cells} == {"not run"}
    assert all("webgpu:77" in cell.reason for cell in cells)
    assert matrix.status_of(dead) == "not run"
    assert all(dead not in {r.label for r in each.readings} for each in matrix.differences)


def test_the_whole_is_compared_as_well(matrix: MatrixReport) -> None:
    assert matrix.end_to_end is not None and matrix.end_to_end.differences
    assert matrix.exit_code == EXIT_MISMATCH and not matrix.passed


def test_it_is_text_json_and_a_page(matrix: MatrixReport) -> None:
    text = "\n".join(lines_of(matrix))
    data = json.loads(json.dumps(matrix.to_json(), allow_nan=False))
    page = render(data)
    lavapipe, swiftshader, dead = labels(matrix)
    for shown in (text, page):
        assert f"{lavapipe} and {swiftshader} differ from one another" in shown
        assert "there is no device &#x27;webgpu:77&#x27;".replace("&#x27;", "'") in (
            shown.replace("&#x27;", "'")
        )
        assert "naga" in shown and "sum_of_a_row" in shown and "SwiftShader" in shown
    assert data["format"] == "tapml-matrix/2"
    assert [each["label"] for each in data["implementations"]] == [lavapipe, swiftshader, dead]
    assert {each["operator"] for each in data["differences"]} >= {"sin", "log", "tanh", "sum"}
    assert "<script" not in page


def test_implementations_that_agree_pass_and_say_how_closely(
    edges: tml.Module, require_device: RequireDevice
) -> None:
    """OpenCL's: no platform is special."""
    found = require_device("opencl")
    names = [f"opencl:{each.index}" for each in found if each.device_type != "checker"]
    values = inputs()
    values[1][3] = values[3][1] = 1.0
    report = tml.validate(edges, values, target=[tml.device(name) for name in names[:2]])
    assert len(report.implementations) == 2
    assert report.passed and report.exit_code == 0, str(report)
    assert "no two implementations differ" in report.headline


def test_a_device_that_is_named_twice_or_no_device_is_refused(edges: tml.Module) -> None:
    with pytest.raises(InputError, match="name each once"):
        tml.validate(edges, inputs(), target=[tml.device("cpu"), tml.device("cpu")])
    with pytest.raises(InputError, match="at least one device"):
        tml.validate(edges, inputs(), target=[])
