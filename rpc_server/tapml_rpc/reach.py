"""Opens a device wherever it is: on this machine, at an address, or lent by a tracker.

::

    opencl, opencl:1                 of this machine
    tcp://board:9190, wss://pixel:9443   a server's address
    tracker:pixel, tracker:kind=opencl   whatever a tracker lends (TAPML_TRACKER says which)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tapml_rpc.security.credentials import Credentials
    from tapml_rpc.session import Session

SCHEMES: Final = ("tcp://", "ws://", "wss://")
_TRACKER: Final = "tracker"


def is_remote(spec: str) -> bool:
    """Whether a device is reached by an address or through a tracker."""
    return spec.startswith(SCHEMES) or spec == _TRACKER or spec.startswith(f"{_TRACKER}:")


def open_device(
    spec: str,
    *,
    dtype: str = "float32",
    kernel_deadline: float | None = None,
    credentials: Credentials | None = None,
    say: Callable[[str], None] | None = None,
) -> Session:
    """Open a session with the device that `spec` names.

    Parameters
    ----------
    spec
        As above.
    dtype
        What the kernels compute in; this machine's best device is ranked for it.
    kernel_deadline
        Seconds one command may take; the server's default where None.
    credentials
        Keys and tokens for an address or a tracker; those of the environment where None.
    say
        Takes a line while a tracker's queue is waited in.

    Raises
    ------
    InputError
        If `spec` names no kind of device.
    NoSuchDeviceError
        If there is no such device.
    SetupError
        If nothing answers, or the server does not let us in.
    """
    from tapml_rpc.client import connect
    from tapml_rpc.local import open_local
    from tapml_rpc.security.credentials import Credentials

    if not is_remote(spec):
        return open_local(spec, dtype=dtype, kernel_deadline=kernel_deadline)
    if spec.startswith(SCHEMES):
        return connect(spec, kernel_deadline=kernel_deadline, credentials=credentials)
    from tapml_rpc.tracker.spec import resolve

    told = None if say is None else (lambda place: say(str(place)))
    lease = resolve(spec, credentials=credentials, on_queue=told)
    try:
        session = connect(
            lease.address,
            kernel_deadline=kernel_deadline,
            credentials=lease.credentials(credentials or Credentials.from_environment()),
            lease=lease.token,
            on_close=lease.release,
        )
        lease.verify(session.device)
        return session
    except BaseException:
        lease.release()
        raise
