"""The self-test of a device of this machine, in a process that may hang or die of it, remembered.

What a driver does while it is tested is part of the answer: where the process dies or gives no
answer in time, each part is tried in a process of its own, and those that end it are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tapml_targets import probe_cache
from tapml_targets.child_probe import ask_child
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError, TapmlError
from tapml_targets.fingerprint import fingerprint
from tapml_targets.library_format import library_hash, pack
from tapml_targets.platforms import load_driver_module
from tapml_targets.ranking import drivers_state
from tapml_targets.self_test.facts import REVISION, Fact, SelfTest, from_plain, to_plain
from tapml_targets.self_test.parts import has_self_test, libraries_of, parts_of

SECONDS: Final = 30.0
"""How long a driver may take for all of it, and then for each part."""


def known_self_test(description: DeviceDescription, *, refresh: bool = False) -> SelfTest:
    """What a device of this machine does, measured at most once a day and driver.

    Parameters
    ----------
    description
        The device, from :mod:`tapml_targets.ranking`.
    refresh
        Measure again instead of using what is known.

    Raises
    ------
    InputError
        If this machine does not know the platform.
    """
    found = None if refresh else remembered_self_test(description)
    if found is None:
        found = _measured(description)
        plain = to_plain(found)
        if found.problems:
            # A failure may be of the moment: it is forgotten sooner.
            plain["problem"] = "; ".join(found.problems)
        probe_cache.store(_KIND, _name(description), _state(description), plain)
    return found


def remembered_self_test(description: DeviceDescription) -> SelfTest | None:
    """What was measured before with the same driver; None where that is nothing or too old."""
    known = probe_cache.load(_KIND, _name(description), _state(description))
    try:
        return None if known is None else from_plain(known)
    except ProtocolError:
        return None


def usual_self_test(description: DeviceDescription, *, refresh: bool = False) -> SelfTest | None:
    """The same, unless it is a checker: a simulator takes long, and is tested only by `refresh`."""
    if description.device_type == "checker" and not refresh:
        return remembered_self_test(description)
    return known_self_test(description, refresh=refresh)


_KIND: Final = "self-test"


def _measured(description: DeviceDescription) -> SelfTest:
    if not has_self_test(description.platform):
        # Nothing foreign is behind such a platform.
        return _here(description)
    parts = parts_of(description)
    whole, problem = _asked(description, parts)
    if whole is not None:
        return whole
    facts: dict[str, Fact] = {}
    problems, seconds = [], 0.0
    for part in parts:
        found, problem = _asked(description, (part,))
        if found is None:
            problems.append(f"{part}: {problem}")
        else:
            facts |= {fact.name: fact for fact in found.facts}
            problems += found.problems
            seconds += found.seconds
    return SelfTest(tuple(facts.values()), tuple(problems or [f"all of it: {problem}"]), seconds)


def _here(description: DeviceDescription) -> SelfTest:
    try:
        # It computes with numpy, which a board may not have.
        from tapml_targets.self_test.measure import run_self_test

        driver = load_driver_module(description.platform).open_device(description)
    except (ImportError, TapmlError) as error:
        return SelfTest((), (str(error),))
    try:
        return run_self_test(driver)
    finally:
        driver.close()


def _asked(description: DeviceDescription, parts: Sequence[str]) -> tuple[SelfTest | None, str]:
    """What a child process found, or None and what became of it."""
    arguments = ["self-test", description.platform, str(description.index), *parts]
    answer, problem = ask_child(arguments, SECONDS)
    if answer is None:
        return None, problem
    if "problem" in answer:
        return None, str(answer["problem"])
    if answer.get("fingerprint") != fingerprint(description):
        return None, "the device at this index changed while it was tested"
    try:
        return from_plain(answer.get("self_test")), ""
    except ProtocolError as error:
        return None, str(error)


def _name(description: DeviceDescription) -> str:
    return f"{description.platform}:{description.index}"


def asked_of(description: DeviceDescription) -> dict[str, Any]:
    """What a device of this description is asked, as plain data: another question, another answer.

    Raises
    ------
    InputError
        If this machine does not know the platform.
    """
    asked = {part: library_hash(pack(each)) for part, each in libraries_of(description).items()}
    return {"asked": asked, "revision": REVISION}


def _state(description: DeviceDescription) -> dict[str, Any]:
    """What an answer depends on: the device, its driver, and what is asked."""
    device = {
        "device": fingerprint(description),
        "drivers": drivers_state(description.platform),
    }
    return device | asked_of(description)
