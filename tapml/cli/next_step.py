"""The next step for a session in one line, for the end of a run and for `tapml report`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_LACKS_SHOWN: Final = 2
_TOKENS_SHOWN: Final = 8


def next_step(report: Mapping[str, Any], folder: Path, options: str = "") -> str:
    """The commands that continue a session.

    Parameters
    ----------
    report, folder
        The session's report data and folder.
    options
        Options of this run to repeat besides ``--session``, quoted for a shell.
    """
    again = f"`{resume_command(folder, options)}`"
    where, outcome, summary = shlex.quote(str(folder)), report["outcome"], report["summary"]
    failed = [each for each in report["operators"] if each["state"] == "failed"]
    if failed:
        waiting = summary["waiting"]
        rest = f" ({waiting} operators wait)" if waiting else ""
        return f"next: {_see(failed[0])}{_mend(failed[0], where)}continue with {again}{rest}"
    if summary["waiting"]:
        return f"next: continue with {again}"
    if report.get("final") and outcome["status"] == "pass":
        return (
            f"next: `tapml run {where} {_input(report['final'])}` runs it on the device, "
            f"`tapml package {where}` ships it{_beyond_the_simulator(report, folder)}"
        )
    if outcome["status"] == "pass" and summary["kept"]:
        plain = f"`{resume_command(folder)}`"
        return f"next: {plain} without --only and --keep-on-source moves the others as well"
    if outcome["status"] == "not run":
        return (
            "next: a device with more memory, or more of it (--device-memory): "
            f"`tapml devices` lists what there is; {again} checks it again"
        )
    return f"next: {again} checks it again"


def resume_command(folder: Path, options: str = "") -> str:
    """The command that continues a session."""
    return f"tapml offload --session {shlex.quote(str(folder))}{f' {options}' * bool(options)}"


def _beyond_the_simulator(report: Mapping[str, Any], folder: Path) -> str:
    """How a session goes on whose target executes kernel text on a processor; else empty."""
    target = report.get("target") or {}
    if target.get("device_type") != "simulated":
        return ""
    return (
        f"; where a GPU is, `tapml rpc serve --device {target['platform']}` makes it a device, and "
        f"`{resume_command(folder, '--device tcp://HOST:PORT')}` goes on there"
    )


def _input(final: Mapping[str, Any]) -> str:
    """Input for `tapml run` in the form of the session's cases."""
    if argument := final.get("argument"):
        return str(argument)
    prompts = [str(each["prompt"]) for each in final.get("prompts", ())]
    if prompts and all(prompt.replace(" ", "").isdecimal() for prompt in prompts):
        return f'--tokens "{" ".join(prompts[0].split()[:_TOKENS_SHOWN])}"'
    return '--prompt "..."'


def _see(operator: Mapping[str, Any]) -> str:
    """How to replay a failure without the session; empty if impossible."""
    repro = operator.get("repro")
    if repro and operator.get("repro_script"):
        script = f"{repro}/{operator['repro_script']}"
        return f"`python {shlex.quote(script)}` shows the failure again; "
    if repro and operator.get("replayable"):
        return f"`tapml replay {shlex.quote(repro)}` shows the failure again; "
    return ""


def _mend(operator: Mapping[str, Any], session: str) -> str:
    """Possible remedies for a failure."""
    name = shlex.quote(operator["name"])
    lacks = [each for each in operator.get("lacks") or () if each.get("device")]
    if lacks:
        said = "; ".join(
            f"{each['limit']} is {each['has']}, {each['where']} needs {each['need']}"
            for each in lacks[:_LACKS_SHOWN]
        )
        return (
            f"no kernel helps, the device is too small ({said}): another device (`tapml devices`), "
            f"or --keep-on-source {name}; "
        )
    # It computes with numpy, which a board that only reads its command line may not have.
    from tapml.verdicts.verdict import Cause

    if operator.get("cause") == Cause.NO_TEST:
        return (
            "a kernel without tests cannot be judged: start again with a larger --budget "
            f"(--restart), or --keep-on-source {name}; "
        )
    if operator.get("written"):
        return f"`tapml kernel check {session} {name} --watch` tries every save of its kernel; "
    return (
        f"`tapml kernel new {session} {name}` begins a kernel by hand and `tapml kernel check "
        f"{session} {name} --watch` tries every save; "
    )
