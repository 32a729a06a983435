"""How the ranks of a run on several machines meet, and how they part."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import distributed_c10d

from tapml.distributed.machines.tunnel import address_of
from tapml.isolate.member import Member
from tapml_targets.errors import SetupError

_LISTENING: Final = "0A"
_POLL_SECONDS: Final = 0.02
_Gloo: Any = distributed_c10d.ProcessGroupGloo


def meet(member: Member, part: Mapping[str, Any], timeout: timedelta) -> None:
    """Create the default process group of ranks that tunnels connect.

    `part` is what :mod:`tapml.distributed.machines.part` gives its ranks.
    """
    first = member.rank == 0
    listening = None
    if first:
        # A store opens its port to the world, unless it gets one that is open.
        try:
            listener = socket.create_server((address_of(0), part["store"]), backlog=256)
        except OSError as error:
            raise SetupError(
                f"port {part['store']} of the ranks' store was taken by another program: "
                "run it again"
            ) from error
        listening = listener.detach()
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address_of(0),
        part["store"],
        member.size,
        is_master=first,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listening,
    )
    # PyTorch makes its groups by this name, and has no argument for where they listen.
    vars(distributed_c10d)["ProcessGroupGloo"] = _gloo_on(member.rank, part)
    dist.init_process_group(
        "gloo", store=store, rank=member.rank, world_size=member.size, timeout=timeout
    )


def leave(member: Member, part: Mapping[str, Any], deadline_seconds: float) -> None:
    """Wait until no rank needs this one any more: its machine ends what has answered."""
    store = distributed_c10d._get_default_store()
    ended_at = time.monotonic() + deadline_seconds
    store.add("tapml-done", 1)
    _wait_for(store, "tapml-done", member.size, part, ended_at)
    if member.rank:
        store.add("tapml-left", 1)
    else:
        # The store is in this process.
        _wait_for(store, "tapml-left", member.size - 1, part, ended_at)


def _wait_for(store: Any, key: str, count: int, part: Mapping[str, Any], ended_at: float) -> None:
    flag = Path(part["flag"])
    while store.add(key, 0) < count and time.monotonic() < ended_at and not flag.exists():
        time.sleep(_POLL_SECONDS)


class _LikeGloo(type(_Gloo)):  # type: ignore[misc]
    """PyTorch asks of its own groups whether they are of the class that stands here."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Gloo)


def _gloo_on(rank: int, part: Mapping[str, Any]) -> Any:
    """The process groups of gloo on the rank's own address, with ways to all other ranks."""
    own = address_of(rank)

    class OnAddress(_Gloo, metaclass=_LikeGloo):  # type: ignore[misc]
        def __init__(self, store: Any, place: int, size: int, timeout: timedelta) -> None:
            before = _listening(own)
            options = _Gloo._Options()
            options._devices = [_Gloo.create_device(hostname=own)]
            options._timeout = timeout
            ports = ",".join(map(str, sorted(_listening(own) - before)))
            store.set(f"tapml-{place}", f"{rank} {ports}")
            for other in range(size):
                given = store.get(f"tapml-{other}").decode().split()
                peer, found = int(given[0]), given[1].split(",")
                if str(peer) in part["gates"]:
                    for port in found:
                        ask(part["ways"], peer, int(port), part["gates"][str(peer)])
            super().__init__(store, place, size, options)

    return OnAddress


def ask(ways: str, rank: int, port: int, gate: tuple[str, int]) -> None:
    """Ask this machine's tunnel for a way to a rank. Raises SetupError if it opens no way."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(ways)
        control.sendall(f"{address_of(rank)} {port} {gate[0]} {gate[1]}\n".encode())
        answer = control.makefile().readline().strip()
    if answer != "open":
        raise SetupError(f"no way to rank {rank} can be opened: {answer}")


def _listening(address: str) -> set[int]:
    """The ports of an address on which this machine listens."""
    wanted = "".join(f"{int(each):02X}" for each in reversed(address.split(".")))
    found = set()
    for line in Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        host, _, port = local.partition(":")
        if state == _LISTENING and host == wanted:
            found.add(int(port, 16))
    return found
