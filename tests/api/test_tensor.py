"""Tensors on a device."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import tapml as tml
from tapml.api.device import Device
from tapml_targets.errors import InputError

DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool")


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    array=st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(
            dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)
        )
    )
)
def test_what_goes_to_a_device_comes_back(opencl: Device, array: np.ndarray[Any, Any]) -> None:
    remote = tml.tensor(array, opencl)
    assert remote.shape == array.shape
    back = remote.numpy()
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_an_array_need_not_be_contiguous(opencl: Device) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1].T
    np.testing.assert_array_equal(tml.tensor(array, opencl).numpy(), array)


def test_a_scalar_keeps_its_shape(opencl: Device) -> None:
    assert tml.tensor(np.float32(2.5), opencl).numpy().shape == ()


def test_a_negative_extent_is_refused(opencl: Device) -> None:
    with pytest.raises(InputError, match=r"at least 0, got \(2, -1\)"):
        tml.allocate((2, -1), "float32", opencl)


def test_an_extent_that_depends_on_the_inputs_is_refused(opencl: Device) -> None:
    with pytest.raises(InputError, match=r"extent n depends on the inputs; Module\.output_shapes"):
        tml.allocate(("n", 4), "float32", opencl)


def test_an_unknown_dtype_is_refused(opencl: Device) -> None:
    with pytest.raises(InputError, match="flot32"):
        tml.allocate((2,), "flot32", opencl)


def test_an_array_of_objects_is_refused(opencl: Device) -> None:
    with pytest.raises(InputError, match="object"):
        tml.tensor(np.array([object()]), opencl)


def test_memory_is_given_back_when_the_last_reference_goes(opencl: Device) -> None:
    """More tensors in a row than the device could hold at once."""
    block = 1 << 28
    count = min(opencl.description.limits.memory_bytes // block + 2, 200)
    for _ in range(count):
        each = tml.allocate((block,), "uint8", opencl)
        del each
    gc.collect()
    assert tml.tensor(np.ones(3, np.float32), opencl).numpy().sum() == 3
