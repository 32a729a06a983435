"""The self-test of a device: every part that its platform has kernels for, part by part."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.library import Library
from tapml_targets.self_test.facts import Fact, SelfTest
from tapml_targets.self_test.float16_facts import float16_facts
from tapml_targets.self_test.float_facts import float_facts
from tapml_targets.self_test.integer_facts import int64_fact
from tapml_targets.self_test.kernels import CORE, FEATURES, dtype_of
from tapml_targets.self_test.limit_facts import block_fact, buffer_facts, loop_facts
from tapml_targets.self_test.parts import BUFFERS, has_self_test, libraries_of, parts_of
from tapml_targets.self_test.place import DriverPlace, Place


def run_self_test(
    driver: Driver,
    *,
    parts: Sequence[str] | None = None,
    libraries: Mapping[str, Library] | None = None,
) -> SelfTest:
    """Test an open device in this process, which a faulty driver may crash.

    :func:`tapml_targets.self_test.known.self_test` does it in a child process.

    Parameters
    ----------
    driver
        The open device.
    parts
        Which parts; all of :func:`parts_of` by default.
    libraries
        Libraries to run in place of the platform's own, by part.
    """
    place = DriverPlace(driver)
    try:
        return measure(place, parts=parts, libraries=libraries)
    finally:
        place.close()


def measure(
    place: Place,
    *,
    parts: Sequence[str] | None = None,
    libraries: Mapping[str, Library] | None = None,
) -> SelfTest:
    """Test the device of a place; a part that fails is a problem, and the others continue.

    A lost device is the last problem.
    """
    begun = time.perf_counter()
    own = libraries_of(place.device) | dict(libraries or {})
    facts: list[Fact] = []
    problems: list[str] = []
    for part in parts_of(place.device) if parts is None else parts:
        try:
            for step in _steps(place, part, own):
                facts += step()
        except TapmlError as error:
            problems.append(f"{part}: {str(error)[:1000]}")
            if isinstance(error, DeviceLostError):
                break
    facts += _absent(place.device)
    return SelfTest(tuple(facts), tuple(problems), round(time.perf_counter() - begun, 3))


def _steps(
    place: Place, part: str, libraries: Mapping[str, Library]
) -> list[Callable[[], list[Fact]]]:
    if part == BUFFERS:
        return [lambda: buffer_facts(place)]
    library = libraries[part]
    floats: list[Callable[[], list[Fact]]] = [lambda: float_facts(place, library, dtype_of(part))]
    if part == "float16":
        return [*floats, lambda: float16_facts(place, library)]
    if part != CORE:
        return floats
    return [
        lambda: loop_facts(place, library),
        lambda: [block_fact(place, library)],
        *([lambda: [int64_fact(place, library)]] if "int64" in library.operators else []),
        *floats,
    ]


def _absent(description: DeviceDescription) -> list[Fact]:
    """Facts about optional dtypes for which the platform has kernels."""
    if not has_self_test(description.platform):
        return []
    return [
        Fact(
            part, "present" if here else "absent", "", "present", None, "driver",
            f"the driver offers {part}" if here else
            f"the driver offers no {part}: models that compute in it do not run here",
            trait="" if here else f"no {part}",
        )
        for part, feature in FEATURES.items()
        for here in (feature in description.limits.features,)
    ]  # fmt: skip
