"""What a suite knows of its tests: by id, by content, by place, and what a budget left out."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections import Counter
from pathlib import Path

import msgpack
import pytest

from tapml.carving.record import carve
from tapml.plan.format import FORMAT
from tapml.suite.index import INDEX_NAME, pack, unpack
from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml.suite.tensors import SuiteTensors
from tapml_targets.errors import InputError
from tests.small_llama import PROMPTS, SmallLlama

TOKENS = 4


@pytest.fixture(scope="module")
def suite(llama: SmallLlama, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    path = tmp_path_factory.mktemp("suites") / "s"
    return carve(llama.model, llama.executor(), PROMPTS, path, max_new_tokens=TOKENS)


def test_a_test_is_found_by_its_id(suite: Suite) -> None:
    tests = list(suite.tests())
    for test in tests[::5]:
        assert suite.test(test.id) == test
    for identifier in ("", "@", "nowhere@p0.s0", tests[0].id.replace("p0", "p9"), tests[0].site):
        with pytest.raises(InputError, match="has no test"):
            suite.test(identifier)


def test_finding_a_test_takes_no_longer_in_a_longer_suite(
    llama: SmallLlama, tmp_path: Path
) -> None:
    def seconds(prompts: int) -> float:
        path = tmp_path / str(prompts)
        filters = Filters(operators=("*softmax*",))
        with carve(
            llama.model, llama.executor(), PROMPTS[:1] * prompts, path, max_new_tokens=2,
            filters=filters,
        ) as carved:  # fmt: skip
            ids = [test.id for test in carved.tests()]
            carved.test(ids[0])
            started = time.perf_counter()
            for identifier in (ids * 400)[-400:]:
                carved.test(identifier)
            return time.perf_counter() - started

    few, many = seconds(2), seconds(60)
    # Looking through all runs took thirty times as long.
    assert many < 8 * few


def test_content_is_known_by_the_index_alone(
    llama: SmallLlama, suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "again"
    carve(llama.model, llama.executor(), PROMPTS, path, max_new_tokens=TOKENS).close()
    other = carve(
        llama.model, llama.executor(), [(9, 8, 7)], tmp_path / "other", max_new_tokens=TOKENS
    )
    content = {test.stored_key: test.key for test in (*suite.tests(), *other.tests())}
    # The same stored key means the same content, over all suites.
    assert all(content[test.stored_key] == test.key for test in (*suite.tests(), *other.tests()))
    assert len(set(content.values())) > 50

    def unread(*_: object, **__: object) -> None:
        raise AssertionError("a tensor was read")

    with Suite.open(path) as again:
        assert again.facts["complete"]
        with monkeypatch.context() as patch:
            patch.setattr(SuiteTensors, "read", unread)
            for first, second in zip(suite.tests(), again.tests(), strict=True):
                assert (first.id, first.stored_key) == (second.id, second.stored_key)


@pytest.mark.parametrize("budget", [150_000, 600_000, 1_000_000])
def test_a_budget_keeps_the_same_tests_and_says_what_it_left_out(
    llama: SmallLlama, suite: Suite, tmp_path: Path, budget: int
) -> None:
    kept = []
    for number in range(2):
        with carve(
            llama.model, llama.executor(), PROMPTS, tmp_path / str(number),
            max_new_tokens=TOKENS, budget_bytes=budget,
        ) as carved:  # fmt: skip
            kept.append([test.id for test in carved.tests()])
            facts = carved.facts
    assert kept[0] == kept[1]
    left_out = {(entry, operator): count for entry, operator, count in facts["tests_left_out"]}
    everything = Counter((test.entry, test.operator) for test in suite.tests())
    with Suite.open(tmp_path / "0") as carved:
        found = Counter((test.entry, test.operator) for test in carved.tests())
    assert left_out
    if not facts["steps_left_out"]:
        assert found + Counter(left_out) == everything
    # What was not even run is counted in steps.
    runs_left_out = (everything - found - Counter(left_out)).total()
    assert (runs_left_out > 0) == (facts["steps_left_out"] > 0)


def test_verifying_notices_a_tensor_that_lies_nowhere(suite: Suite, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(suite.path, tmp_path / "copy"))
    assert suite.verify() > 0
    connection = sqlite3.connect(copy / INDEX_NAME)
    ((identifier, data),) = connection.execute("SELECT id, data FROM run LIMIT 1")
    connection.execute("UPDATE run SET data = ? WHERE id = ?", (damaged(data), identifier))
    connection.commit()
    connection.close()
    with Suite.open(copy) as opened, pytest.raises(InputError, match="damaged"):
        opened.verify()


def test_a_suite_with_an_old_plan_says_carve_again(suite: Suite, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(suite.path, tmp_path / "copy"))
    connection = sqlite3.connect(copy / INDEX_NAME)
    old = msgpack.packb([FORMAT, 1, []])
    connection.execute("UPDATE definition SET data = ? WHERE name = 'operators'", (old,))
    connection.commit()
    connection.close()
    with (
        Suite.open(copy) as opened,
        pytest.raises(InputError, match=r"plan version 1 is not supported.*carve again"),
    ):
        assert opened.operators


def damaged(blob: bytes) -> bytes:
    """A run whose segments lie in chunks that do not exist."""
    segments, before, after = unpack(blob)
    moved = [
        place if isinstance(place, int) else (place[0], [1 << 30 for _ in place[1]])
        for place in segments
    ]
    assert moved != list(segments)
    return pack((moved, before, after))


def test_a_durable_suite_is_on_the_disk_before_it_has_its_name(
    llama: SmallLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synced.append((name, (tmp_path / "s").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    executor = llama.executor()
    carve(
        llama.model, executor, PROMPTS[:1], tmp_path / "s", max_new_tokens=1, durable=True
    ).close()
    files = {path.name for path in (tmp_path / "s").rglob("*") if path.is_file()}
    assert files | {"packs", "s.partial"} == {name for name, named in synced if not named}
    # The folder that holds the name comes last.
    assert synced[-1] == (tmp_path.name, True)
    synced.clear()
    carve(llama.model, executor, PROMPTS[:1], tmp_path / "t", max_new_tokens=1).close()
    assert synced == []
