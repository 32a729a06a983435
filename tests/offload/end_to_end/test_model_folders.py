"""Llama folders nobody has seen before move as completely as the one that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models.folders import make_folder
from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, read_report, states
from tests.offload.warm_cache import warm_cache

PROMPT = "The value of"
SIZES: dict[str, Any] = {
    "num_hidden_layers": 1,
    "num_key_value_heads": 6,
    "hidden_size": 48,
    "intermediate_size": 130,
    "_shard": "200KB",
}


def tokens_by_transformers(folder: Path, count: int) -> list[int]:
    """What transformers generates after `PROMPT`, greedily, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids: list[int] = list(AutoTokenizer.from_pretrained(folder)(PROMPT)["input_ids"])
    start = len(ids)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[start:]


def test_every_operator_of_an_unseen_folder_moves_and_takes_text(
    finished: FinishedSession, tmp_path: Path
) -> None:
    """Tied weights, no grouped queries, other sizes, in several files, with a tokenizer."""
    check_that_a_folder_moves(finished, tmp_path, "tied")


def check_that_a_folder_moves(finished: FinishedSession, tmp_path: Path, kind: str) -> None:
    """Every operator moves, and text comes out as transformers writes it."""
    folder = make_folder(tmp_path / "model", kind, seed=4, tokenizer=True, **SIZES)
    session, cache = tmp_path / "session", warm_cache(tmp_path / "cache")
    ended = run_here(
        "offload", "--model", folder, "--device", finished.device, "--session", session,
        "--prompt", PROMPT, "--new-tokens", "2", cache=cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output + ended.errors
    assert set(states(session).values()) == {"moved"}
    final = read_report(session)["final"]
    assert final["status"] == "pass"
    assert final["prompts"][0]["tokens"] == tokens_by_transformers(folder, 2)
    ended = run_here("run", session, "--prompt", PROMPT, "--max-new-tokens", "3", cache=cache)
    assert ended.exit_code == 0, ended.errors
    assert ended.output.startswith(PROMPT)
    assert len(ended.output) > len(f"{PROMPT}\n")
