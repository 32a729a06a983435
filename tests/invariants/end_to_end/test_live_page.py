"""The live page in a real browser: it loads itself again when there is a violation."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tapml.invariants import watch
from tapml.invariants.inference import infer
from tapml.invariants.recording import recorded
from tests.report.browser import open_browser


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *, forgetful: bool = False) -> None:
    if not forgetful:
        optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()


def test_an_open_page_shows_a_violation_by_itself(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with recorded() as recording:
        for _ in range(5):
            step(model, optimizer)
    learned = infer([recording.run()])
    with (
        watch(invariants=learned, on_violation="report", port=0) as watched,
        open_browser(tmp_path) as browser,
    ):
        step(model, optimizer)
        step(model, optimizer)
        browser.tab.goto(watched.url)
        browser.wait_shown("step 2: ")
        step(model, optimizer, forgetful=True)
        browser.wait_shown("Cause 1")
        assert browser.complaints == []
