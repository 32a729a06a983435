"""A cache that cannot harm: damaged entries are compiled again, a full disk costs only time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import tapml_targets
from tapml.compiler import cache as cache_module
from tapml.compiler.cache import LibraryCache, generator_hash, library_key, sources_hash
from tapml_targets.library import CodeModule, Library
from tapml_targets.library_format import pack
from tapml_targets.limits import Limits
from tapml_targets.platforms import platform_names
from tapml_targets.target import Target
from tests.compiler.operators import OPENCL, scale, source


def _library(text: bytes = b"code") -> Library:
    return Library("opencl", (CodeModule("opencl-c", text),), {}, {})


def test_an_entry_is_found_by_another_cache_object(tmp_path: Path) -> None:
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
    with pytest.warns(RuntimeWarning, match="compiled code is not cached"):
        cache = LibraryCache(tmp_path / "file" / "below")
    cache.put("key", pack(_library()))
    assert cache.get("key") is None


def test_the_key_holds_everything_that_changes_the_result() -> None:
    one = source(scale())
    keys = [
        library_key(one, OPENCL),
        library_key(replace(one, name="other"), OPENCL),
        library_key(replace(one, function=one.function + " "), OPENCL),
        library_key(replace(one, symbols=("n",)), OPENCL),
        library_key(replace(one, parameters=one.parameters[:1]), OPENCL),
        library_key(one, Target("cpu")),
        library_key(one, Target("opencl", options=(("max_num_threads", "64"),))),
    ]
    assert len(set(keys)) == len(keys)


MEMORY = {"memory_bytes", "max_buffer_bytes"}


@pytest.mark.parametrize("name", [each.name for each in fields(Limits) if each.name not in MEMORY])
def test_the_key_holds_every_limit_that_a_generator_may_read(name: str) -> None:
    other: dict[str, Any] = {name: _another(getattr(Limits(), name))}
    limited = Target("opencl", limits=Limits(**other))
    assert library_key(source(scale()), limited) != library_key(source(scale()), OPENCL)


def _another(value: int | str | tuple[int, ...] | frozenset[str]) -> object:
    if isinstance(value, frozenset):
        return value | {"float16"}
    if isinstance(value, str):
        return "sm_90"
    return (*value[:-1], 64) if isinstance(value, tuple) else value + 64


def test_machines_of_another_architecture_share_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    here = library_key(source(scale()), Target("cpu"))
    monkeypatch.setattr(cache_module, "machine", lambda: "another")
    assert library_key(source(scale()), Target("cpu")) != here


def test_the_key_holds_every_part_of_a_target() -> None:
    changes: dict[str, Any] = {
        "platform": "vulkan",
        "options": (("schedule", "fallback"),),
        "limits": Limits(max_threads_per_block=64),
    }
    assert set(changes) == {each.name for each in fields(Target)}
    keys = [library_key(source(scale()), replace(OPENCL, **{n: v})) for n, v in changes.items()]
    assert len({*keys, library_key(source(scale()), OPENCL)}) == len(keys) + 1


def test_the_order_in_which_features_are_stated_does_not_matter() -> None:
    names = ["float16", "subgroups", "int64", "float64"]
    one, other = (Target("opencl", limits=Limits(features=frozenset(each)))
                  for each in (names, reversed(names)))  # fmt: skip
    assert library_key(source(scale()), one) == library_key(source(scale()), other)


def test_devices_with_other_amounts_of_memory_share_an_entry() -> None:
    large = Target("opencl", limits=Limits(memory_bytes=1 << 40, max_buffer_bytes=1 << 38))
    assert library_key(source(scale()), large) == library_key(source(scale()), OPENCL)


@pytest.mark.parametrize("file", ["codegen.py", "kernels/merge.metal", "kernels/scan.h"])
def test_an_edited_source_in_any_language_changes_the_generators_hash(
    tmp_path: Path, file: str
) -> None:
    edited = tmp_path / "platform" / file
    edited.parent.mkdir(parents=True)
    edited.write_text("one")
    before = sources_hash(tmp_path / "platform")
    edited.write_text("two")
    changed = sources_hash(tmp_path / "platform")
    edited.rename(edited.with_name("moved.txt"))
    assert len({before, changed, sources_hash(tmp_path / "platform")}) == 3


def test_bytecode_is_not_part_of_a_generators_hash(tmp_path: Path) -> None:
    (tmp_path / "codegen.py").write_text("one")
    before = sources_hash(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "codegen.cpython-311.pyc").write_bytes(b"compiled")
    assert sources_hash(tmp_path) == before


def test_the_hash_of_a_platforms_generator_covers_its_folder_the_shared_one_and_all_it_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[bytes] = []
    digest = cache_module._digest

    def look(parts: Iterable[bytes]) -> str:
        given = list(parts)
        hashed.extend(given)
        return digest(given)

    monkeypatch.setattr(cache_module, "_digest", look)
    root = Path(tapml_targets.__file__).parent
    found = set()
    for name in platform_names():
        hashed.clear()
        found.add(generator_hash.__wrapped__(name))
        read = [root / "codegen" / "gpu.py", root / "library.py", root / "threaded_c/prologues.py"]
        read += [each for each in (root / name).rglob("*") if each.suffix in {".py", ".toml"}]
        assert {each.read_bytes() for each in read} <= set(hashed)
    assert len(found) == len(platform_names())
