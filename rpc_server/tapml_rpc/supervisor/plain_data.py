"""A supervisor's plain connections: payloads of data connections are read straight into a ring."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from selectors import BaseSelector

from tapml_rpc.supervisor.data_service import Desk
from tapml_rpc.supervisor.plain_connection import PlainConnection
from tapml_rpc.zmtp.listener import MOST_CONNECTIONS, Connection, Listener


class PlainData(Listener):
    """The :class:`~tapml_rpc.supervisor.data_service.DataService` on plain sockets.

    A control service as well, where `accept` makes control connections.

    Parameters
    ----------
    desk, selector
        The front's.
    address, most
        As a :class:`~tapml_rpc.zmtp.listener.Listener` takes them.
    accept
        Makes a connection of a socket; None for data connections.

    Raises
    ------
    OSError
        If the address cannot be used.
    """

    def __init__(
        self,
        desk: Desk,
        selector: BaseSelector,
        address: str,
        accept: Callable[[socket.socket], Connection] | None = None,
        *,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        make = accept or partial(PlainConnection, desk)
        super().__init__(selector, address, make, desk.show, most=most)
