"""A second import reads the plan from disk and gives the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from tapml.compiler import host_build
from tapml.importing import cache as cache_module
from tapml.importing.cache import PlanCache, import_key, rooting_key
from tapml.importing.importer import import_model
from tapml.rooting.rooting import root
from tests.small_llama import SmallLlama


@pytest.fixture
def stored(llama: SmallLlama, tmp_path: Path) -> PlanCache:
    plans = PlanCache(tmp_path / "plans")
    weights = llama.imported.weights
    constants = {name: weights[name] for name in weights if name.startswith("constants.")}
    plans.put_plan(import_key(llama.model), llama.imported.plan, constants)
    return plans


def test_a_cached_import_is_the_same_without_torch_export(
    llama: SmallLlama, stored: PlanCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tapml.importing.importer.export_entry", None)
    begun: list[str] = []
    imported = import_model(llama.model, cache=stored, begins=lambda: begun.append("imported"))
    assert begun == []
    assert imported.plan == llama.imported.plan
    assert set(imported.weights) == set(llama.imported.weights)
    for name, array in llama.imported.weights.items():
        assert np.array_equal(imported.weights[name], array)


def test_who_waits_for_an_import_hears_that_it_is_none_from_the_cache(
    llama: SmallLlama, tmp_path: Path
) -> None:
    def begins() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_model(llama.model, cache=PlanCache(tmp_path / "plans"), begins=begins)


def test_a_cached_plan_can_still_be_rooted(llama: SmallLlama, stored: PlanCache) -> None:
    imported = import_model(llama.model, cache=stored)
    assert imported.exported == {}
    first = root(llama.model, imported, reference=llama.reference, cache=stored)
    again = root(llama.model, imported, reference=None, cache=stored)
    assert first == again


def test_a_rooting_on_another_processor_is_not_this_one(
    llama: SmallLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key() -> str:
        return rooting_key(
            llama.imported.plan, "weights", ["1", "2", "3"], host_build.host_identity()
        )

    here = key()
    assert key() == here
    older = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    monkeypatch.setattr(host_build, "host_target", lambda: older)
    assert key() != here


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"x" + data[1:]])
def test_a_damaged_file_is_not_there(
    llama: SmallLlama, stored: PlanCache, tmp_path: Path, damage: object
) -> None:
    (file,) = (tmp_path / "plans").glob("*.plan")
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    assert stored.get_plan(import_key(llama.model)) is None


def test_another_version_is_another_plan(
    llama: SmallLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = import_key(llama.model)
    monkeypatch.setattr(cache_module, "versions_text", lambda *_: "torch 99")
    assert import_key(llama.model) != before


def test_old_files_make_room(
    llama: SmallLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_KEPT", 3)
    plans = PlanCache(tmp_path / "plans")
    for index in range(5):
        plans.put_plan(f"{index:064x}", llama.imported.plan, {})
    assert len(list((tmp_path / "plans").iterdir())) == 3


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_cache(
    llama: SmallLlama, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    plans = PlanCache(tmp_path / "file" / "plans")
    plans.put_plan("key", llama.imported.plan, {})
    assert plans.get_plan("key") is None
