"""``tapml run --device browser``: the tokens of this machine's own driver, and nothing stays."""

from __future__ import annotations

import signal
from pathlib import Path

from tapml.package.load import load_package
from tests.offload.commands import run_process, started
from tests.offload.processes import MARK, left_after, new_mark
from tests.report.browser import need_browser

PROMPT = "So it goes"
NEW_TOKENS = 5
NO_SCREEN = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "TAPML_TRACKER": ""}


def command(package: Path, new_tokens: int) -> tuple[str, ...]:
    """A run in a browser that is started for it."""
    limit = ("--max-new-tokens", str(new_tokens))
    return ("run", str(package), "--prompt", PROMPT, *limit, "--device", "browser")


def test_a_run_in_a_browser_writes_what_this_machine_writes_and_ends_all_it_started(
    webgpu_package: Path, tmp_path: Path
) -> None:
    need_browser()
    mark = new_mark()
    ended = run_process(
        *command(webgpu_package, NEW_TOKENS), cache=tmp_path, **NO_SCREEN, **{MARK: mark}
    )
    assert ended.exit_code == 0, ended.errors
    with load_package(webgpu_package) as model:
        text = model.generate(PROMPT, max_new_tokens=NEW_TOKENS)
    assert ended.output == f"{PROMPT}{text}\n"
    assert "shows the page without a window: http://127.0.0.1:" in ended.errors
    assert f"{NEW_TOKENS} tokens in " in ended.errors
    assert left_after(mark) == {}


def test_ctrl_c_between_two_tokens_leaves_no_browser_behind(
    webgpu_package: Path, tmp_path: Path
) -> None:
    need_browser()
    mark = new_mark()
    with started(
        *command(webgpu_package, 1000), cache=tmp_path, **NO_SCREEN, **{MARK: mark}
    ) as running:
        # Text comes token by token: the first is here while the others are still to be computed.
        written = running.stdout.read(len(PROMPT) + 1)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert written.startswith(PROMPT), errors
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    assert left_after(mark) == {}
