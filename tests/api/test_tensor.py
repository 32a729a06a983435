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


def test_print_shows_the_values_and_the_device(opencl: Device) -> None:
    half = np.array([[0.5, -1.25], [np.nan, np.inf]], np.float16)
    assert str(tml.tensor(half, opencl)) == (
        "Tensor([[ 0.5 , -1.25],\n        [  nan,   inf]], shape=(2, 2), float16, on "
        f"{opencl.name})"
    )
    # bfloat16 travels as bits and is printed as numbers.
    bits = tml.allocate((2,), "bfloat16", opencl)
    opencl.session.write(bits.remote.buffer, np.array([0x3F80, 0xC000], np.uint16).view(np.uint8))
    assert str(bits).startswith("Tensor([ 1., -2.], shape=(2,), bfloat16")
    assert str(tml.tensor(np.array([], np.int32), opencl)).startswith("Tensor([], shape=(0,)")


@pytest.mark.parametrize("shape", [(1001,), (7, 200), (2, 7, 1, 300), (2000, 1), (5, 6, 40)])
def test_print_reads_only_the_corners_of_a_large_tensor(
    opencl: Device, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    remote = tml.tensor(array, opencl)
    monkeypatch.setattr(remote, "numpy", lambda: pytest.fail("it read all of it"))
    shown = np.array2string(array, precision=4, separator=", ", prefix="Tensor(")
    assert str(remote) == f"Tensor({shown}, shape={shape}, float32, on {opencl.name})"


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
