"""The conformance cases over a session: of a device elsewhere, its server and the wire between."""

from __future__ import annotations

from tapml.devices.reach import open_another
from tapml.devices.remote_driver import RemoteDriver
from tapml_rpc.client import Session
from tapml_rpc.device.libraries import NO_MACHINE_CODE
from tapml_targets.conformance.bench import Bench, NotOfferedError, process_bytes
from tapml_targets.conformance.running import CASES, CaseResult, run_cases
from tapml_targets.description import fingerprint
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, SetupError, TapmlError


def conformance_over(session: Session) -> list[CaseResult]:
    """Run all cases on the device of an :func:`~tapml.devices.reach.open_device` session.

    Nobody else may use the session meanwhile. A case that takes the device down fails alone:
    the next one has a session of its own. Raises InputError if this side does not know the
    device's platform, whose kernels the cases run; SetupError if its server takes no machine code,
    and the platform has no other.
    """
    results: list[CaseResult] = []
    current = session
    try:
        for name in CASES:
            try:
                current = _alive(current, session)
            except TapmlError as error:
                results.append(CaseResult(name, "fail", f"the device is gone: {error}"))
                continue
            (result,) = run_cases(_bench(current), [name])
            if result.reason.startswith(NO_MACHINE_CODE):
                raise SetupError(result.reason)
            results.append(result)
    finally:
        if current is not session:
            current.close()
    return results


def _alive(current: Session, first: Session) -> Session:
    """A session that answers: the current one, or another with the same device."""
    try:
        current.reset()
    except DeviceLostError:
        if current is not first:
            current.close()
        return open_another(first)
    return current


def _bench(session: Session) -> Bench:
    driver = RemoteDriver(session)

    def open_device(wanted: DeviceDescription) -> RemoteDriver:
        here = session.device
        if (wanted.name, wanted.driver_version) != (here.name, here.driver_version):
            raise NotOfferedError("an address leads to one device, whatever one wants")
        opened = open_another(session)
        if fingerprint(opened.device) != fingerprint(here):
            opened.close()
            raise TapmlError(f"the address led to {here.name!r}, now to {opened.device.name!r}")
        return RemoteDriver(opened)

    return Bench(driver, open_device, lambda: process_bytes() + driver.held_bytes())
