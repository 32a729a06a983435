"""Carving a real model: what is in the suite is what happened, and only what was asked for."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tapml.carving.record import CarveProgress, carve
from tapml.execute.arrays import Array
from tapml.execute.generate import greedy
from tapml.plan.graph_plan import CallStep
from tapml.suite.index import INDEX_NAME, unpack
from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml_targets.errors import InputError, SetupError
from tests.small_llama import PROMPTS, SmallLlama, state_of

TOKENS = 5
# Neither of the three prompts ends early with the small model.
RUNS = len(PROMPTS) * TOKENS


@pytest.fixture(scope="module")
def suite(llama: SmallLlama, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    path = tmp_path_factory.mktemp("carve") / "all.suite"
    return carve(llama.model, llama.executor(), PROMPTS, path, max_new_tokens=TOKENS)


def calls(llama: SmallLlama, entry: str) -> int:
    return len(llama.plan.entries[entry].calls)


def test_every_tensor_of_every_call_site_is_what_an_observer_sees(
    llama: SmallLlama, suite: Suite
) -> None:
    tests = iter(suite.tests())
    executor = llama.executor()

    class Watched:
        def reset(self) -> None:
            executor.reset()

        def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
            return executor.run(entry, inputs, self.compare)

        def compare(self, step: CallStep, read: Sequence[Array], wrote: Sequence[Array]) -> None:
            test = next(tests)
            assert test.site == step.site
            for records, arrays in ((test.inputs, read), (test.outputs, wrote)):
                for record, array in zip(records, arrays, strict=True):
                    found = record.read(verify=True)
                    assert (found.shape, found.dtype) == (array.shape, array.dtype)
                    assert found.tobytes() == array.tobytes(), (test.id, record.parameter)

    for prompt in PROMPTS:
        for _ in greedy(llama.model, Watched(), prompt, TOKENS):
            pass
    assert next(tests, None) is None


def test_the_reference_passes_every_test_bit_by_bit(llama: SmallLlama, suite: Suite) -> None:
    for test in suite.tests():
        written = [np.empty_like(expected) for expected in test.read_outputs()]
        llama.reference[test.operator](*test.read_inputs(), *written, symbols=test.symbols)
        for got, expected in zip(written, test.read_outputs(), strict=True):
            assert got.tobytes() == expected.tobytes(), test.id


def test_large_rearrangements_are_not_stored(suite: Suite) -> None:
    moved = [
        value
        for run in suite.runs(Filters(entries=("decode",)))
        for value in run.layout.values
        if value.source == "moved"
    ]
    assert moved


def test_a_suite_knows_what_it_is(llama: SmallLlama, suite: Suite) -> None:
    assert suite.complete
    assert suite.weights_hash == llama.model.weights_hash
    assert [prompt.token_ids for prompt in suite.prompts] == list(PROMPTS)
    assert set(suite.operators) == set(llama.plan.operators)
    for name, operator in suite.operators.items():
        assert operator == llama.plan.operators[name]
        assert suite.operator_hashes[name] == operator.hash
    summary = suite.summary()
    assert summary.tests == suite.count() == len(list(suite.tests()))
    assert summary.runs == RUNS
    per_operator = Counter((test.operator, test.entry) for test in suite.tests())
    assert summary.tests_per_operator == per_operator
    assert summary.deduplication > 5
    assert suite.verify() > 0


def test_tests_are_found_by_id_and_by_filters(suite: Suite) -> None:
    wanted = next(iter(suite.tests(Filters(entries=("decode",), steps=(3,), layers=(1,)))))
    assert (wanted.entry, wanted.step, wanted.layer) == ("decode", 3, 1)
    assert suite.test(wanted.id) == wanted
    named = list(suite.tests(Filters(operators=(wanted.operator,))))
    assert named
    assert {test.operator for test in named} == {wanted.operator}
    with pytest.raises(InputError, match=r"has no test 'nothing@p0\.s0'"):
        suite.test("nothing@p0.s0")


def test_weights_are_referenced_and_stored_once(llama: SmallLlama, suite: Suite) -> None:
    records = [r for test in suite.tests() for r in test.inputs if r.lifetime == "weight"]
    keys: dict[str, set[str]] = {}
    for record in records:
        keys.setdefault(record.value, set()).add(record.key)
    assert all(len(found) == 1 for found in keys.values())
    for record in records[:50]:
        weights = [w for w in llama.weights.values() if w.tobytes() == record.read().tobytes()]
        assert weights


def test_the_same_prompts_make_the_same_keys_and_nothing_twice(
    llama: SmallLlama, suite: Suite, tmp_path: Path
) -> None:
    again = carve(
        llama.model, llama.executor(), [*PROMPTS, *PROMPTS], tmp_path / "s", max_new_tokens=TOKENS
    )
    keys = [test.key for test in again.tests()]
    half = len(keys) // 2
    assert keys[:half] == [test.key for test in suite.tests()]
    assert keys[half:] == keys[:half]
    stored, twice = suite.summary().stored_bytes, again.summary().stored_bytes
    assert twice < 1.1 * stored


def test_carving_leaves_the_state_of_the_executor(llama: SmallLlama, tmp_path: Path) -> None:
    executor = llama.executor()
    executor.run("prefill", llama.model.prepare_prefill(PROMPTS[0]))
    before = {name: state_of(executor, name) for name in llama.plan.state}
    carve(llama.model, executor, PROMPTS[1:], tmp_path / "s", max_new_tokens=2)
    for name, array in before.items():
        np.testing.assert_array_equal(state_of(executor, name), array)


def test_filters_keep_what_they_name_and_its_tensors_alone(
    llama: SmallLlama, suite: Suite, tmp_path: Path
) -> None:
    everything = {test.id: test for test in suite.tests()}
    operator = next(t.operator for t in everything.values() if t.layer == 1)
    filters = Filters(operators=(operator,), layers=(1,), steps=(0, 2))
    carved = carve(
        llama.model,
        llama.executor(),
        PROMPTS,
        tmp_path / "s",
        filters=filters,
        max_new_tokens=TOKENS,
    )
    tests = list(carved.tests())
    assert [test.id for test in tests] == [test.id for test in suite.tests(filters)]
    for test in tests:
        other = everything[test.id]
        for mine, theirs in zip(
            test.inputs + test.outputs, other.inputs + other.outputs, strict=True
        ):
            assert mine.read().tobytes() == theirs.read().tobytes()
    assert carved.summary().stored_bytes < suite.summary().stored_bytes / 5


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (Filters(operators=("nothing*",)), r"no operator matches 'nothing\*'"),
        (Filters(layers=(7,)), "no layer 7; layers: 0 to 1"),
        (Filters(entries=("encode",)), "no entry 'encode'"),
        (Filters(steps=(-1,)), "step -1"),
    ],
)
def test_a_filter_that_matches_nothing_is_an_input_error(
    llama: SmallLlama, tmp_path: Path, filters: Filters, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        carve(llama.model, llama.executor(), PROMPTS, tmp_path / "s", filters=filters)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("budget", [0, 60_000, 400_000, 3_000_000])
def test_a_budget_is_kept_and_first_call_sites_come_first(
    llama: SmallLlama, suite: Suite, tmp_path: Path, budget: int
) -> None:
    prompts = PROMPTS[:2]
    carved = carve(
        llama.model,
        llama.executor(),
        prompts,
        tmp_path / "s",
        max_new_tokens=3,
        budget_bytes=budget,
    )
    connection = sqlite3.connect(carved.path / INDEX_NAME)
    shared = [
        identifier
        for table in ("weight", "ordering")
        for (blob,) in connection.execute(f"SELECT chunks FROM {table}")
        for identifier in unpack(blob)
    ]
    sizes = dict(connection.execute("SELECT id, length FROM chunk"))
    connection.close()
    assert sum(sizes.values()) - sum(sizes[i] for i in set(shared)) <= budget
    expected = {test.id: test for test in suite.tests()}
    covered = set()
    for test in carved.tests():
        covered.add((test.operator, test.entry))
        assert test.read_outputs()[0].tobytes() == expected[test.id].read_outputs()[0].tobytes()
    wanted = {(c.operator, e.name) for e in llama.plan.entries.values() for c in e.calls}
    if budget == 3_000_000:
        assert covered == wanted
        assert carved.facts["operators_left_out"] == []
    left_out = {operator for operator, _ in wanted} - {operator for operator, _ in covered}
    assert set(carved.facts["operators_left_out"]) == left_out
    assert (budget == 0) == (not covered)


def test_progress_is_told_after_every_run(llama: SmallLlama, tmp_path: Path) -> None:
    told: list[CarveProgress] = []
    carve(
        llama.model,
        llama.executor(),
        PROMPTS[:2],
        tmp_path / "s",
        max_new_tokens=2,
        progress=told.append,
    )
    assert [(each.prompt, each.step) for each in told] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    prefill, decode = calls(llama, "prefill"), calls(llama, "decode")
    assert [each.tests for each in told] == [
        prefill,
        prefill + decode,
        2 * prefill + decode,
        2 * (prefill + decode),
    ]


def test_a_suite_is_replaced_only_where_asked(llama: SmallLlama, tmp_path: Path) -> None:
    path = tmp_path / "s"
    carve(llama.model, llama.executor(), PROMPTS[:1], path, max_new_tokens=1).close()
    with pytest.raises(InputError, match="exists"):
        carve(llama.model, llama.executor(), PROMPTS[1:2], path, max_new_tokens=1)
    with carve(
        llama.model, llama.executor(), PROMPTS[1:2], path, max_new_tokens=1, overwrite=True
    ) as replaced:
        assert replaced.prompts[0].token_ids == PROMPTS[1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_folder_that_is_no_suite_is_never_replaced(llama: SmallLlama, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not a suite"):
        carve(llama.model, llama.executor(), PROMPTS[:1], tmp_path / "s", overwrite=True)
    assert (tmp_path / "s" / "thesis.txt").read_text() == "years of work"


def test_prompts_are_checked_before_anything_is_written(llama: SmallLlama, tmp_path: Path) -> None:
    executor = llama.executor()
    with pytest.raises(InputError, match="need a context of"):
        carve(llama.model, executor, [PROMPTS[0], (1,) * 510], tmp_path / "s", max_new_tokens=9)
    with pytest.raises(InputError, match="at least one case"):
        carve(llama.model, executor, [], tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_two_carves_cannot_write_one_suite(llama: SmallLlama, tmp_path: Path) -> None:
    def carve_again(progress: CarveProgress) -> None:
        if progress.prompt == 0:
            with pytest.raises(SetupError, match=r"s\.partial is held by process"):
                carve(llama.model, llama.executor(), PROMPTS[:1], tmp_path / "s")

    carve(
        llama.model,
        llama.executor(),
        PROMPTS[:2],
        tmp_path / "s",
        max_new_tokens=1,
        progress=carve_again,
    )


def test_what_is_no_suite_does_not_open(suite: Suite, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no suite at"):
        Suite.open(tmp_path / "nowhere")
    with pytest.raises(InputError, match=f"has no {INDEX_NAME}"):
        Suite.open(tmp_path)
    (tmp_path / INDEX_NAME).write_bytes(b"not a database at all" * 100)
    with pytest.raises(InputError, match="not a suite index"):
        Suite.open(tmp_path)
    (tmp_path / INDEX_NAME).unlink()
    other = sqlite3.connect(tmp_path / INDEX_NAME)
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()
    with pytest.raises(InputError, match="written by another program"):
        Suite.open(tmp_path)


def test_another_schema_version_is_named(suite: Suite, tmp_path: Path) -> None:
    copy = shutil.copytree(suite.path, tmp_path / "copy")
    connection = sqlite3.connect(copy / INDEX_NAME)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(InputError, match="schema 99, this tapml reads schema 1"):
        Suite.open(copy)


def test_a_damaged_suite_is_noticed(suite: Suite, tmp_path: Path) -> None:
    copy = shutil.copytree(suite.path, tmp_path / "copy")
    pack = next((copy / "packs").iterdir())
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 255
    pack.write_bytes(content)
    with Suite.open(copy) as damaged, pytest.raises(InputError, match="damaged"):
        damaged.verify()
    pack.write_bytes(content[:-4096])
    with pytest.raises(InputError, match="damaged"):
        Suite.open(copy)
