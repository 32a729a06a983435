"""What changed since a verdict is made again, and only that; the session says which and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tapml.plan.graph_plan import GraphPlan
from tapml.runs.journal import Result
from tapml.runs.result_key import ResultKey
from tapml.session.changes import what_changed
from tapml.session.journal import open_journal
from tapml.verdicts.operator_class import traits_of
from tapml.verdicts.policy import POLICY_VERSION, Policy
from tapml_rpc.supervisor import worker_process
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import CodeModule, Library
from tapml_targets.target import Target
from tests.offload.commands import Ended, run_here
from tests.offload.plants import Plant, plant
from tests.offload.sessions import FinishedSession, assert_same_verdicts, read_report

KEY = ResultKey("", {"kernel": "a1", "driver": "3.1", "compiler": "x 1.0, y 2", "policy": "b2"})


def told(**before: str) -> tuple[str, ...]:
    return what_changed({**KEY.parts, **before}, KEY)


def test_lines_name_old_and_new_where_they_are_short() -> None:
    assert told() == ()
    assert told(driver="3.0") == ("the driver: 3.0 -> 3.1",)
    assert told(kernel="c3") == ("the kernel",)
    assert told(compiler="x 0.9, y 2") == ("the compiler: x 0.9 -> 1.0",)
    assert told(compiler="x 0.9, y 1") == ("the compiler: x 0.9, y 1 -> 1.0, 2",)
    assert told(compiler="z") == ("the compiler: z -> x 1.0, y 2",)
    assert told(driver="d" * 61) == (f"the driver: {'d' * 60}... -> 3.1",)
    long = what_changed({"driver": "d" * 61}, ResultKey("", {"driver": "d" * 62}))
    assert long == ("the driver",)
    both = what_changed({"driver": "3.0; CL 3"}, ResultKey("", {"driver": "3.0; CL 4"}))
    assert both == ("the driver: CL 3 -> CL 4",)
    assert told(driver="3.0\x1b[31m") == ("the driver: 3.0?[31m -> 3.1",)


def test_the_most_telling_comes_first_and_what_nobody_named_last() -> None:
    lines = what_changed({"driver": "3.0", "a new part": "x"}, KEY)
    assert lines == (
        "the kernel", "the policy", "the driver: 3.0 -> 3.1", "the compiler", "a new part"
    )  # fmt: skip


def verdicts(session: Path) -> list[Result]:
    with open_journal(session / "journal.sqlite") as journal:
        return journal.results()


def made_again(session: Path, finished: FinishedSession) -> Counter[tuple[str, str]]:
    """(stage, subject) of verdicts that a copy of the finished session has made since."""
    new = verdicts(session)[len(verdicts(finished.folder)) :]
    return Counter((each.stage, each.subject) for each in new)


def first_made(finished: FinishedSession) -> Counter[tuple[str, str]]:
    return Counter((each.stage, each.subject) for each in verdicts(finished.folder))


def reasons(session: Path) -> dict[str, list[str]]:
    """What the report says of each operator whose verdict was made again."""
    return {each["name"]: each["again"] for each in read_report(session)["operators"]}


def resume(
    session: Path, finished: FinishedSession, *more: str | Path, cache: Path | None = None
) -> Ended:
    ended = run_here("offload", "--session", session, *more, cache=cache or finished.cache)
    assert ended.exit_code == 0, ended.errors
    return ended


def test_nothing_changed_and_nothing_is_made_again(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    ended = resume(session, finished)
    assert made_again(session, finished) == {}
    assert not any(reasons(session).values())
    assert f"resumed: {len(reasons(session))} verdicts reused\n" in ended.errors
    assert_same_verdicts(session, finished)


def test_another_driver_makes_every_verdict_again(
    finished: FinishedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real device, whose worker reports another version of its driver."""
    session = finished.copy(tmp_path / "session")
    seen: list[str] = []

    def renamed(data: object) -> DeviceDescription:
        device = reported(data)
        seen.append(device.driver_version)
        return replace(device, driver_version="99.1")

    reported = worker_process.from_plain  # type: ignore[attr-defined]
    monkeypatch.setattr(worker_process, "from_plain", renamed)
    ended = resume(session, finished)
    assert made_again(session, finished) == first_made(finished)
    line = f"the driver: {seen[0].partition('; ')[0]} -> 99.1"
    assert set(map(tuple, reasons(session).values())) == {(line,)}
    assert f"made again ({line})" in ended.errors
    # Its own verdicts were not replaced: the first driver is still known.
    monkeypatch.undo()
    resume(session, finished)
    assert made_again(session, finished) == first_made(finished)


def test_one_kernel_is_validated_again_and_the_models_it_runs_in(
    finished: FinishedSession, tiny_plan: GraphPlan, tiny_target: Target, tmp_path: Path
) -> None:
    session, cache = finished.copy(tmp_path / "session"), finished.copy_cache(tmp_path / "cache")
    names = [each["name"] for each in finished.report["operators"]]
    at = len(names) // 2
    plant(Plant(names[at], "", _annotated, ""), tiny_plan.operators[names[at]], tiny_target, cache)
    ended = resume(session, finished, cache=cache)
    again = made_again(session, finished)
    assert {subject for stage, subject in again if stage == "operator"} == {names[at]}
    assert {subject for stage, subject in again if stage == "model"} == set(names[at:])
    assert set(again.values()) == {1}
    assert {name: lines for name, lines in reasons(session).items() if lines} == {
        names[at]: ["the kernel"]
    }
    assert f"resumed: {len(names) - 1} verdicts reused, 1 made again (the kernel)" in (ended.errors)


def _annotated(library: Library) -> Library:
    """The same kernel with a comment more."""
    (module,) = library.modules
    code = module.code + b"\n// looked at by hand\n"
    return replace(library, modules=(CodeModule(module.dialect, code),))


def test_another_way_to_judge_makes_every_operators_verdict_again(
    finished: FinishedSession, tmp_path: Path
) -> None:
    """The model's logits are not judged by a policy."""
    session, policy = finished.copy(tmp_path / "session"), tmp_path / "policy.toml"
    policy.write_text(f"version = {POLICY_VERSION}\nseed = {Policy().seed + 1}\n")
    ended = resume(session, finished, "--policy", policy)
    assert made_again(session, finished) == of_operators(first_made(finished))
    assert set(map(tuple, reasons(session).values())) == {("the policy",)}
    assert "made again (the policy)" in ended.errors


def test_another_limit_of_one_class_makes_the_verdicts_of_that_class_again(
    finished: FinishedSession, tiny_plan: GraphPlan, tmp_path: Path
) -> None:
    session, policy = finished.copy(tmp_path / "session"), tmp_path / "policy.toml"
    policy.write_text(
        f"version = {POLICY_VERSION}\n[limits.float32.product]\npassing = 30\ndegraded = 60\n"
    )
    resume(session, finished, "--policy", policy)
    products = {
        name
        for name, operator in tiny_plan.operators.items()
        if "product" in {each.operator_class for each in traits_of(operator)}
    }
    assert 0 < len(products) < len(tiny_plan.operators)
    assert {subject for _, subject in made_again(session, finished)} == products
    assert {name for name, lines in reasons(session).items() if lines} == products


def of_operators(made: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    return Counter({each: count for each, count in made.items() if each[0] == "operator"})


def test_a_changed_model_is_named_carved_again_and_its_verdicts_are_made_again(
    finished: FinishedSession, tmp_path: Path
) -> None:
    own = finished.with_own_model(tmp_path)
    session, path = own.folder, own.model / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("up_proj.weight"))
    tensors[name] = tensors[name] * np.float32(0.5)
    save_file(tensors, path, metadata={"format": "pt"})
    ended = resume(session, finished)
    assert "model.safetensors" in ended.errors
    assert "carve tests: " in ended.errors
    assert set(map(tuple, reasons(session).values())) == {("the carved tests",)}
    assert made_again(session, finished) == first_made(finished)
