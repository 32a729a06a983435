"""A manifest is read strictly: every mistake names file, line, key, and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.kernels.manifest import MAX_MANIFEST_BYTES, ManifestGroup, read_manifest
from tapml_targets.errors import CompileError
from tests.kernels.operators import MANIFEST


def refusal(tmp_path: Path, text: str | bytes) -> str:
    """What is said against a manifest."""
    path = tmp_path / "kernel.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CompileError) as caught:
        read_manifest(path)
    assert str(path) in str(caught.value)
    return str(caught.value).removeprefix(str(path))


def test_a_manifest_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "kernel.toml"
    path.write_text(MANIFEST)
    manifest = read_manifest(path)
    (launch,) = manifest.launches
    assert not isinstance(launch, ManifestGroup)
    assert (manifest.operator, manifest.target, manifest.hash) == ("scale", "opencl", "")
    assert [argument.buffer for argument in launch.arguments] == [
        "input_0", "input_1", "output_0", "",
    ]  # fmt: skip
    assert (launch.source, launch.grid, launch.block) == (
        "scale.cl", ("ceildiv(output_0.size, 64)",), (64,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "", ": format: expected format = 1, got nothing"),
        ("format = 1", "format = 2", ":1: format: expected format = 1, got 2"),
        ("target =", "traget =", ":3: traget: this key is not known; did you mean 'target'?"),
        ("grid =", "gird =", ":14: launches[0].gird: this key is not known; did you mean 'grid'?"),
        ('"scale"', "7", ":2: operator: expected a text, got 7"),
        ("[64]", '["8", "8", "1", "1"]', ":15: launches[0].block: expected one to three extents"),
        ("[64]", "[6.4]", ":15: launches[0].block[0]: expected an integer or an expression"),
        ('source = "scale.cl"', "", ":6: launches[0].source: expected the name of a file"),
        ('"input_1"', "1", ":10: launches[0].arguments[1]: expected the name of a parameter"),
        (', dtype = "int64"', "", ":12: launches[0].arguments[3].dtype: expected a text"),
        ("dtype", "type", ":12: launches[0].arguments[3].type: this key is not known"),
        ('entry = "scale_kernel"', "", ":6: launches[0].entry: expected a text, got nothing"),
        ("[[launches]]", "[[lunches]]", ":6: lunches: this key is not known; did you mean"),
    ],
)
def test_a_mistake_is_named_with_line_and_key(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert refusal(tmp_path, MANIFEST.replace(old, new)).startswith(said)


def test_what_is_no_toml_is_named_with_its_line(tmp_path: Path) -> None:
    assert "at line 3" in refusal(tmp_path, 'format = 1\noperator = "x"\ntarget opencl\n')


def test_no_launch_at_all_is_refused(tmp_path: Path) -> None:
    text = MANIFEST.partition("[[launches]]")[0]
    assert "expected at least one [[launches]]" in refusal(tmp_path, text)


def test_a_manifest_that_is_too_large_is_refused(tmp_path: Path) -> None:
    text = MANIFEST + "#" * MAX_MANIFEST_BYTES
    assert f"at most {MAX_MANIFEST_BYTES} bytes" in refusal(tmp_path, text)


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"format = 1\n# \xff\n").startswith(":2: expected UTF-8 text")


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="cannot be read: No such file"):
        read_manifest(tmp_path / "kernel.toml")


def test_launches_are_bounded(tmp_path: Path) -> None:
    head, _, launch = MANIFEST.partition("[[launches]]")
    path = tmp_path / "kernel.toml"
    path.write_text(head + f"[[launches]]{launch}\n" * 1024)
    assert len(read_manifest(path).launches) == 1024
    text = head + f"[[launches]]{launch}\n" * 1025
    assert "at most 1024 launches" in refusal(tmp_path, text)


def test_nesting_is_bounded(tmp_path: Path) -> None:
    head = MANIFEST.partition("[[launches]]")[0]
    names = [".".join(["launches"] * depth) for depth in range(1, 12)]
    text = head + "".join(f"[[{name}]]\nwhen = 1\n" for name in names)
    assert "nested deeper than 8 launches" in refusal(tmp_path, text)


def test_a_host_loop_needs_name_and_count(tmp_path: Path) -> None:
    head, _, launch = MANIFEST.partition("[[launches]]")
    text = f'{head}[[launches]]\nfor = "i"\n\n[[launches.launches]]{launch}'
    assert refusal(tmp_path, text).startswith(":6: launches[0]: a host loop has both")
