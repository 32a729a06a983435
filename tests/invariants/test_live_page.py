"""The page of a run that is being watched, asked for over HTTP while it trains."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
import torch
from torch import nn

from tapml.invariants import watch
from tapml.invariants.inference import infer
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.recording import recorded
from tapml_targets.errors import InputError


class Training:
    """A small training that goes on step by step."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def step(self, *, forgetful: bool = False) -> None:
        """One step; a forgetful one leaves old gradients."""
        if not forgetful:
            self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()


@pytest.fixture(scope="module")
def learned() -> InvariantSet:
    with recorded() as recording:
        training = Training(1)
        for _ in range(5):
            training.step()
    return infer([recording.run()])


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: str = answer.read().decode()
    return found


def test_the_page_shows_a_violation_in_the_step_after_it(learned: InvariantSet) -> None:
    with watch(invariants=learned, on_violation="report", port=0) as watched:
        training = Training(2)
        training.step()
        training.step()
        before: Any = json.loads(get(watched.url + "live.json"))
        assert before["version"] == 0
        assert "none is violated" in before["text"]
        assert "Cause 1" not in get(watched.url)
        training.step(forgetful=True)
        after: Any = json.loads(get(watched.url + "live.json"))
        assert after["version"] > 0
        assert "step 3: " in after["text"]
        page = get(watched.url)
        assert "Cause 1" in page
        assert "Optimizer.zero_grad" in page
        assert watched.url.startswith("http://127.0.0.1:")
    with pytest.raises(urllib.error.URLError):
        get(watched.url)


def test_a_port_that_is_taken_is_named(learned: InvariantSet) -> None:
    with watch(invariants=learned, port=0) as watched:
        port = int(watched.url.rstrip("/").rpartition(":")[2])
        with pytest.raises(InputError, match="cannot listen"):
            watch(invariants=learned, port=port).__enter__()


def test_without_a_port_nothing_is_served(learned: InvariantSet) -> None:
    with watch(invariants=learned) as watched:
        assert watched.url == ""
