"""The module at its edges, imported once, and a matrix of it."""

from __future__ import annotations

import pytest

import tapml as tml
from tapml.matrix.report import MatrixReport
from tests.conftest import RequireDevice
from tests.matrix.edges import KERNELS, Edges, inputs


@pytest.fixture(scope="package")
def edges() -> tml.Module:
    """The module."""
    return tml.Module(Edges(), inputs=inputs())


@pytest.fixture(scope="package")
def matrix(edges: tml.Module, require_device: RequireDevice) -> MatrixReport:
    """It on lavapipe, on SwiftShader, and on a device that is not there."""
    lavapipe = require_device("webgpu", vendor="llvmpipe")[0]
    swiftshader = require_device("webgpu", vendor="SwiftShader")[0]
    names = (f"webgpu:{lavapipe.index}", f"webgpu:{swiftshader.index}", "webgpu:77")
    return tml.validate(
        edges, inputs(), target=[tml.device(name) for name in names], kernels=[KERNELS]
    )
