"""Llama folders nobody has seen before move as completely as the one that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.conftest import RequireDevice
from tests.models.folders import make_folder
from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, offload_arguments, read_report, states

pytestmark = pytest.mark.slow

TOKENS = [1, 2, 3, 4]


def tokens_by_transformers(folder: Path, count: int) -> list[int]:
    """What transformers generates after `TOKENS`, greedily, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = list(TOKENS)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(TOKENS) :]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (
            "tied",
            {
                "num_key_value_heads": 6,
                "hidden_size": 48,
                "intermediate_size": 130,
                "vocab_size": 97,
                "_shard": "60KB",
            },
        ),
        ("bfloat16", {}),
        ("rope_llama3", {}),
    ],
    ids=["tied, no grouped queries, other sizes, in shards", "bfloat16", "RoPE scaling"],
)
def test_every_operator_of_an_unseen_folder_moves(
    finished: FinishedSession, tmp_path: Path, kind: str, sizes: dict[str, Any]
) -> None:
    folder = make_folder(tmp_path / "model", kind, num_hidden_layers=1, seed=4, **sizes)
    session = tmp_path / "session"
    ended = run_here(*finished.arguments(session, folder), cache=finished.cache)
    assert ended.exit_code == 0, ended.output + ended.errors
    assert set(states(session).values()) == {"moved"}
    final = read_report(session)["final"]
    assert final["status"] == "pass"
    assert final["prompts"][0]["tokens"] == tokens_by_transformers(folder, 2)


def test_a_float16_folder_runs_as_float32_where_the_device_has_no_float16(
    finished: FinishedSession, tmp_path: Path, require_device: RequireDevice
) -> None:
    without = [each for each in require_device("opencl") if "float16" not in each.limits.features]
    if not without:
        pytest.skip("every OpenCL device here has float16")
    folder = make_folder(tmp_path / "model", "float16", num_hidden_layers=1)
    session, device = tmp_path / "session", f"opencl:{without[0].index}"
    arguments = offload_arguments(folder, session, device)
    ended = run_here(*arguments, cache=finished.cache)
    assert ended.exit_code == 0, ended.output + ended.errors
    assert "note: the device has no float16: the model runs as float32" in ended.errors
    assert read_report(session)["model"]["dtype"] == "float32"
    refused = run_here(
        *offload_arguments(folder, tmp_path / "other", device), "--dtype", "float16",
        cache=finished.cache,
    )  # fmt: skip
    assert refused.exit_code == 2
    assert "has no float16; choose another device" in refused.error_lines[0]


def test_a_float16_folder_runs_as_float16_where_the_device_has_it(
    finished: FinishedSession, tmp_path: Path, require_device: RequireDevice
) -> None:
    device = require_device("opencl", dtype="float16")[0]
    folder = make_folder(tmp_path / "model", "float16", num_hidden_layers=1)
    session = tmp_path / "session"
    arguments = offload_arguments(folder, session, f"opencl:{device.index}")
    ended = run_here(*arguments, cache=finished.cache)
    assert ended.exit_code == 0, ended.output + ended.errors
    report = read_report(session)
    assert report["model"]["dtype"] == "float16"
    assert report["final"]["status"] == "pass"
    assert any("half" in operator["source"] for operator in report["operators"])


def test_a_folder_with_a_tokenizer_takes_text(finished: FinishedSession, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "one_layer", tokenizer=True)
    session = tmp_path / "session"
    ended = run_here(
        "offload", "--model", folder, "--device", finished.device, "--session", session,
        "--prompt", "The value of", "--new-tokens", "2", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output + ended.errors
    ended = run_here(
        "run", session, "--prompt", "The value of", "--max-new-tokens", "3", cache=finished.cache
    )
    assert ended.exit_code == 0, ended.errors
    assert ended.output.startswith("The value of")
    assert len(ended.output) > len("The value of\n")
