"""The two drivers of a development machine, and one compiler for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tapml.compiler.compiler import Compiler
from tapml_targets.driver import DeviceDescription
from tests.conftest import RequireDevice


@pytest.fixture(scope="session")
def pocl(require_device: RequireDevice) -> DeviceDescription:
    return require_device("opencl", vendor="Portable Computing Language")[0]


@pytest.fixture(scope="session")
def intel(require_device: RequireDevice) -> DeviceDescription:
    return require_device("opencl", vendor="Intel")[0]


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    with Compiler(tmp_path_factory.mktemp("libraries"), workers=1) as shared:
        yield shared
