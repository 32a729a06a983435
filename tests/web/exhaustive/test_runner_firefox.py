"""A folder's page in Firefox: the same text, half precision, and a GPU that goes away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tapml.package.codecs import open_codec
from tapml.package.runnable import Runnable
from tapml.package.target_model import TargetModel
from tests.conftest import RequireDevice
from tests.report.browser import Page

# What holds in Chromium holds here: these are collected once more, with this module's fixtures.
from tests.web.end_to_end.test_runner_faults import (  # noqa: F401
    NEW_TOKENS,
    PROMPT,
    root,
    test_a_device_that_is_destroyed_amid_a_text_is_named_and_loading_again_goes_on,
    text,
)
from tests.web.exhaustive.test_runner_faults import (  # noqa: F401
    test_a_lost_model_rejects_its_text_and_all_that_is_asked_later,
)
from tests.web.firefox import open_firefox
from tests.web.half_model import CONTEXT, half_model
from tests.web.runner_page import RunnerPage, served


@pytest.fixture(scope="module")
def runner(
    root: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunnerPage]:
    """Firefox for the pages of the folders."""
    with served(root) as port, open_firefox(tmp_path_factory.mktemp("firefox")) as page:
        # It has what the tests here ask of a page of Chromium's.
        yield RunnerPage(cast("Page", page), port)


def test_the_page_writes_what_tapml_run_writes(runner: RunnerPage, text: str) -> None:  # noqa: F811
    runner.show("good")
    assert runner.generate(PROMPT, NEW_TOKENS) == text
    assert runner.page.complaints == []


def test_half_precision_gives_the_tokens_of_this_machines_driver(
    runner: RunnerPage, require_device: RequireDevice
) -> None:
    devices = require_device("webgpu")
    able = [each for each in devices if "float16" in each.limits.features]
    if not able:
        pytest.skip("no WebGPU adapter here has half precision")
    shipped = half_model()
    runnable = Runnable(
        shipped.model,
        shipped.plan,
        shipped.library,
        shipped.weights,
        lambda: open_codec(shipped.note, b""),
        None,
    )
    prompt = (3, 1, 4)
    with TargetModel(runnable, f"webgpu:{able[0].index}") as model:
        tokens = list(model.generate_tokens(prompt, max_new_tokens=CONTEXT))
    runner.show("half")
    written = runner.generate(" ".join(map(str, prompt)), CONTEXT)
    assert [int(word) for word in written.split()] == tokens
    assert len(set(tokens)) > 3, "a text in which something happens"
