"""A port as it is lived: two kernels wrong, each found, seen again, mended under watch, shipped."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tapml.plan.graph_plan import GraphPlan
from tapml_targets.target import Target
from tests.base_environment import BaseInstall
from tests.offload.commands import LIMIT_SECONDS, Started, run_process, started
from tests.offload.plants import PLANTS, plant
from tests.offload.sessions import NEW_TOKENS, TOKENS, FinishedSession, read_report, states

# What is wrong in each kernel's source, and what the developer writes instead; they are met in the
# order of the graph.
MENDED: Final = {"reduction start": (" > 0)", " > -1)"), "index": (") ^ 1]", ")]")}
PASSES: Final = "pass"


@pytest.fixture(scope="module")
def broken(
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    tiny_target: Target,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A cache in which two of the compiler's kernels are wrong."""
    cache = finished.copy_cache(tmp_path_factory.mktemp("broken") / "cache")
    for name in MENDED:
        plant(PLANTS[name], tiny_plan.operators[PLANTS[name].operator], tiny_target, cache)
    return cache


def test_from_a_wrong_kernel_to_the_same_tokens_on_a_base_install(
    finished: FinishedSession, broken: Path, base_install: BaseInstall, tmp_path: Path
) -> None:
    session, package = tmp_path / "session", tmp_path / "package"
    ended = run_process(*finished.arguments(session), cache=broken)
    for name in MENDED:
        operator = PLANTS[name].operator
        assert ended.exit_code == 1, ended.errors
        assert failed(session) == [operator]
        assert_repro_says_the_same(session, operator, base_install)
        mend_under_watch(session, name, broken)
        ended = run_process("offload", "--session", session, cache=broken)
        assert_stood_until(session, operator)
    assert ended.exit_code == 0, ended.errors
    assert set(states(session).values()) == {"moved"}
    assert hand_written(session) == {PLANTS[name].operator for name in MENDED}
    made = run_process("package", session, "--out", package, cache=broken)
    assert made.exit_code == 0, made.errors
    assert tokens_of(base_install, package) == final_tokens(finished.folder)


def failed(session: Path) -> list[str]:
    return [name for name, state in states(session).items() if state == "failed"]


def hand_written(session: Path) -> set[str]:
    return {each["name"] for each in read_report(session)["operators"] if each["written"]}


def operator_of(session: Path, name: str) -> dict[str, Any]:
    return next(each for each in read_report(session)["operators"] if each["name"] == name)


def assert_repro_says_the_same(session: Path, operator: str, base: BaseInstall) -> None:
    """One command, no model, no session, no compiler: the verdict that stopped the session."""
    found = operator_of(session, operator)
    again = base.run("python", str(Path(found["repro"]).resolve() / "repro.py"))
    assert again.returncode == 1, again.stderr
    assert found["replay"]["worst"]["reason"] in again.stdout


def assert_stood_until(session: Path, operator: str) -> None:
    """The run after the edit took every verdict before that operator's from the journal."""
    operators = read_report(session)["operators"]
    at = [each["name"] for each in operators].index(operator)
    assert all(each["replay"].get("reused") for each in operators[:at])
    assert not operators[at]["replay"].get("reused")
    assert operators[at]["state"] == "moved"
    assert operators[at]["again"] == ["the kernel"]


def mend_under_watch(session: Path, name: str, cache: Path) -> None:
    """`tapml kernel new`, then an edit while `--watch` looks on: first it fails, then it passes."""
    operator = PLANTS[name].operator
    begun = run_process("kernel", "new", session, operator, cache=cache)
    assert begun.exit_code == 0, begun.errors
    (source,) = (session / "kernels" / operator / "opencl").glob("*.cl")
    with started("kernel", "check", session, operator, "--watch", "--json", cache=cache) as watch:
        assert next(outcomes(watch)) != PASSES
        wrong, right = MENDED[name]
        text = source.read_text(encoding="utf-8")
        assert text.count(wrong) == 1
        source.write_text(text.replace(wrong, right), encoding="utf-8")
        # A look at a few tests comes first, and the edit may come between it and the look at all.
        assert PASSES in outcomes(watch)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(timeout=60) == 130


def outcomes(watch: Started) -> Iterator[str]:
    """What the watch says, until it ends or has said nothing new for too long."""
    limit = threading.Timer(LIMIT_SECONDS, watch.kill)
    limit.start()
    try:
        for line in watch.stdout:
            outcome = json.loads(line).get("outcome")
            if outcome is not None:
                yield str(outcome)
    finally:
        limit.cancel()


def tokens_of(base: BaseInstall, package: Path) -> list[int]:
    ran = base.run(
        "tapml", "run", str(package), "--tokens", TOKENS, "--max-new-tokens", NEW_TOKENS, "--json"
    )
    assert ran.returncode == 0, ran.stderr
    tokens: list[int] = json.loads(ran.stdout)["tokens"]
    return tokens


def final_tokens(session: Path) -> list[int]:
    tokens: list[int] = read_report(session)["final"]["prompts"][0]["tokens"]
    return tokens
