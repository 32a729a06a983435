"""From traces to invariants to violations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from tapml.cli.main import main
from tapml.invariants.checking import check_trace
from tapml.invariants.inference import infer, run_of
from tapml.invariants.invariant import Invariant, InvariantSet, merged, read_set, write_set
from tapml.invariants.page import render
from tapml.invariants.relation import relations
from tapml.invariants.trace import Trace
from tapml_targets.errors import InputError


def test_a_clean_run_gives_invariants_of_each_kind(learned: InvariantSet) -> None:
    kinds = {each.relation for each in learned.invariants}
    assert kinds >= {"APISequence", "EventContain", "APIArg", "APIOutput", "VarPeriodicChange"}
    assert kinds >= {"OptimizerParameters", "DistinctBatches"}


def test_no_invariant_fails_on_the_run_it_was_learned_from(
    clean: Trace, learned: InvariantSet
) -> None:
    report = check_trace(clean, learned)
    assert report.violated == 0
    assert report.idle == ()
    assert report.held == len(learned.invariants)


def test_a_run_with_another_seed_violates_nothing(other_seed: Trace, learned: InvariantSet) -> None:
    assert check_trace(other_seed, learned).violated == 0


def test_an_optimizer_made_before_its_model_is_one_cause_from_the_first_step(
    replaced: Trace, learned: InvariantSet
) -> None:
    report = check_trace(replaced, learned)
    (cause,) = report.causes
    assert cause.head.invariant.relation == "OptimizerParameters"
    assert cause.first_step == 0
    assert cause.source.endswith("train.py:46")
    texts = {each.invariant.text for each in cause.findings}
    assert "Inside Optimizer.step, the data of at least one Parameter changes." in texts
    assert "The data of each Parameter changes with every step." in texts


def test_invariants_hold_no_addresses_steps_or_shapes(learned: InvariantSet) -> None:
    for each in learned.invariants:
        text = json.dumps([each.params, msgspec.to_builtins(each.precondition)])
        assert not re.search(r"0x[0-9a-f]{6}", text)
        for clause in each.precondition:
            for condition in clause:
                assert not re.search(r"step|epoch|shape|digest", condition.field)


def test_every_invariant_is_a_sentence(learned: InvariantSet) -> None:
    for each in learned.invariants:
        assert re.fullmatch(r"[A-Za-z_].*\.", each.text), each
        assert each.text.count(".") >= 1


def test_two_runs_together_drop_what_only_one_shows(clean: Trace, other_seed: Trace) -> None:
    both = infer([run_of(clean), run_of(other_seed)])
    assert all(each.runs == 2 for each in both.invariants)
    assert check_trace(other_seed, both).violated == 0


def test_a_set_survives_its_file(learned: InvariantSet, tmp_path: Path) -> None:
    write_set(learned, tmp_path / "set")
    assert read_set(tmp_path / "set") == learned


def test_sets_merge_select_and_suppress(learned: InvariantSet) -> None:
    twice = merged([learned, learned])
    assert len(twice.invariants) == len(learned.invariants)
    assert twice.invariants[0].examples == 2 * learned.invariants[0].examples
    relations = {each.relation for each in learned.invariants}
    few = learned.selected(len(relations))
    assert len(few.invariants) == len(relations) < len(learned.invariants)
    assert {each.relation for each in few.invariants} == relations
    first = learned.invariants[0]
    assert first not in learned.without([first.id[:8]]).invariants


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "tapml-invariants/0"}, "tapml-invariants/0"),
        ({"invariants": 3}, "no set of invariants"),
        ({"invariants": [{"relation": "Daikon", "params": {}, "precondition": []}]}, "no relation"),
        (
            {"invariants": [{"relation": "EventContain", "params": {}, "precondition": []}]},
            "lacks the parameter",
        ),
    ],
)
def test_a_bad_set_is_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "set"
    good = {"format": "tapml-invariants/1", "runs": [], "invariants": []}
    path.write_text(json.dumps(good | change))
    with pytest.raises(InputError, match=said):
        read_set(path)


def test_the_commands_learn_check_and_draw(
    clean: Trace, replaced: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learned, page = str(tmp_path / "set"), tmp_path / "page.html"
    assert main(["invariants", "infer", str(clean.folder), "-o", learned]) == 0
    assert main(["invariants", "check", learned, str(clean.folder)]) == 0
    assert "none is violated" in capsys.readouterr().out
    code = main(
        ["invariants", "check", learned, str(replaced.folder), "--json", "--report", str(page)]
    )
    assert code == 1
    told = json.loads(capsys.readouterr().out)
    assert told["format"] == "tapml-invariants-check/1"
    (cause,) = told["causes"]
    assert cause["findings"][0]["first"]["values"]["in_model"] is False
    assert "in no model that ran" in page.read_text()
    # The group can be suppressed rule by rule.
    ids = [each["id"] for each in cause["findings"]]
    options = [word for each in ids for word in ("--suppress", each)]
    assert main(["invariants", "check", learned, str(replaced.folder), *options]) == 0
    assert main(["invariants", "show", learned, "--select", "5"]) == 0
    assert capsys.readouterr().out.count("\n") == 1 + 1 + 5
    assert main(["invariants", "check", learned, str(tmp_path / "nothing")]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["invariants", "show", learned, "--suppress", "abc"])
    assert main(["invariants", "show", learned, "--suppress", "no-such-id"]) == 2


def test_sets_become_one_file(
    learned: InvariantSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, both = tmp_path / "one", tmp_path / "both"
    write_set(learned, one)
    first = learned.invariants[0]
    options = ["--suppress", first.id, "--select", "100", "-o", str(both)]
    assert main(["invariants", "merge", str(one), "pytorch", *options]) == 0
    assert "100 invariants of 2 sets" in capsys.readouterr().out
    merged_set = read_set(both)
    assert len(merged_set.invariants) == 100
    assert first.id not in {each.id for each in merged_set.invariants}
    assert main(["invariants", "merge", str(one), str(tmp_path), "-o", str(both)]) == 2


def test_a_page_shows_the_script_around_its_line(
    replaced: Trace, learned: InvariantSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    report = check_trace(replaced, learned)
    assert "optimizer.step()" in render(report)


def test_the_curated_set_finds_the_error_and_leaves_the_clean_run_alone(
    clean: Trace, replaced: Trace
) -> None:
    curated = read_set(Path("pytorch"))
    report = check_trace(clean, curated)
    assert report.violated == 0
    assert report.held >= 20
    (cause,) = check_trace(replaced, curated).causes
    assert cause.head.invariant.relation == "OptimizerParameters"


def test_an_api_that_is_not_called_here_does_not_apply(clean: Trace) -> None:
    other = Invariant("EventContain", {"parent": "torch.gone.f", "child": "torch.g"}, ((),))
    report = check_trace(clean, InvariantSet("tapml-invariants/1", [], [other]))
    assert report.idle == (other,)
    assert report.violated == report.held == 0


def test_every_relation_has_a_file_of_its_own() -> None:
    assert len(relations()) >= 10
    assert len({type(each).__module__ for each in relations().values()}) == len(relations())
