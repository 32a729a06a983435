"""Who else hears that a folder's page has lost its GPU."""

from __future__ import annotations

from tests.web.end_to_end.test_runner_faults import (  # noqa: F401
    PROMPT,
    assert_lost_and_loaded_again,
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
