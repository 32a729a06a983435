"""Llama folders nobody has seen before move as completely as the one that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.models.folders import make_folder
from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, read_report, states
from tests.offload.warm_cache import warm_cache

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
    ],
    ids=["tied, no grouped queries, other sizes, in shards"],
)
def test_every_operator_of_an_unseen_folder_moves(
    finished: FinishedSession, tmp_path: Path, kind: str, sizes: dict[str, Any]
) -> None:
    folder = make_folder(tmp_path / "model", kind, num_hidden_layers=1, seed=4, **sizes)
    session = tmp_path / "session"
    cache = warm_cache(tmp_path / "cache")
    ended = run_here(*finished.arguments(session, folder), cache=cache)
    assert ended.exit_code == 0, ended.output + ended.errors
    assert set(states(session).values()) == {"moved"}
    final = read_report(session)["final"]
    assert final["status"] == "pass"
    assert final["prompts"][0]["tokens"] == tokens_by_transformers(folder, 2)


def test_a_folder_with_a_tokenizer_takes_text(finished: FinishedSession, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "one_layer", tokenizer=True)
    session, cache = tmp_path / "session", finished.copy_cache(tmp_path / "cache")
    ended = run_here(
        "offload", "--model", folder, "--device", finished.device, "--session", session,
        "--prompt", "The value of", "--new-tokens", "2", cache=cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output + ended.errors
    ended = run_here(
        "run", session, "--prompt", "The value of", "--max-new-tokens", "3", cache=cache
    )
    assert ended.exit_code == 0, ended.errors
    assert ended.output.startswith("The value of")
    assert len(ended.output) > len("The value of\n")
