"""The data of a comparison."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tapml.backends.runner import Input
from tapml.comparing.data import make_data, read_data
from tapml.comparing.data_archives import read_archive
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
    with pytest.raises(InputError, match=r"np\.unique"):
        make_data({"x": np.zeros((2, 3)), "y": np.array(["cat", "dog"])})
    with pytest.raises(InputError, match="hold NaN or Inf"):
        make_data({"x": np.zeros((2, 3)), "y": np.array([1.0, np.nan])})
    with pytest.raises(InputError, match="the data has no inputs"):
        make_data({"y": np.zeros(3)})


def test_a_large_file_is_mapped_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays: dict[str, Any] = {
        "left": np.arange(12.0).reshape(3, 4).T,
        "right": np.arange(4, dtype=np.int8),
        "rate": np.int64(8),
    }
    np.savez(tmp_path / "data.npz", **arrays)
    monkeypatch.setattr("tapml.comparing.data_archives._MAPPED_FROM", 0)
    found = read_archive(tmp_path / "data.npz")
    assert isinstance(found["left"], np.memmap) and not isinstance(found["rate"], np.memmap)
    assert all(np.array_equal(found[name], each) for name, each in arrays.items())
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="holds objects"):
        read_archive(tmp_path / "objects.npz")
    monkeypatch.setattr("tapml.comparing.data_archives.LARGEST_BYTES", 9)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    with pytest.raises(InputError, match=r"or any number of np\.savez"):
        read_archive(tmp_path / "packed.npz")
    # Neither its dtype nor its order is changed in memory.
    monkeypatch.setattr("tapml.backends.steps.WINDOW_BYTES", 9)
    given = make_data(found).for_inputs([Input("left", (None, 3), "float32")])
    assert np.shares_memory(given["left"], found["left"])


def test_a_table_has_a_row_an_instance_and_its_labels_in_a_column(tmp_path: Path) -> None:
    table = tmp_path / "flowers.csv"
    table.write_text("length,Class,width\n1.5,setosa,2\n\n3,aster,4e1\n", encoding="utf-8-sig")
    data = read_data(table)
    assert data.labels is not None and data.labels.tolist() == [1, 0]
    np.testing.assert_array_equal(data.arrays["x"], [[1.5, 2], [3, 40]])
    (tmp_path / "plain.tsv").write_text("1\t2\n3\t4\n")
    plain = read_data(tmp_path / "plain.tsv").arrays["x"]
    assert plain.dtype == np.int64 and plain.tolist() == [[1, 2], [3, 4]]
    # As pandas writes them: rows are numbered, and columns without names are.
    for text in (",0,1,2\n0,5,6,7\n9,1,1,1\n", "0,1,2\n5,6,7\n1,1,1\n", "a;b;c\n5;6;7\n1;1;1\n"):
        table.write_text(text)
        assert read_data(table).arrays["x"].tolist() == [[5, 6, 7], [1, 1, 1]]
    for text, expected in (
        ("a,b\n1,two\n", r"line 2 of .*'two' in b; expected a number"), ("a,b\n", "no rows"),
        ("a,b\n1\n", "line 2 of .* has 1 columns; expected 2"), ("y\n1\n", "no column beside"),
        ("a,a\n1,2\n", "two columns of one title"), ("", "no rows"),
    ):  # fmt: skip
        table.write_text(text)
        with pytest.raises(InputError, match=expected):
            read_data(table)


def test_x_is_the_only_input_also_beside_arrays_that_nothing_reads() -> None:
    data = make_data({"x": np.zeros((2, 3)), "weights": np.zeros(2)})
    assert list(data.for_inputs([Input("image", (None, 3), "float32")])) == ["image"]


@pytest.mark.parametrize(
    ("found", "expected", "hint"),
    [
        ((2, 8, 6, 3), (None, 3, 8, 6), r"channels lie last: give np\.moveaxis\(x, -1, 1\)"),
        ((2, 3, 8, 6), (None, 8, 6, 3), r"channels lie first: give np\.moveaxis\(x, 1, -1\)"),
        ((8, 6, 3), (None, 8, 6, 3), r"of one instance, give x\[None\]"),
        ((2, 8, 5, 3), (None, 3, 8, 6), r"found \(2, 8, 5, 3\)$"),
    ],
)
def test_another_layout_is_refused_with_what_makes_it_fit(
    found: tuple[int, ...], expected: tuple[int | None, ...], hint: str
) -> None:
    with pytest.raises(InputError, match=hint):
        make_data({"x": np.zeros(found)}).for_inputs([Input("x", expected, "float32")])


def test_a_single_number_is_the_same_for_all_instances() -> None:
    data = make_data({"x": np.zeros((2, 3), np.float32), "rate": np.int64(16_000)})
    given = data.for_inputs([Input("rate", (), "int64"), Input("x", (None, 3), "float32")])
    assert len(data) == 2 and given["rate"].shape == ()
    with pytest.raises(InputError, match=r"expects the shape \(any, 3\), found \(\)"):
        data.for_inputs([Input("x", (None, 3), "float32"), Input("rate", (None, 3), "int64")])


def test_numbers_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="expects int64, found float64"):
        make_data({"x": np.zeros((2, 3))}).for_inputs([Input("ids", (None, 3), "int64")])


def png_of_16_bit_colours(height: int, width: int) -> bytes:
    """A black image as Pillow reads, and does not write."""
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0),
        b"IDAT": zlib.compress(bytes(height * (1 + width * 6))),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts.items()
    )


def write_image(file: Path, pixels: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def test_images_are_instances_and_their_subfolders_classes(tmp_path: Path) -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    write_image(tmp_path / "zebra" / "a.png", grey)
    write_image(tmp_path / "ant" / "b.png", np.stack([grey, grey // 2, 0 * grey], axis=-1))
    data = read_data(tmp_path)
    assert data.labels is not None and data.labels.tolist() == [0, 1]
    (last,) = data.for_inputs([Input("image", (None, 3, 4, 3), "float32")]).values()
    (first,) = data.for_inputs([Input("image", (None, 3, 3, 4), "float32")]).values()
    assert last.shape == (2, 3, 4, 3) and first.shape == (2, 3, 3, 4)
    np.testing.assert_array_equal(first[1], np.broadcast_to(grey / np.float32(255), (3, 3, 4)))
    np.testing.assert_array_equal(last[0, ..., 1], (grey // 2) / np.float32(255))
    (one,) = data.for_inputs([Input("image", (None, 1, 3, 4), "float32")]).values()
    np.testing.assert_allclose(one[1, 0], grey / np.float32(255), rtol=1e-6)
    (tmp_path / "classes.txt").write_text("zebra\ncat\nant\n", encoding="utf-8-sig")
    listed = read_data(tmp_path).labels
    assert listed is not None and listed.tolist() == [2, 0]
    (tmp_path / "classes.txt").write_text("cat\nzebra")
    with pytest.raises(InputError, match="does not name 'ant'"):
        read_data(tmp_path)
    (tmp_path / "classes.txt").write_text("ant\nzebra\nant\n")
    with pytest.raises(InputError, match="names 'ant' in lines 1 and 3"):
        read_data(tmp_path)
    (tmp_path / "classes.txt").unlink()
    write_image(tmp_path / "ant" / "c.png", np.zeros((2, 2), np.uint8))
    with pytest.raises(InputError, match=r"c\.png is 2 x 2.*make all images equally large"):
        read_data(tmp_path)
    write_image(tmp_path / "ant" / "c.png", np.zeros((3, 4), np.uint16))
    with pytest.raises(InputError, match="expected 8 bits a channel"):
        read_data(tmp_path)
    (tmp_path / "ant" / "c.png").write_bytes(png_of_16_bit_colours(3, 4))
    with pytest.raises(InputError, match="RGB pixels of 16 bits; expected 8 bits a channel"):
        read_data(tmp_path)
    (tmp_path / "ant" / "c.png").rename(tmp_path / "c.png")
    with pytest.raises(InputError, match="lies beside the subfolders of classes"):
        read_data(tmp_path)
    (tmp_path / "c.png").unlink()
    (tmp_path / "ant" / "c.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"c\.png is no image"):
        read_data(tmp_path)


def test_a_folder_of_arrays_is_a_data_set_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected NAME\.npy files, or images"):
        read_data(tmp_path)
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    np.save(tmp_path / "y.npy", [0, 1, 0])
    data = read_data(tmp_path)
    assert data.arrays["x"].shape == (3, 2) and data.labels is not None
    assert len(read_data(tmp_path / "x.npy")) == 3
    np.save(tmp_path / "z.npy", np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"z\.npy is no \.npy file of numbers"):
        read_data(tmp_path)
