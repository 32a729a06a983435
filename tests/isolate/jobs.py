"""Jobs that end in every way a job can end, and states that workers keep."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tapml.isolate.member import Member
from tapml_targets.errors import LimitExceededError

_LOOPBACK: Final = "127.0.0.1"


def name(function: str) -> str:
    """The name a job of this module is registered by."""
    return f"{__name__}:{function}"


def names() -> list[str]:
    """Every job of this module."""
    return [name(found) for found, value in globals().items() if callable(value)]


def echo(payload: Any) -> Any:
    return payload


def crash(_: Any) -> None:
    print("about to read address zero", file=sys.stderr, flush=True)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def leave(code: int) -> None:
    print("leaving", flush=True)
    os._exit(code)


def hang(_: Any) -> None:
    while True:
        time.sleep(60)


def refuse(message: str) -> None:
    raise LimitExceededError(message)


def fail(message: str) -> None:
    print("failing")
    raise KeyError(message)


def nothing_that_can_be_sent(_: Any) -> object:
    return object()


def meet(marks: list[str]) -> bool:
    """Leave a mark and wait for the other's: two of these end only if they run side by side."""
    mine, other = (Path(mark) for mark in marks)
    mine.touch()
    while not other.exists():
        time.sleep(0.01)
    return True


def loaded(module: str) -> bool:
    return module in sys.modules


def load(module: str) -> str:
    return str(import_module(module).__file__)


def processes(_: Any) -> list[int]:
    return [os.getppid(), os.getpid()]


def announce(path: str) -> None:
    """Write the process numbers of this job and of a process it started, then hang."""
    inner = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(f"{os.getpid()} {inner.pid}\n")
    hang(None)


def leave_a_process(path: str) -> None:
    """Start a process and end before it does, without an answer."""
    Path(path).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    leave(0)


def descriptors_of_a_program(_: Any) -> list[str]:
    """What a program that this job starts has open beside its streams."""
    listed = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False, check=True
    ).stdout
    return [line.rpartition(" -> ")[2] for line in listed.splitlines() if "socket:" in line]


def babble(_: Any) -> None:
    """Write something that is no message into every socket of this process."""
    for path in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(path.name)
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"\xff" * 64)
        except OSError:
            continue
    hang(None)


def prefix(_: Any) -> str:
    return sys.prefix


def variable(wanted: str) -> str | None:
    return os.environ.get(wanted)


def doubled(arrays: dict[str, Any]) -> dict[str, Any]:
    return {key: array * 2 for key, array in arrays.items()}


# The state of a worker, and what it can do.


class Account:
    def __init__(self, balance: int) -> None:
        self.balance = balance


def open_account(balance: int) -> Account:
    return Account(balance)


def deposit(account: Account, amount: int) -> int:
    if amount < 0:
        raise ValueError("a deposit is not negative")
    account.balance += amount
    return account.balance


def crash_with(_: Any, payload: Any) -> None:
    crash(payload)


def hang_with(_: Any, payload: Any) -> None:
    hang(payload)


def babble_with(_: Any, payload: Any) -> None:
    babble(payload)


def process_of(_: Any, __: Any) -> int:
    return os.getpid()


# Members of groups.


def place(member: Member, payload: Any) -> list[Any]:
    return [member.rank, member.size, member.port, member.folder, payload]


def talk(member: Member, _: Any) -> str:
    """Rank 0 greets everybody else over the port."""
    if member.rank == 0:
        with socket.create_server((_LOOPBACK, member.port)) as server:
            for _other in range(member.size - 1):
                server.accept()[0].sendall(b"hello")
        return "greeted"
    return _connect(member.port).recv(5).decode()


def leave_files(member: Member, _: Any) -> list[str]:
    """Wait until all members have left a file, and list them."""
    folder = Path(member.folder)
    (folder / str(member.rank)).touch()
    while len(found := sorted(path.name for path in folder.iterdir())) < member.size:
        time.sleep(0.01)
    return found


def rely_on_rank(member: Member, ends: dict[str, str]) -> None:
    """All but rank 0 wait for it, and fail when it ends its way: they are victims."""
    print(f"rank {member.rank} speaks", flush=True)
    if member.rank:
        connection = _connect(member.port)
        connection.sendall(b"here")
        if not connection.recv(1):
            if ends["victims"] == "abort":
                os.abort()
            raise ConnectionError("connection closed by peer")
    # The server is bound here, so that nothing closes it before the process ends.
    server = socket.create_server((_LOOPBACK, member.port))
    connections = [server.accept()[0] for _ in range(member.size - 1)]
    for connection in connections:
        connection.recv(4)
    globals()[ends["by"]](7)


def announce_member(member: Member, folder: str) -> None:
    """Say which processes there are and where the group's folder is, then hang."""
    inner = subprocess.Popen(["sleep", "600"])
    note = Path(folder) / f"{member.rank}.partial"
    note.write_text(f"{os.getpid()} {inner.pid} {member.folder}")
    note.rename(Path(folder) / f"{member.rank}.note")
    hang(None)


def hang_after_first(member: Member, _: Any) -> None:
    print(f"rank {member.rank} of {member.size}", flush=True)
    if member.rank:
        hang(None)


def sum_of_ranks(member: Member, values: Any) -> Any:
    """A reduction over gloo, each rank adding its part."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", f"file://{member.folder}/store", rank=member.rank, world_size=member.size
    )
    part = torch.from_numpy(values) * (member.rank + 1)
    dist.all_reduce(part)
    return part.numpy()


def _connect(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection((_LOOPBACK, port))
        except ConnectionRefusedError:
            time.sleep(0.01)


def leave_a_file(*_: Any) -> str:
    """In the folder for temporary files; its name."""
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    return path
