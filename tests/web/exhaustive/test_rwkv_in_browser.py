"""RWKV in a browser, where the paper's table II has N/A: its own tokenizer, its recurrent state."""

from __future__ import annotations

from pathlib import Path

from tapml.models.longest_match import VOCABULARY
from tapml.package.load import load_package
from tests.conftest import RequireDevice
from tests.models.families import make_family
from tests.models.test_longest_match import vocabulary
from tests.offload.commands import run_process
from tests.report.browser import open_browser
from tests.web.pages import WEBGPU_FLAGS
from tests.web.runner_page import RunnerPage, served

PROMPT = "the théé 日本 there"
NEW_TOKENS = 6


def test_a_moved_rwkv_writes_in_a_browser_what_tapml_run_writes(
    tmp_path: Path, require_device: RequireDevice
) -> None:
    devices = require_device("webgpu")
    named = next((each for each in devices if "SwiftShader" in each.name), devices[0])
    model = make_family(tmp_path / "model", "rwkv6", num_hidden_layers=1, vocab_size=320)
    (model / VOCABULARY).write_bytes(vocabulary())
    cache, session, package = tmp_path / "cache", tmp_path / "session", tmp_path / "package"
    for command in (
        ("offload", "--model", str(model), "--device", f"webgpu:{named.index}", "--session",
         str(session), "--new-tokens", "2", "--strategy", "bisect", "--prompt", "the th"),
        ("package", str(session), "--out", str(package)),
        ("package", str(package), "--browser", "--out", str(tmp_path / "site" / "rwkv")),
    ):  # fmt: skip
        (tmp_path / "site").mkdir(exist_ok=True)
        ended = run_process(*command, cache=cache)
        assert ended.exit_code == 0, ended.errors
    with load_package(package) as moved:
        ids = moved.encode(PROMPT)
        text = moved.generate(PROMPT, max_new_tokens=NEW_TOKENS)
    with (
        served(tmp_path / "site") as port,
        open_browser(tmp_path / "browser", *WEBGPU_FLAGS) as page,
    ):
        runner = RunnerPage(page, port)
        runner.show("rwkv")
        assert runner.generate(PROMPT, NEW_TOKENS) == text
        assert runner.generate(PROMPT, NEW_TOKENS) == text, "a text begins on an empty state"
        read = f'const model = await tapml.load("./"); return await model.encode({PROMPT!r});'
        assert runner.module(read) == list(ids)
        assert page.complaints == []
