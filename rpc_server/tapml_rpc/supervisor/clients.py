"""The clients of one binding: how a session begins, whose a connection is, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from selectors import EVENT_READ
from typing import Any, Generic, TypeVar

from tapml_rpc import wire
from tapml_rpc.failures import check_epoch
from tapml_rpc.flow import Forwarder
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.relay import Relay, Work
from tapml_rpc.supervisor.relayed import Channel
from tapml_rpc.supervisor.worker_process import NoWorkerYetError, Start
from tapml_targets.errors import ProtocolError


class Client(Channel):
    """A client, with the channel to it, and its session.

    `data` is its data connection, None at first. `descriptor` is what `relay` is watched by.
    """

    relay: Relay
    descriptor: int
    data: Any


Kind = TypeVar("Kind", bound=Client)


class Clients(Generic[Kind]):
    """The sessions of a binding, on the thread of `forwarder`.

    `over` is called once with each whose session has ended, and why.
    """

    def __init__(self, hub: Hub, forwarder: Forwarder, over: Callable[[Kind, str], None]) -> None:
        self._hub = hub
        self._forwarder = forwarder
        self._over = over
        self._clients: dict[bytes, Kind] = {}
        self._watched: dict[int, Kind] = {}

    def __iter__(self) -> Iterator[Kind]:
        return iter(list(self._clients.values()))

    def greet(
        self,
        hello: wire.Header,
        client: Kind,
        identity: str,
        data_address: str,
        again: Callable[[Start], None],
        waited: Start | None = None,
    ) -> bool:
        """Begin a session; raises what :meth:`tapml_rpc.supervisor.hub.Hub.hello` raises.

        False if a worker has to be started first: `again` is called with what was `waited` for.
        """
        try:
            client.relay, welcome = self._hub.hello(hello, client, identity, waited)
        except NoWorkerYetError as error:
            error.start.add_done_callback(lambda start: self._forwarder.post(partial(again, start)))
            return False
        client.relay.background = partial(self._background, client)
        self._clients[client.relay.token] = client
        client.descriptor = client.relay.fileno()
        # A session that has ended and was not settled yet may have had the number.
        self._watched[client.descriptor] = client
        self._forwarder.rewatch(client.descriptor, EVENT_READ, partial(self._readable, client))
        welcome["data_address"] = data_address
        if not client.send_control(wire.pack(welcome)):
            client.relay.end("its connection is gone")
            self.settle(client)
        self._hub.refill()
        return True

    def find(self, header: wire.Header, identity: str) -> Kind:
        """The client a message is of; raises DeviceLostError if it has no session any more."""
        token = wire.octets(header.get("session"), "session", 64)
        client = self._clients.get(token)
        if client is None or client.relay.identity != identity:
            raise self._hub.lost(token, identity)
        return client

    def claim(self, header: wire.Header, identity: str, data: object) -> Kind:
        """The client a data message is of; `data` becomes its connection. Raises TapmlError."""
        # Checked first: a restarted server knows no session of its last lifetime.
        check_epoch(header, self._hub.epoch)
        client = self.find(header, identity)
        if client.data is None:
            client.data = data
        elif client.data != data:
            raise ProtocolError("this session's data comes over another connection")
        return client

    def control(self, client: Kind, header: wire.Header) -> bytes | None:
        """Take a control message; the reply, if any. Raises ProtocolError for an unknown one."""
        reply = client.relay.control(header)
        if reply is not None:
            self._hub.count(reply)
        self.settle(client)
        return None if reply is None else wire.pack(reply)

    def check(self, now: float) -> None:
        """Look at all clocks; call it a few times a second."""
        for client in self:
            client.relay.guarded(partial(client.relay.check, now))
            self.settle(client)

    def settle(self, client: Kind) -> None:
        """Forget a session that has ended."""
        if client.relay.ended:
            self.drop(client, client.relay.ended)

    def drop(self, client: Kind, why: str, *, kill: bool = False) -> None:
        """End a client's session; later calls do nothing."""
        if self._clients.pop(client.relay.token, None) is None:
            return
        if self._watched.get(client.descriptor) is client:
            del self._watched[client.descriptor]
            self._forwarder.forget(client.descriptor)
        client.relay.give_up(why, kill=kill)
        self._over(client, client.relay.ended)

    def _readable(self, client: Kind, events: int) -> None:
        client.relay.guarded(client.relay.readable)
        if client.relay.losing:
            # It stays readable: its end has come.
            self._forwarder.forget(client.descriptor)
        self.settle(client)

    def _background(self, client: Kind, work: Work) -> None:
        def follow(what: Callable[[], None]) -> None:
            client.relay.guarded(what)
            self.settle(client)

        def wait() -> None:
            try:
                what = work()
            except Exception as error:  # the session that is guarded ends with it
                what = partial(_raise, error)
            self._forwarder.post(partial(follow, what))

        # One that stays would be one for each session that there ever was at the same time.
        threading.Thread(target=wait, name="tapml-background", daemon=True).start()


def _raise(error: Exception) -> None:
    raise error
