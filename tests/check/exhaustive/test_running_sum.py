"""The race in TVM's own running sum is found on every platform with a checker of races."""

from __future__ import annotations

import os

import numpy as np
import pytest

import tapml as tml
from tapml.check.checker import open_checker
from tapml.check.operator_check import check_tests
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.errors import SetupError
from tapml_targets.target import Target
from tests.api.modules import WIDTH, NucleusSampler, line_of
from tests.oracles.cases import make_case


@pytest.mark.parametrize("platform", ["vulkan", "webgpu", "metal"])
def test_both_lines_of_the_race_in_tvms_running_sum_are_named(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes of a block read what their neighbours write: tapml writes a kernel of its own."""
    rows = np.random.default_rng(2).standard_normal((4, WIDTH)).astype(np.float32)
    plan = tml.Module(NucleusSampler(), inputs=[rows]).plan
    assert isinstance(plan, GraphPlan)
    operator = plan.operators["gpu_2d_continuous_cumsum"]
    shape = [int(extent) for extent in operator.read[0].shape if isinstance(extent, int)]
    values = np.random.default_rng(0).random(shape).astype(np.float32)
    case = make_case(operator, compile_reference([operator]), [values])
    # As TVM writes it for GPUs.
    monkeypatch.setattr("tapml.compiler.compiler.function_kind", lambda name: "gpu")
    try:
        with open_checker(platform) as checker, Compiler() as compiler:
            limits = checker.session.device.limits
            library = compiler.compile(operator, Target(platform, limits=limits))
            origins = plan.origins_of(operator.name)
            report = check_tests(operator, [case], library, checker, origins=origins)
    except SetupError as error:
        if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
            raise
        pytest.skip(str(error))
    races = [each for each in report.findings if each.kind == "data race"]
    assert races
    source = library.modules[0].code.decode().split("\n")
    for race in races:
        assert len(race.places) == 2
        assert all("shared_buf" in source[place.line - 1] for place in race.places)
        assert "write" in {place.access for place in race.places}
        assert race.address_space == "local"
        line = line_of(NucleusSampler, "torch.cumsum")
        assert race.origins[0].source == f"tests/api/modules.py:{line}"
