"""A model goes in; every operator is on the target, and the plan runs there alone."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from tests.offload.commands import run_here, run_process
from tests.offload.sessions import NEW_TOKENS, TOKENS, FinishedSession, read_report, states


def greedy_by_transformers(folder: Path, tokens: str, count: int) -> list[int]:
    """What transformers generates, greedily."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = [int(token) for token in tokens.split()]
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([ids])).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids


def test_every_operator_is_on_the_target(finished: FinishedSession) -> None:
    assert finished.ended.exit_code == 0
    assert set(states(finished.folder).values()) == {"moved"}
    outcome = finished.report["outcome"]
    assert outcome["status"] == "pass"
    assert finished.ended.output.startswith(f"pass: {outcome['text']}\n")


def test_each_operator_passed_its_tests_and_the_model_stayed_right(
    finished: FinishedSession,
) -> None:
    for operator in finished.report["operators"]:
        assert operator["tests"]["total"] == operator["tests"]["passed"] > 0
        assert operator["replay"]["status"] == "pass"
        assert operator["model_check"]["status"] == "pass"
        assert operator["worst_ratio"] is not None
        assert operator["source"].count("__kernel") > 0
        assert operator["origins"], operator["name"]


def test_every_line_says_how_much_is_done(finished: FinishedSession) -> None:
    names = list(states(finished.folder))
    lines = finished.ended.errors.splitlines()
    for number, name in enumerate(names, 1):
        start = f"[{number}/{len(names)}] {name}: moved, "
        assert any(line.startswith(start) for line in lines), start


def test_the_report_says_what_ran_where(finished: FinishedSession) -> None:
    report = finished.report
    assert report["format"] == "tapml-report/3"
    assert report["model"]["name"] == "tiny-llama"
    assert report["model"]["dtype"] == "float32"
    assert report["target"]["platform"] == "opencl"
    assert report["target"]["fingerprint"]
    assert report["loosened"] == []
    assert report["summary"]["moved"] == report["summary"]["operators"] == len(report["operators"])
    assert report["summary"]["failed"] == report["summary"]["waiting"] == 0


def test_the_time_is_broken_down_as_in_table_three(finished: FinishedSession) -> None:
    rows = finished.report["phases"]
    assert {row["group"] for row in rows} == {"rooting", "overhead"}
    assert {row["once"] for row in rows} == {True, False}
    assert all(row["seconds"] >= 0 and row["name"] and row["platform"] for row in rows)
    names = {row["name"] for row in rows}
    assert {"carve tests", "operator validation", "model validation"} <= names


def test_the_finished_plan_writes_the_tokens_transformers_writes(
    finished: FinishedSession,
) -> None:
    expected = greedy_by_transformers(finished.model, TOKENS, int(NEW_TOKENS))
    final = finished.report["final"]
    assert final["prompts"][0]["tokens"] == expected[-int(NEW_TOKENS) :]
    assert final["prompts"][0]["equal"] is True


def test_tapml_run_streams_the_tokens_transformers_writes(finished: FinishedSession) -> None:
    prompt = "5 6 7"
    expected = greedy_by_transformers(finished.model, prompt, 6)
    ended = run_process(
        "run", finished.folder, "--tokens", prompt, "--max-new-tokens", "6", cache=finished.cache
    )
    assert ended.exit_code == 0, ended.errors
    assert ended.output.split() == [str(token) for token in expected]
    assert "6 tokens in" in ended.errors


def test_tapml_run_stops_at_the_end_of_the_context(finished: FinishedSession) -> None:
    prompt = " ".join(str(2 + index % 7) for index in range(62))
    ended = run_here(
        "run", finished.folder, "--tokens", prompt, "--max-new-tokens", "50", cache=finished.cache
    )
    assert ended.exit_code == 0
    assert len(ended.output.split()) <= 65
    assert "stopped at the context of 64 tokens" in ended.errors


def test_a_finished_session_resumes_without_replaying_anything(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    suite = (session / "suite" / "index.sqlite").stat().st_mtime_ns
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0
    again, first = read_report(session), finished.report
    for operator, before in zip(again["operators"], first["operators"], strict=True):
        assert operator["replay"]["reused"] is True
        assert operator["model_check"]["reused"] is True
        assert operator["worst_ratio"] == before["worst_ratio"]
    assert again["outcome"] == first["outcome"]
    assert f"resumed: {len(again['operators'])} verdicts reused\n" in ended.errors
    assert "[1/" not in ended.errors, "what stands gets no line of its own"
    assert "carve tests" not in ended.errors
    assert (session / "suite" / "index.sqlite").stat().st_mtime_ns == suite


def test_the_reports_page_and_data_are_found_by_tapml_report(finished: FinishedSession) -> None:
    ended = run_here("report", finished.folder, cache=finished.cache)
    page = (finished.folder / "report.html").resolve()
    assert ended.output.splitlines()[-1] == f"report: {page}"
    assert f"report: {finished.folder / 'report.html'}" in finished.ended.output


def test_the_report_goes_to_standard_output_as_json_where_asked(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here("offload", "--session", session, "--json", cache=finished.cache)
    assert ended.exit_code == 0
    assert json.loads(ended.output) == read_report(session)
    ended = run_here("report", session, "--json", cache=finished.cache)
    assert json.loads(ended.output) == read_report(session)


def test_operators_kept_on_the_source_by_name_are_a_legitimate_end(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here(
        "offload", "--session", session, "--keep-on-source", "*softmax*", cache=finished.cache
    )
    kept = {name for name, state in states(session).items() if state == "kept"}
    assert kept == {name for name in states(session) if "softmax" in name}
    assert kept
    assert ended.exit_code == 0, ended.output
    ended = run_here("run", session, "--tokens", TOKENS, cache=finished.cache)
    assert ended.exit_code == 2
    assert "not every operator is on the target" in ended.errors
