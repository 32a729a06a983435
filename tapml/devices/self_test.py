"""The self-test of a session's device, near or far: run once a day and driver, and cached.

A device of this machine is tested by :mod:`tapml_targets.self_test.known`. One elsewhere is tested
in a separate session, which alone is lost if its driver crashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.devices.reach import open_another, place_of
from tapml.devices.remote_driver import RemoteDriver
from tapml_rpc.client import RemoteLibrary, RemoteTensor, Session
from tapml_targets import probe_cache
from tapml_targets.description import fingerprint
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, InputError, ProtocolError, SetupError, TapmlError
from tapml_targets.library import Library
from tapml_targets.self_test.facts import SelfTest, from_plain, to_plain
from tapml_targets.self_test.known import asked_of, self_test
from tapml_targets.self_test.measure import measure
from tapml_targets.self_test.place import DriverPlace


def self_test_over(session: Session, *, libraries: Mapping[str, Library] | None = None) -> SelfTest:
    """Test the device of a session, which nobody else may use meanwhile; what it holds stays.

    A driver that crashes or hangs ends the session: that is reported among the problems, and
    the caller connects again. For a device of this machine
    :func:`tapml_targets.self_test.known.self_test` needs no session and caches the result.
    `libraries` run in place of the platform's own, by part. Raises InputError if this side does
    not know the device's platform.
    """
    place = _SessionPlace(session)
    try:
        return measure(place, libraries=libraries)
    finally:
        place.close()


class _SessionPlace(DriverPlace):
    """Operators are called by the device's server, everything else goes as on a driver."""

    def __init__(self, session: Session) -> None:
        self._driver = RemoteDriver(session)
        super().__init__(self._driver)
        self._session = session
        self._uploaded: dict[int, tuple[Library, RemoteLibrary]] = {}

    def run(
        self, library: Library, name: str, tensors: Sequence[NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """See :meth:`tapml_targets.self_test.place.Place.run`."""
        session, buffers = self._session, []
        try:
            with self._driver.cleared():
                if id(library) not in self._uploaded:
                    self._uploaded[id(library)] = library, session.upload(library)
                with session.batch() as batch:
                    uses = []
                    for array in tensors:
                        buffers.append(buffer := session.allocate(array.nbytes))
                        session.write(buffer, np.ascontiguousarray(array))
                        uses.append(RemoteTensor(buffer, 0, array.shape, str(array.dtype)))
                    session.call(self._uploaded[id(library)][1], name, uses)
                    pending = [batch.read(buffer) for buffer in buffers]
            return [
                np.frombuffer(each.result(), array.dtype).reshape(array.shape)
                for each, array in zip(pending, tensors, strict=True)
            ]
        finally:
            self._free(buffers)

    def close(self) -> None:
        """Unload the Libraries; a session that is lost holds none."""
        with suppress(TapmlError):
            for _, remote in self._uploaded.values():
                self._session.unload(remote)


_KIND: Final = "self-test-elsewhere"


def session_self_test(session: Session, *, refresh: bool = False) -> SelfTest | None:
    """The self-test of a session's device, run at most once a day and driver, or to `refresh` it.

    What the session holds stays. None for a checker, which is slow and tested only by
    `refresh`; and for a device elsewhere that is gone, or of an unknown platform.
    """
    device = session.device
    place = place_of(session)
    if not place:
        return self_test(device, policy="run" if refresh else "cached")
    known = None if refresh else remembered_elsewhere(device, place)
    if known is not None or (device.device_type == "checker" and not refresh):
        return known
    try:
        found = _measured(session)
    except (InputError, DeviceLostError):
        return None
    remember_elsewhere(device, place, found)
    return found


def remembered_elsewhere(description: DeviceDescription, place: str) -> SelfTest | None:
    """The cached self-test of a device elsewhere; None if it is missing or too old.

    `place` is that of :func:`~tapml.devices.reach.place_of`: of two boards with one fingerprint one
    may be damaged.
    """
    try:
        known = probe_cache.load(_KIND, place, _state(description))
        return None if known is None else from_plain(known)
    except (InputError, ProtocolError):
        return None


def remember_elsewhere(description: DeviceDescription, place: str, found: SelfTest) -> None:
    """Cache the self-test of a device elsewhere."""
    plain = to_plain(found)
    if found.problems:
        # A failure may be temporary: it expires sooner.
        plain["problem"] = "; ".join(found.problems)
    probe_cache.store(_KIND, place, _state(description), plain)


def _state(description: DeviceDescription) -> dict[str, Any]:
    return {"device": fingerprint(description)} | asked_of(description)


def _measured(session: Session) -> SelfTest:
    try:
        other = open_another(session)
    except SetupError:
        # It takes no other session beside this one.
        return self_test_over(session)
    with other:
        return self_test_over(other)
