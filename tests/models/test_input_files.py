"""Files of inputs: what is damaged, or no array, is refused in one line."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tapml.models.input_files import read_inputs
from tapml_targets.errors import InputError


def header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def archive(name: str, content: bytes, kind: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as made:
        made.writestr(name, content)
    return stream.getvalue()


def torn(content: bytes) -> bytes:
    """An archive with other bytes in the middle of its compressed part."""
    middle = len(content) // 2
    return content[:middle] + b"\xff" * 40 + content[middle + 40 :]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header((1 << 40,)), "holds no arrays"),
        (archive("x.npy", header((1 << 40,))), "holds no arrays"),
        (
            torn(archive("x.npy", header((99,)) + bytes(range(99)) * 4, zipfile.ZIP_DEFLATED)),
            "holds no arrays",
        ),
        (archive("x.txt", b"1 2 3"), "holds 'x.txt', which is no array"),
        (b"1 2 3", "holds no arrays"),
    ],
)
def test_a_file_that_is_damaged_or_no_array_is_refused(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_inputs(tmp_path / "x.npz")
    assert "\n" not in str(caught.value)


def test_arrays_come_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(3), b=np.float32(2))
    found = read_inputs(tmp_path / "x.npz")
    assert isinstance(found, dict)
    assert {name: each.tolist() for name, each in found.items()} == {"a": [0, 1, 2], "b": 2.0}
