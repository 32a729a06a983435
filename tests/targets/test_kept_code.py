"""Compiled code in the user's cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tapml_targets.kept_code import KeptCode


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made() -> bytes:
    return b"code"


def never() -> bytes:
    raise AssertionError("the code is kept")


def test_code_is_made_once_for_each_key() -> None:
    assert KeptCode("made", ".bin", "text", b"gfx90a").code(made) == b"code"
    assert KeptCode("made", ".bin", "text", b"gfx90a").code(never) == b"code"
    assert KeptCode("made", ".bin", "text", b"gfx942").read() is None


def test_parts_that_read_the_same_in_a_row_are_different_keys() -> None:
    KeptCode("made", ".bin", "ab", "c").write(b"code")
    assert KeptCode("made", ".bin", "a", "bc").read() is None


def test_a_file_that_was_changed_or_cut_is_made_again() -> None:
    kept = KeptCode("made", ".bin", "text")
    for spoilt in (b"", b"co", b"coda" + hashlib.sha256(b"code").digest()):
        kept.write(b"code")
        assert kept.path is not None
        kept.path.write_bytes(spoilt)
        assert kept.read() is None
        assert not kept.path.exists()
        assert kept.code(made) == b"code"


def test_without_a_cache_the_code_is_made_each_time(cache: Path) -> None:
    cache.write_bytes(b"a file where the folder would be")
    kept = KeptCode("made", ".bin", "text")
    assert kept.path is None
    assert [kept.code(made) for _ in range(2)] == [b"code", b"code"]
