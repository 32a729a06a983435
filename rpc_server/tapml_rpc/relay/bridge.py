"""A ZeroMQ socket's way through the relay: a private unix socket, joined with a dialled one.

libzmq opens its connections itself, and knows nothing of tunnels. A unix socket costs one more
copy, and the caller learns at once why a relay refuses.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Final

from tapml_rpc.flow import Flow, Forwarder

_ACCEPT_SECONDS: Final = 10.0
_lock = threading.Lock()
_running: dict[int, Forwarder] = {}


def bridged(dialled: socket.socket) -> str:
    """An ``ipc://`` address for one connection, which is joined with `dialled`.

    Only this user can enter its folder, which is removed at the connection's first byte; a second
    connection is refused.
    """
    folder = Path(tempfile.mkdtemp(prefix="tapml-"))
    try:
        path = folder / "relay"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(_ACCEPT_SECONDS)
    except BaseException:
        dialled.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    threading.Thread(target=_accept, args=(folder, listener, dialled), daemon=True).start()
    return f"ipc://{path}"


def _accept(folder: Path, listener: socket.socket, dialled: socket.socket) -> None:
    try:
        inside, _ = listener.accept()
    except OSError:
        dialled.close()
        return
    finally:
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
    for endpoint in (inside, dialled):
        endpoint.setblocking(False)
    forwarder = _forwarder()
    forwarder.post(partial(forwarder.add, Flow(inside, dialled)))


def _forwarder() -> Forwarder:
    """The forwarder of this process; a forked child makes its own."""
    with _lock:
        forwarder = _running.get(os.getpid())
        if forwarder is None:
            forwarder = _running[os.getpid()] = Forwarder()
            run = partial(forwarder.run, lambda: False, 60.0)
            threading.Thread(target=run, name="tapml-bridge", daemon=True).start()
        return forwarder
