"""The data of a comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tapml.backends.runner import Input
from tapml.comparing.data import make_data, read_data
from tapml_targets.errors import InputError


def test_arrays_are_read_by_the_names_of_the_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", left=np.ones((3, 2)), right=np.zeros((3, 4)), y=[0, 1, 0])
    data = read_data(tmp_path / "data.npz")
    inputs = [Input("right", (None, 4), "float32"), Input("left", (None, None), "float32")]
    assert list(data.for_inputs(inputs)) == ["right", "left"]
    assert data.for_inputs(inputs)["left"].dtype == np.float32
    assert len(data) == 3 and data.labels is not None


def test_an_array_of_objects_is_refused_without_running_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"no \.npz file of numbers"):
        read_data(tmp_path / "data.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"text"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"no \.npz file"):
        read_data(tmp_path / "data.npz")


def test_a_missing_file_and_empty_or_uneven_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_data(tmp_path / "nothing.npz")
    with pytest.raises(InputError, match="holds no instance"):
        make_data({"x": np.zeros((0, 3))})
    with pytest.raises(InputError, match="differ in their number of instances"):
        make_data({"x": np.zeros((2, 3)), "y": np.zeros(3)})
    with pytest.raises(InputError, match="the data has no inputs"):
        make_data({"y": np.zeros(3)})


def test_numbers_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="expects int64, found float64"):
        make_data({"x": np.zeros((2, 3))}).for_inputs([Input("ids", (None, 3), "int64")])
