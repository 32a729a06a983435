"""The guard of a lent device's WebSockets: a lease's holder needs no token of the device."""

from __future__ import annotations

from collections.abc import Callable

from tapml_rpc.security.standing import LEASE_IDENTITY
from tapml_rpc.websocket.admission import Guard


class LeaseGuard:
    """Accepts the tokens of leases, which the tracker sends both sides, and those of another guard.

    `holder` gives the identity of the lease with a token; empty for no lease.
    """

    def __init__(self, holder: Callable[[str], str], others: Guard) -> None:
        self._holder = holder
        self._others = others

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        """The identity that belongs to a token; raises SetupError if it is not accepted."""
        holder = self._holder(token)
        if holder:
            return LEASE_IDENTITY + holder
        return self._others.check(token, address, opens=opens)
