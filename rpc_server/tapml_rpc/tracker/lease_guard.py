"""The guard of a lent device's WebSockets: the holder of a lease needs no token of the device's."""

from __future__ import annotations

from collections.abc import Callable

from tapml_rpc.security.standing import LEASE_IDENTITY
from tapml_rpc.websocket.admission import Guard


class LeaseGuard:
    """Takes the tokens of leases, which the tracker tells both sides, and those of another guard.

    Parameters
    ----------
    holder
        Gives the identity of whoever has the lease with a token; empty for no lease.
    others
        Who else knows tokens.
    """

    def __init__(self, holder: Callable[[str], str], others: Guard) -> None:
        self._holder = holder
        self._others = others

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        """See :class:`tapml_rpc.websocket.admission.Guard`."""
        holder = self._holder(token)
        if holder:
            return LEASE_IDENTITY + holder
        return self._others.check(token, address, opens=opens)
