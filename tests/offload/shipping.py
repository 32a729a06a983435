"""A model moved with the real command, packaged, and run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.conftest import RequireDevice
from tests.offload.commands import run_here
from tests.offload.sessions import read_report, states
from tests.offload.warm_cache import warm_cache


def shipped(
    model: Path | str, folder: Path, require_device: RequireDevice, platform: str, *options: str
) -> Path:
    """Move a model with the real command, check its report, and make its package.

    The commands share the cache `folder` / "cache", see :func:`warm_cache`.
    """
    device = f"{platform}:{min(each.index for each in require_device(platform))}"
    session, cache = folder / "session", warm_cache(folder / "cache")
    arguments = ("--model", model, "--device", device, "--session", session, "--prompts", "1")
    # Bisecting runs the model once where nothing is wrong; every operator replays its tests.
    ended = run_here(
        "offload", *arguments, "--quiet", "--strategy", "bisect", *options, cache=cache
    )
    assert ended.exit_code == 0, ended.output + ended.errors
    assert set(states(session).values()) == {"moved"}
    report = read_report(session)
    assert report["final"]["status"] == "pass"
    assert all(
        each["tests"]["passed"] == each["tests"]["total"] > 0 for each in report["operators"]
    )
    assert (session / "report.html").stat().st_size > 0
    package = folder / "its package"
    made = run_here("package", session, "-o", package, cache=cache)
    assert made.exit_code == 0, made.errors
    # The command can be pasted, whatever the folder's name.
    said = shlex.split(made.output.splitlines()[-1])
    assert said[:5] == ["run", "it:", "tapml", "run", str(package)]
    return package


def result_of(package: Path, cache: Path, *arguments: str | Path) -> dict[str, object]:
    """What ``tapml run --json`` prints."""
    ended = run_here("run", package, *arguments, "--json", cache=cache)
    assert ended.exit_code == 0, ended.errors
    data: dict[str, object] = json.loads(ended.output)
    return data
