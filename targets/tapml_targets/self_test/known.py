"""The self-test of a device of this machine, in a child process that may crash or hang, cached.

If the process crashes or times out, each part runs in a separate process, and the answer names
those that fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, overload

from tapml_targets import probe_cache
from tapml_targets.child_probe import ask_child
from tapml_targets.description import fingerprint
from tapml_targets.driver import DeviceDescription
from tapml_targets.driver_discovery import driver_discovery
from tapml_targets.errors import ProtocolError, TapmlError
from tapml_targets.library_format import library_hash, pack
from tapml_targets.platforms import load_driver_module
from tapml_targets.self_test.facts import REVISION, Fact, SelfTest, from_plain, to_plain
from tapml_targets.self_test.parts import has_self_test, libraries_of, parts_of

Policy: TypeAlias = Literal["cached", "run", "cached-only"]

SECONDS: Final = 30.0
"""Time limit for the complete self-test, and then for each part by itself."""
_KIND: Final = "self-test"


@overload
def self_test(description: DeviceDescription, *, policy: Literal["run"]) -> SelfTest: ...
@overload
def self_test(description: DeviceDescription, *, policy: Policy = "cached") -> SelfTest | None: ...
def self_test(description: DeviceDescription, *, policy: Policy = "cached") -> SelfTest | None:
    """Measure a device of this machine, or return the cached result.

    Parameters
    ----------
    description
        The device, from :mod:`tapml_targets.ranking`.
    policy
        ``cached`` uses a result of the same driver that is less than a day old, or measures. It
        does not measure a checker, since a simulator takes long. ``run`` always measures,
        ``cached-only`` never.

    Returns
    -------
    SelfTest or None
        None if there is no result and none was measured.

    Raises
    ------
    InputError
        If this machine does not know the platform.
    """
    if policy != "run":
        found = _cached(description)
        if found or policy == "cached-only" or description.device_type == "checker":
            return found
    found = _measured(description)
    plain = to_plain(found)
    if found.problems:
        # A failure may be temporary, so it is kept for a shorter time.
        plain["problem"] = "; ".join(found.problems)
    probe_cache.store(_KIND, _name(description), _state(description), plain)
    return found


def _cached(description: DeviceDescription) -> SelfTest | None:
    data = probe_cache.load(_KIND, _name(description), _state(description))
    try:
        return None if data is None else from_plain(data)
    except ProtocolError:
        return None


def _measured(description: DeviceDescription) -> SelfTest:
    if not has_self_test(description.platform):
        # Such a platform has no external driver.
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
    """The result of a child process, or None and why there is none."""
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
    """The questions of a self-test as plain data, part of the cache key.

    Raises
    ------
    InputError
        If this machine does not know the platform.
    """
    asked = {part: library_hash(pack(each)) for part, each in libraries_of(description).items()}
    return {"asked": asked, "revision": REVISION}


def _state(description: DeviceDescription) -> dict[str, Any]:
    """The cache key: the device, its driver, and the questions."""
    device = {
        "device": fingerprint(description),
        "drivers": driver_discovery(description.platform).drivers_state(),
    }
    return device | asked_of(description)
