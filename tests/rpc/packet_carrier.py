"""Carries IP packets between two network namespaces: late, not too many at a time, and not all.

``python -m tests.rpc.packet_carrier DELAY LOSS RATE`` (seconds, share, bytes per second) prints two
descriptors of its own that keep the server's and the client's namespace, then takes ``cut`` and
``heal`` on standard input.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import socket
import struct
import sys
import time
from pathlib import Path

from tests.rpc.network import new_namespace

SERVER, CLIENT = "127.0.0.1", "127.0.0.2"
# A router's buffer: what waits longer is dropped, and TCP slows down.
_QUEUE_SECONDS = 0.4
_MTU = 1500
_TUNSETIFF, _IFF_TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFDSTADDR = 0x8914, 0x8916, 0x8918
_SIOCSIFNETMASK, _SIOCSIFMTU = 0x891C, 0x8922
_UP_AND_RUNNING = 0x41


def open_end(address: str, other: str) -> tuple[int, int]:
    """A new namespace with a TUN device at `address`; its descriptor and the device's.

    Raises
    ------
    OSError
        If that is not permitted.
    """
    namespace = new_namespace()
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", b"link", _IFF_TUN_WITHOUT_HEADER))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:

        def set_up(device: bytes) -> None:
            flags = struct.pack("16sH22x", device, _UP_AND_RUNNING)
            fcntl.ioctl(control, _SIOCSIFFLAGS, flags)

        def give(device: bytes, request: int, value: str) -> None:
            packed = struct.pack("<HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, request, struct.pack("16s16s8x", device, packed))

        # The loopback device takes all of 127.0.0.0/8 as it comes up; the other end's address must
        # be reached over the link.
        set_up(b"lo")
        give(b"lo", _SIOCSIFADDR, address)
        give(b"lo", _SIOCSIFNETMASK, "255.255.255.255")
        give(b"link", _SIOCSIFADDR, address)
        give(b"link", _SIOCSIFDSTADDR, other)
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", b"link", _MTU))
        set_up(b"link")
    # Otherwise the kernel holds such packets for forged ones.
    for name in ("all", "link"):
        Path(f"/proc/sys/net/ipv4/conf/{name}/route_localnet").write_text("1", "ascii")
    return namespace, tun


def probe() -> bool:
    """Whether two ends can be made here."""
    try:
        open_end(SERVER, CLIENT)
    except OSError:
        return False
    return True


class Carrier:
    """Takes packets from each of two devices to the other.

    Parameters
    ----------
    delay
        Seconds each packet takes.
    loss
        Share that is dropped.
    rate
        Bytes per second each way; 0 for no limit.
    """

    def __init__(self, devices: tuple[int, int], delay: float, loss: float, rate: float) -> None:
        self.cut = False
        self._devices = devices
        self._delay, self._loss, self._rate = delay, loss, rate
        self._random = random.Random(20240229)
        self._free_at = dict.fromkeys(devices, 0.0)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def timeout(self) -> float | None:
        """Seconds until the next packet is due; None while there is none."""
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None

    def take(self, device: int) -> None:
        """Take what one device has to send."""
        for _ in range(64):
            try:
                packet = os.read(device, _MTU)
            except BlockingIOError:
                return
            self._accept(device, packet)

    def deliver(self) -> None:
        """Hand over the packets that are due."""
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(self._waiting)
            if not self.cut:
                os.write(device, packet)

    def _accept(self, device: int, packet: bytes) -> None:
        if self.cut or self._random.random() < self._loss:
            return
        now = time.monotonic()
        leaves = max(now, self._free_at[device])
        if leaves - now > _QUEUE_SECONDS:
            return
        if self._rate:
            leaves += len(packet) / self._rate
        self._free_at[device] = leaves
        self._count += 1
        other = self._devices[self._devices[0] == device]
        heapq.heappush(self._waiting, (leaves + self._delay, self._count, other, packet))


def main() -> None:
    """Carry until standard input ends."""
    server_namespace, server_tun = open_end(SERVER, CLIENT)
    client_namespace, client_tun = open_end(CLIENT, SERVER)
    delay, loss, rate = map(float, sys.argv[1:])
    carrier = Carrier((server_tun, client_tun), delay, loss, rate)
    print(server_namespace, client_namespace, flush=True)
    while True:
        ready, _, _ = select.select([0, server_tun, client_tun], [], [], carrier.timeout())
        carrier.deliver()
        for device in ready:
            if device:
                carrier.take(device)
                continue
            # os.read: a line that Python has read ahead would not make `select` return.
            words = os.read(0, 4096).decode()
            if not words:
                return
            carrier.cut = words.split()[-1] == "cut"
            print("done", flush=True)


if __name__ == "__main__":
    main()
