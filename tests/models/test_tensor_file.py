"""Tensor files: what the safetensors library writes is read, what is written it reads."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml.models.tensor_file import ALIGNMENT, MAX_HEADER_BYTES, open_tensors, write_tensors
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError, SetupError

Tensors = dict[str, tuple[str, npt.NDArray[Any]]]
KINDS = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
)  # fmt: skip
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensors:
    found: Tensors = {}
    names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
    for name in draw(st.lists(names.filter(lambda n: n != "__metadata__"), unique=True)):
        kind = draw(st.sampled_from(KINDS))
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        raw = np.random.default_rng(len(found)).bytes(dtype(kind).nbytes(int(np.prod(shape))))
        if kind == "bool":
            raw = bytes(byte & 1 for byte in raw)
        found[name] = kind, np.frombuffer(raw, dtype(kind).numpy_name).reshape(shape)
    return found


def write(path: Path, held: Tensors) -> None:
    write_tensors(
        path,
        {name: array for name, (_, array) in held.items()},
        {name: kind for name, (kind, _) in held.items()},
    )


def as_torch(kind: str, array: npt.NDArray[Any]) -> torch.Tensor:
    if array.size == 0:
        return torch.empty(array.shape, dtype=getattr(torch, kind))
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
    return flat.view(getattr(torch, kind)).reshape(array.shape)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""


@QUICK
@given(held=tensors())
def test_the_safetensors_library_reads_our_files(held: Tensors, tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", held)
    read = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert read.keys() == held.keys()
    for name, (kind, array) in held.items():
        assert read[name].dtype == getattr(torch, kind)
        assert tuple(read[name].shape) == array.shape
        assert raw_bytes(read[name]) == array.tobytes()


@QUICK
@given(held=tensors())
def test_files_of_the_safetensors_library_are_read(held: Tensors, tmp_path: Path) -> None:
    safetensors.torch.save_file(
        {name: as_torch(kind, array) for name, (kind, array) in held.items()},
        tmp_path / "a.safetensors",
        metadata={"format": "pt"},
    )
    read = open_tensors(tmp_path / "a.safetensors")
    assert {name: each.dtype for name, each in read.tensors.items()} == {
        name: kind for name, (kind, _) in held.items()
    }
    for name, (_, array) in held.items():
        assert read[name].shape == array.shape
        assert read[name].dtype == array.dtype
        assert read[name].tobytes() == array.tobytes()


def test_arrays_are_mapped_read_only_and_aligned(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    held: Tensors = {
        "odd": ("uint8", np.arange(3, dtype=np.uint8)),
        "half": ("bfloat16", np.arange(5, dtype=np.uint16)),
        "weight": ("float32", np.arange(64, dtype=np.float32).reshape(4, 16)),
        "other": ("float16", np.arange(64, dtype=np.float16)),
        "empty": ("int64", np.zeros((0, 4), np.int64)),
        "scalar": ("float64", np.asarray(2.5)),
    }
    write(path, held)
    read = open_tensors(path)
    for name, (_, array) in held.items():
        np.testing.assert_array_equal(read[name], array)
        assert not read[name].flags.writeable
        assert type(read[name]) is np.ndarray
        assert read[name].__array_interface__["data"][0] % array.itemsize == 0
        if array.nbytes and array.nbytes % ALIGNMENT == 0:
            assert read[name].__array_interface__["data"][0] % ALIGNMENT == 0


def test_arrays_outlive_the_file_object_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, {"x": ("float32", np.arange(9, dtype=np.float32))})
    array = open_tensors(path)["x"]
    path.unlink()
    assert array.sum() == 36


def test_strided_and_big_endian_arrays_are_written_as_what_they_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_tensors(
        path,
        {"transposed": values.T, "big": values.astype(">f4")},
        {"transposed": "float32", "big": "float32"},
    )
    read = safetensors.numpy.load_file(path)
    np.testing.assert_array_equal(read["transposed"], values.T)
    np.testing.assert_array_equal(read["big"], values)


def test_a_file_inside_another_is_read_in_place(tmp_path: Path) -> None:
    write(tmp_path / "a", {"x": ("int32", np.arange(7, dtype=np.int32))})
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(b"p" * 13 + data + b"tail")
    read = open_tensors(tmp_path / "b", offset=13, nbytes=len(data))
    np.testing.assert_array_equal(read["x"], np.arange(7))
    with pytest.raises(InputError, match="not a valid safetensors file"):
        open_tensors(tmp_path / "b", offset=13)


def test_writing_to_a_writable_array_changes_no_file(tmp_path: Path) -> None:
    write(tmp_path / "a", {"x": ("int32", np.arange(7, dtype=np.int32))})
    before = (tmp_path / "a").read_bytes()
    array = open_tensors(tmp_path / "a", writable=True)["x"]
    array[0] = 5
    assert array[0] == 5
    assert (tmp_path / "a").read_bytes() == before


def test_progress_counts_the_bytes_of_tensors(tmp_path: Path) -> None:
    seen: list[int] = []
    arrays: dict[str, npt.NDArray[Any]] = {
        "a": np.zeros(100, np.float32),
        "b": np.zeros(10, np.uint8),
    }
    kinds = {"a": "float32", "b": "uint8"}
    write_tensors(tmp_path / "a", arrays, kinds, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 410


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        ("bfloat16", np.zeros(2, np.float32), "expected an array of uint16, got float32"),
        ("int4", np.zeros(2, np.uint8), "expected one of the dtypes"),
    ],
)
def test_an_array_that_is_not_of_its_dtype_is_refused(
    kind: str, array: npt.NDArray[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        write_tensors(tmp_path / "a", {"x": array}, {"x": kind})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, {"x": ("int32", np.arange(7, dtype=np.int32))})
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(SetupError, match="No space left on device; free some space"):
        write_tensors(path, {"x": np.zeros(3, np.int8)}, {"x": "int8"}, progress=fail)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def crafted(path: Path, header: Any, data: bytes = b"\0" * 16) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def tensor(
    shape: list[Any], start: Any, end: Any, kind: str = "F32", **more: Any
) -> Mapping[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end], **more}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": tensor([4], 0, 16), "b": tensor([2], 8, 16)}, "'b' overlaps another"),
        ({"a": tensor([2], 8, 16)}, "'a' has a gap before it"),
        ({"a": tensor([8], 0, 32)}, "need 32 bytes, it has 16"),
        ({"a": tensor([2], 0, 8)}, "need 8 bytes, it has 16"),
        ({"a": tensor([3], 0, 16)}, "'a' is not valid"),
        ({"a": tensor([-1, -4], 0, 16)}, "'a' is not valid"),
        ({"a": tensor([True, 4], 0, 16)}, "'a' is not valid"),
        ({"a": tensor([4], -16, 0)}, "'a' is not valid"),
        ({"a": tensor([1] * 40 + [4], 0, 16)}, "'a' is not valid"),
        ({"a": tensor([1 << 62, 1 << 62, 0], 0, 16)}, "'a' is not valid"),
        ({"a": tensor([4], 0, 16, "F4")}, "dtype 'F4': expected one of F64, F32"),
        ({"a": [4]}, "'a' is not valid"),
        ([], "its header is not JSON of named tensors"),
        (b"{", "its header is not JSON"),
        (b'{"a": 1, "a": 1}', "'a' is not valid"),
        (b"\xff\xfe", "its header is not JSON"),
        (b"[" * 100_000, "its header is not JSON"),
    ],
)
def test_an_inconsistent_header_is_refused(header: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        open_tensors(crafted(tmp_path / "a", header))


def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        stream.truncate(MAX_HEADER_BYTES * 2)
    with pytest.raises(InputError, match=f"claims {MAX_HEADER_BYTES + 1} bytes"):
        open_tensors(path)


@pytest.mark.parametrize("length", [0, 7, 8, 40, -1])
def test_a_file_cut_short_is_refused(length: int, tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, {"x": ("float32", np.arange(9, dtype=np.float32))})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match="not a valid safetensors file"):
        open_tensors(path)


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*nothing"):
        open_tensors(tmp_path / "nothing")


@QUICK
@given(position=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_harmless(position: int, byte: int, tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(
        path, {"x": ("float32", np.arange(9, dtype=np.float32)), "y": ("int8", np.zeros(2, "i1"))}
    )
    data = bytearray(path.read_bytes())
    data[position % len(data)] = byte
    path.write_bytes(data)
    try:
        read = open_tensors(path)
    except InputError:
        return
    assert sum(array.nbytes for array in read.values()) == 38
