"""A model moves to Metal where there is no Mac: its kernels are executed from their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.offload.commands import run_here
from tests.offload.sessions import NEW_TOKENS, TOKENS, offload_arguments, read_report, states
from tests.offload.warm_cache import warm_cache

pytest.importorskip("ziglang", reason="ziglang is not installed: no simulated Metal")

DEVICE = "metal"


def test_every_operator_moves_and_is_reported_with_its_source(
    tiny_model: Path, tmp_path: Path
) -> None:
    session, cache = tmp_path / "session", warm_cache(tmp_path / "cache")
    ended = run_here(*offload_arguments(tiny_model, session, DEVICE), cache=cache)
    assert ended.exit_code == 0, ended.errors
    report = read_report(session)
    assert set(states(session).values()) == {"moved"}
    assert report["outcome"]["status"] == "pass"
    assert "source-simulated" in report["outcome"]["text"]
    assert "tokens equal the reference's" in report["outcome"]["text"]
    assert len(report["final"]["prompts"][0]["tokens"]) == int(NEW_TOKENS)
    for operator in report["operators"]:
        assert operator["tests"]["total"] == operator["tests"]["passed"] > 0
        assert operator["model_check"]["status"] == "pass"
        assert "#include <metal_stdlib>" in operator["source"]
    ran = run_here("run", session, "--tokens", TOKENS, "--max-new-tokens", "1", cache=cache)
    assert "note: Apple7 GPU, source-simulated, executes the text of kernels" in ran.errors
