"""A link with a delay, a loss and a rate, that can be cut and healed: real TCP over slow packets.

Client and server live in a network namespace each. The two are joined by a TUN device on either
side, and a process (:mod:`tests.rpc.packet_carrier`) that takes every packet from one to the other
late, or not at all: what ``tc qdisc add ... netem`` does in kernels that were built with it, which
those of small virtual machines are not. Where namespaces are not permitted, a process that copies
TCP streams (:mod:`tests.rpc.stream_carrier`) delays, stalls and limits bytes instead; TCP itself
then sees no loss. :attr:`ShapedLink.kind` says which one a test ran on.

Both ends keep to addresses of 127.0.0.0/8, which the server takes for loopback: the link is inside
the machine, and no secret is asked for.
"""

from __future__ import annotations

import ctypes
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVER_HOST = "127.0.0.1"
# The host under which the copied streams are reached: the same ports, another address.
COPY_HOST = "127.0.0.2"
_NEW_NETWORK = 0x40000000
_READY_SECONDS = 10
# Below Linux's usual ip_local_port_range, above the ports services are known by.
_PORTS = range(20_000, 32_000)
# Each process that shares the tests has some of them: a server that is down for a moment finds its
# own free when it comes back.
_SHARES = 16


@dataclass
class ShapedLink:
    """A link between a server's end and a client's.

    Attributes
    ----------
    kind
        ``packets`` where namespaces are joined, ``streams`` where TCP streams are copied.
    server_prefix
        Before a server's command line, so that it runs at its end of the link.
    """

    kind: str
    server_prefix: tuple[str, ...]
    _carrier: subprocess.Popen[str]
    _server_namespace: Path | None = None
    _client_namespace: Path | None = None
    _ports: set[int] = field(default_factory=set)

    def cut(self) -> None:
        """From now on nothing passes; connections do not notice."""
        self._tell("cut")

    def heal(self) -> None:
        """Everything passes again."""
        self._tell("heal")

    def reach(self, address: str, *ports: int) -> str:
        """Where a client finds a server that listens at `address`, and at more `ports`."""
        if self.kind == "packets":
            return address
        for port in (int(address.rpartition(":")[2].partition("/")[0]), *ports):
            if port not in self._ports:
                self._ports.add(port)
                self._tell(f"port {port}")
        return address.replace(SERVER_HOST, COPY_HOST)

    @contextmanager
    def client_end(self) -> Iterator[None]:
        """This thread, and the threads it starts, are at the client's end.

        Sockets stay where they were made. The server is found under the same address.
        """
        with _inside(self._client_namespace):
            yield

    @contextmanager
    def server_end(self) -> Iterator[None]:
        """This thread is at the server's end: it reaches the server whatever the link does."""
        with _inside(self._server_namespace):
            yield

    def _tell(self, what: str) -> None:
        assert self._carrier.stdin is not None and self._carrier.stdout is not None
        self._carrier.stdin.write(what + "\n")
        self._carrier.stdin.flush()
        answer = self._carrier.stdout.readline().strip()
        assert answer == "done", f"the carrier of the link says {answer!r}"


@contextmanager
def shaped_link(
    *, delay_ms: float = 0.0, loss: float = 0.0, rate: float = 0.0, kind: str = ""
) -> Iterator[ShapedLink]:
    """A link whose every packet takes a while.

    Parameters
    ----------
    delay_ms
        One way: a round trip takes twice as long.
    loss
        Share of the packets that do not arrive, drawn from a fixed seed.
    rate
        Bytes per second each way; 0 for no limit.
    kind
        ``packets`` or ``streams``; empty takes packets where the machine permits them.
    """
    kind = kind or ("packets" if may_join_namespaces() else "streams")
    module = "tests.rpc.packet_carrier" if kind == "packets" else "tests.rpc.stream_carrier"
    carrier = subprocess.Popen(
        [sys.executable, "-m", module, str(delay_ms / 1000), str(loss), str(rate)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert carrier.stdout is not None
        ready = carrier.stdout.readline().split()
        assert ready, f"no {kind} can be carried here: look above for what it said"
        if kind == "packets":
            server_end, client_end = (f"/proc/{carrier.pid}/fd/{number}" for number in ready)
            prefix = (sys.executable, "-m", "tests.rpc.network", server_end)
            yield ShapedLink(kind, prefix, carrier, Path(server_end), Path(client_end))
        else:
            yield ShapedLink(kind, (), carrier)
    finally:
        # Its namespaces and devices end with it and with the processes inside them.
        carrier.kill()
        carrier.communicate()


def may_join_namespaces() -> bool:
    """Whether this process may make network namespaces and TUN devices."""
    # In a process of its own: the namespace of this one must stay.
    script = "import sys; from tests.rpc.packet_carrier import probe; sys.exit(not probe())"
    return not subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.DEVNULL, check=False
    ).returncode


def free_ports(count: int) -> list[int]:
    """Neighbouring ports that nobody uses on any address of 127.0.0.0/8 just now.

    They are below those the kernel gives to connections and to listeners at port 0, and no other
    process of the tests is told of them: between this answer and its use nobody beside this test
    can be given one of them by chance.
    """
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SHARES
    mine = _PORTS[share * len(_PORTS) // _SHARES : (share + 1) * len(_PORTS) // _SHARES]
    # Each test begins with the same seed: its own draws would be those of the test before.
    draws = random.SystemRandom()
    while True:
        first = draws.randrange(mine.start, mine.stop - count)
        ports = [*range(first, first + count)]
        with ExitStack() as taken, suppress(OSError):
            for port in ports:
                taken.enter_context(socket.socket()).bind(("0.0.0.0", port))
            return ports


def new_namespace() -> int:
    """Move this thread into a network namespace of its own; a descriptor that keeps it."""
    _check(_libc().unshare(_NEW_NETWORK))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


@contextmanager
def _inside(namespace: Path | None) -> Iterator[None]:
    if namespace is None:
        yield
        return
    with Path("/proc/thread-self/ns/net").open("rb") as home:
        _enter(namespace)
        try:
            yield
        finally:
            _set_namespace(home.fileno())


def _enter(namespace: Path) -> None:
    with namespace.open("rb") as handle:
        _set_namespace(handle.fileno())


def _set_namespace(descriptor: int) -> None:
    _check(_libc().setns(descriptor, _NEW_NETWORK))


def _check(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    # `python -m tests.rpc.network NAMESPACE COMMAND...` runs a command at the server's end.
    _enter(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
