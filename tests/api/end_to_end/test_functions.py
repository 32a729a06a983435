"""Compiled functions on a device: what they take and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapml as tml
from tapml.api.device import Device
from tapml.api.functions import UploadedLibrary
from tapml_targets.errors import InputError
from tests.api.modules import WIDTH, Perceptron

ROWS = 3


def given(dtype: str = "float32") -> np.ndarray[Any, Any]:
    drawn: np.ndarray[Any, Any] = np.random.default_rng(3).standard_normal((ROWS, WIDTH))
    return drawn.astype(dtype)


@pytest.fixture(scope="module")
def module() -> tml.Module:
    return tml.Module(Perceptron(), "perceptron", inputs=[given()])


@pytest.fixture(scope="module")
def uploaded(opencl: Device, module: tml.Module) -> UploadedLibrary:
    return tml.upload(tml.compile(module, opencl))


def test_a_function_brings_its_weights(
    opencl: Device, module: tml.Module, uploaded: UploadedLibrary
) -> None:
    output = tml.allocate(module.output[0].shape, module.output[0].dtype, opencl)
    uploaded.get_function("perceptron")(tml.tensor(given(), opencl), output)
    elsewhere = tml.upload(tml.compile(module, tml.cpu())).get_function("perceptron")
    other = tml.allocate((ROWS, WIDTH), "float32", tml.cpu())
    elsewhere(tml.tensor(given(), tml.cpu()), other)
    np.testing.assert_allclose(output.numpy(), other.numpy(), rtol=1e-5, atol=1e-5)


def test_a_function_that_is_not_there_is_named_with_those_that_are(
    uploaded: UploadedLibrary,
) -> None:
    with pytest.raises(InputError, match=r"no function 'percepton'; it has: perceptron, "):
        uploaded.get_function("percepton")


def test_a_tensor_on_another_device_is_refused(opencl: Device, uploaded: UploadedLibrary) -> None:
    output = tml.allocate((ROWS, WIDTH), "float32", opencl)
    with pytest.raises(InputError, match=r"parameter 'hidden' is on cpu, expected opencl"):
        uploaded.get_function("perceptron")(tml.tensor(given(), tml.cpu()), output)


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [((ROWS + 1, WIDTH), "float32", "hidden"), ((ROWS, WIDTH), "float64", "hidden")],
    ids=["shape", "dtype"],
)
def test_a_tensor_that_does_not_fit_is_named(
    opencl: Device,
    uploaded: UploadedLibrary,
    shape: tuple[int, ...],
    dtype: str,
    words: str,
) -> None:
    function = uploaded.get_function("perceptron")
    output = tml.allocate((ROWS, WIDTH), "float32", opencl)
    with pytest.raises(InputError, match=words):
        function(tml.tensor(np.zeros(shape, dtype), opencl), output)
    function(tml.tensor(given(), opencl), output)
    assert np.isfinite(output.numpy()).all(), "the device works on after a refused call"


def test_too_few_tensors_are_refused(opencl: Device, uploaded: UploadedLibrary) -> None:
    with pytest.raises(InputError, match=r"expected 2 tensors, got 1; .*hidden \(input\)"):
        uploaded.get_function("perceptron")(tml.tensor(given(), opencl))


def test_a_library_goes_to_its_own_platform_only(opencl: Device, module: tml.Module) -> None:
    compiled = tml.compile(module, opencl)
    with pytest.raises(InputError, match=r"for opencl, not for cpu.*tapml\.cpu\(\)"):
        tml.upload(compiled, tml.cpu())


def test_a_library_goes_to_another_device_of_its_platform(module: tml.Module) -> None:
    other = Device("cpu:0")
    try:
        uploaded = tml.upload(tml.compile(module, tml.cpu()), other)
        assert uploaded.device is other
        output = tml.allocate((ROWS, WIDTH), "float32", other)
        uploaded.get_function("perceptron")(tml.tensor(given(), other), output)
        assert np.isfinite(output.numpy()).all()
    finally:
        other.close()
