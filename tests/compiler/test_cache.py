"""A cache that cannot harm: damaged entries are compiled again, a full disk costs only time."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tapml.compiler import cache as cache_module
from tapml.compiler.cache import LibraryCache, library_key
from tapml_targets.library import CodeModule, Library
from tapml_targets.library_format import pack
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tests.compiler.operators import OPENCL, scale, source


def _library(text: bytes = b"code") -> Library:
    return Library("opencl", (CodeModule("opencl-c", text),), {}, {})


def test_what_was_put_is_found_again_by_another_cache(tmp_path: Path) -> None:
    LibraryCache(tmp_path).put("key", pack(_library()))
    assert LibraryCache(tmp_path).get("key") == _library()
    assert LibraryCache(tmp_path).get("other") is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_entry_is_removed_and_not_returned(tmp_path: Path, damage: str) -> None:
    cache = LibraryCache(tmp_path)
    cache.put("key", pack(_library()))
    (path,) = tmp_path.glob("*.library")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-3]), "empty": b""}[damage])
    assert cache.get("key") is None
    assert not path.exists()


def test_an_entry_of_another_format_is_not_trusted_for_its_checksum(tmp_path: Path) -> None:
    cache = LibraryCache(tmp_path)
    cache.put("key", b"a checksum makes no Library")
    assert cache.get("key") is None


def test_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    size = len(pack(_library(bytes(1000))))
    cache = LibraryCache(tmp_path, max_bytes=3 * (size + 100))
    for number, key in enumerate("abc"):
        cache.put(key, pack(_library(bytes(1000))))
        os.utime(tmp_path / f"{key}.library", (number, number))
    assert cache.get("a") is not None
    cache.put("d", pack(_library(bytes(1000))))
    assert cache.get("b") is None
    assert cache.get("a") is not None
    assert cache.get("d") is not None


def test_a_full_disk_warns_once_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "write_atomically", full)
    cache = LibraryCache(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"No space left .* TAPML_CACHE_DIR"):
        cache.put("key", pack(_library()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("key", pack(_library()))
    assert cache.get("key") is None


def test_a_folder_that_cannot_be_made_leaves_a_working_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="compiled code is not kept"):
        cache = LibraryCache(tmp_path / "file" / "below")
    cache.put("key", pack(_library()))
    assert cache.get("key") is None


def test_the_key_tells_apart_all_that_changes_the_result() -> None:
    one = source(scale())
    keys = [
        library_key(one, OPENCL),
        library_key(replace(one, name="other"), OPENCL),
        library_key(replace(one, function=one.function + " "), OPENCL),
        library_key(replace(one, symbols=("n",)), OPENCL),
        library_key(replace(one, parameters=one.parameters[:1]), OPENCL),
        library_key(one, Target("cpu")),
        library_key(one, Target("opencl", options=(("max_num_threads", "64"),))),
        library_key(one, Target("opencl", limits=Limits(max_threads_per_block=64))),
    ]
    assert len(set(keys)) == len(keys)


def test_limits_that_no_schedule_reads_share_an_entry() -> None:
    one = source(scale())
    large = Target("opencl", limits=Limits(memory_bytes=1 << 40, features=frozenset({"float16"})))
    assert library_key(one, large) == library_key(one, OPENCL)
