"""A folder's page whose GPU process dies, and who else hears that a GPU is lost."""

from __future__ import annotations

from tests.report.browser import Page
from tests.web.end_to_end.test_runner_faults import (  # noqa: F401
    PROMPT,
    assert_lost_and_loaded_again,
    begun,
    root,
    runner,
    text,
)
from tests.web.runner_page import RunnerPage


def test_a_lost_model_rejects_its_text_and_all_that_is_asked_later(
    runner: RunnerPage,  # noqa: F811
    text: str,  # noqa: F811
) -> None:
    """The page of the folder, which had nothing to do, says it at once as well."""
    runner.show("destroyed")
    runner.page.evaluate(f"document.querySelector('#prompt').value = {PROMPT!r}")
    heard = runner.module(f"""
        const model = await tapml.load("./");
        const heard = [model.closed];
        const note = (error) => heard.push(error instanceof tapml.TapmlError && error.kind);
        try {{
            for await (const _ of model.generate({PROMPT!r}, {{ maxNewTokens: 1000 }})) {{
                new BroadcastChannel("destroy").postMessage(0);
            }}
        }} catch (error) {{ note(error); }}
        note(await model.lost);
        await model.encode("So").catch(note);
        return [...heard, model.closed];
    """)
    assert heard == [False, *["DeviceLostError"] * 3, True]
    assert_lost_and_loaded_again(runner, text)


def test_a_gpu_process_that_dies_amid_a_text_is_a_lost_device(
    runner: RunnerPage,  # noqa: F811
    text: str,  # noqa: F811
) -> None:
    """The last one here: what a browser does after a second crash is its own affair."""
    page = runner.page
    assert isinstance(page, Page)
    runner.show("good")
    begun(runner)
    page.crash_gpu()
    assert_lost_and_loaded_again(runner, text)
