"""Archives from anywhere: the same bytes when written, and nothing believed when read."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml.bundle import archive as module
from tapml.bundle.archive import extract_archive, write_archive
from tapml_targets.errors import InputError, SetupError

FILES = {
    "op/README.txt": b"read me\n" * 9,
    "op/kernels/00.cl": b"__kernel",
    "op/bundle.json": b"{}",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(bytes(3_000_000))
    write_archive(tmp_path / "a.zip", {**FILES, "op/large.npy": source})
    extract_archive(tmp_path / "a.zip", tmp_path / "out")
    assert contents(tmp_path / "out") == {**FILES, "op/large.npy": bytes(3_000_000)}
    assert (tmp_path / "a.zip").stat().st_size < 10_000


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.zip", FILES)
    write_archive(tmp_path / "b.zip", dict(reversed(FILES.items())))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_an_archive_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"the old one")
    with pytest.raises(FileNotFoundError):
        write_archive(tmp_path / "a.zip", {"op/gone": tmp_path / "gone"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
    assert (tmp_path / "a.zip").read_bytes() == b"the old one"
    with pytest.raises(SetupError, match="cannot write"):
        write_archive(tmp_path / "a.zip" / "b.zip", FILES)


def test_too_much_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TOTAL_BYTES", 40)
    with pytest.raises(InputError, match="tapml reduce"):
        write_archive(tmp_path / "a.zip", FILES)
    monkeypatch.setattr(module, "MAX_FILES", 2)
    with pytest.raises(InputError, match="3 files"):
        write_archive(tmp_path / "a.zip", FILES)
    assert list(tmp_path.iterdir()) == []


def _zip(*entries: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries:
            file.writestr(name, data)
    return buffer.getvalue()


def _entry(name: str, mode: int, method: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, mode << 16
    entry.compress_type = method
    return entry


def _before_the_end(data: bytes, record: bytes) -> bytes:
    return data[:-22] + record + data[-22:]


def _declared_larger(data: bytes) -> bytes:
    """The central directory and the local header say 5 GiB."""
    huge = struct.pack("<I", 0xFFFFFFF0)
    local = data.index(b"PK\x03\x04") + 22
    central = data.index(b"PK\x01\x02") + 24
    changed = bytearray(data)
    changed[local : local + 4] = changed[central : central + 4] = huge
    return bytes(changed)


def _claims(entries: int, directory: int) -> bytes:
    data = bytearray(_zip(("op/a", b"a")))
    end = len(data) - 22
    data[end + 8 : end + 16] = struct.pack("<HHI", entries, entries, directory)
    return bytes(data)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "parent": lambda: _zip(("../evil", b"x")),
    "parent inside": lambda: _zip(("op/../../evil", b"x")),
    "absolute": lambda: _zip(("/tmp/evil", b"x")),
    "drive": lambda: _zip(("C:/evil", b"x")),
    "backslash": lambda: _zip(("op\\..\\..\\evil", b"x")),
    "hidden": lambda: _zip(("op/.bashrc", b"x")),
    "null": lambda: _zip(("op/aXb", b"x")).replace(b"op/aXb", b"op/a\0b"),
    "newline": lambda: _zip(("op/a\n", b"x")),
    "folder": lambda: _zip(("op/", b"")),
    "deep": lambda: _zip(("a/b/c/d", b"x")),
    "long": lambda: _zip(("op/" + "a" * 300, b"x")),
    "link": lambda: _zip((_entry("op/link", stat.S_IFLNK | 0o777), b"/etc/passwd")),
    "device": lambda: _zip((_entry("op/null", stat.S_IFCHR | 0o666), b"")),
    "pipe": lambda: _zip((_entry("op/pipe", stat.S_IFIFO | 0o666), b"")),
    "one name in two cases": lambda: _zip(("op/a", b"1"), ("op/A", b"2")),
    "file and folder": lambda: _zip(("op/a", b"1"), ("op/a/b", b"2")),
    "many": lambda: _zip(*((f"op/{index}", b"") for index in range(600))),
    "bomb": lambda: _declared_larger(_zip(("op/a", bytes(1 << 20)))),
    "more entries than bytes": lambda: _claims(65_535, 100),
    "a huge directory": lambda: _claims(1, 0x7FFFFFFF),
    "comment": lambda: _zip(("op/a", b"x"))[:-2] + b"\x05\x00PK\x05\x06!",
    "64 bit": lambda: _before_the_end(_zip(("op/a", b"")), b"PK\x06\x07" + bytes(16)),
    "short": lambda: _zip(("op/a", b"x"))[:-30],
    "empty": lambda: b"",
    "no zip": lambda: b"not a zip archive, but long enough to be looked at",
    "unknown method": lambda: _zip((_entry("op/a", 0o644, zipfile.ZIP_BZIP2), b"x" * 99)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_writes_nothing_outside(kind: str, tmp_path: Path) -> None:
    path, out = tmp_path / "in" / "a.zip", tmp_path / "in" / "out"
    path.parent.mkdir()
    path.write_bytes(HOSTILE[kind]())
    out.mkdir()
    with pytest.raises(InputError):
        extract_archive(path, out)
    assert {each.name for each in tmp_path.iterdir()} == {"in"}
    assert {each.name for each in path.parent.iterdir()} == {"a.zip", "out"}
    assert sum(len(data) for data in contents(out).values()) < 1 << 21


def test_an_entry_that_gives_more_than_it_declares_is_cut_off(tmp_path: Path) -> None:
    data = bytearray(_zip(("op/a", bytes(1 << 20))))
    for magic, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.index(magic) + offset
        data[at : at + 4] = struct.pack("<I", 1000)
    (tmp_path / "a.zip").write_bytes(bytes(data))
    with pytest.raises(InputError, match="not a valid bundle"):
        extract_archive(tmp_path / "a.zip", tmp_path / "out")
    assert sum(len(each) for each in contents(tmp_path / "out").values()) <= 1000


def test_a_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no bundle at"):
        extract_archive(tmp_path / "none.zip", tmp_path / "out")


def test_an_entry_that_swallows_those_behind_it_is_refused(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.zip", FILES)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    first = data.index(b"PK\x01\x02")
    comment = data.index(b"PK\x05\x06") - data.index(b"PK\x01\x02", first + 1)
    data[first + 32 : first + 34] = struct.pack("<H", comment)
    (tmp_path / "a.zip").write_bytes(bytes(data))
    with pytest.raises(InputError, match="1 of 3 entries"):
        extract_archive(tmp_path / "a.zip", tmp_path / "out")


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_is_refused_or_changes_nothing(data: st.DataObject, tmp_path: Path) -> None:
    write_archive(tmp_path / "good.zip", FILES)
    damaged = bytearray((tmp_path / "good.zip").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] ^= data.draw(st.integers(1, 255))
    size = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    (tmp_path / "bad.zip").write_bytes(bytes(damaged[:size]))
    out = tmp_path / f"out-{data.draw(st.uuids())}"
    out.mkdir(exist_ok=True)
    try:
        extract_archive(tmp_path / "bad.zip", out)
    except InputError:
        return
    # A byte of a name, a date or an attribute may differ; what is in the files may not.
    assert sorted(contents(out).values()) == sorted(FILES.values())
