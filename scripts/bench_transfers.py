"""Bytes each way beside raw sockets, bare ``zmq``, bare ``websockets`` and TVM's RPC.

Each peer is a separate process on loopback and takes turns within one run, so that a busy machine
slows all. Plain ZeroMQ is compared with the raw socket on pinned cores
(`scripts.wire_peers.placement` has the reasons); without pinning all are measured.

    python -m scripts.bench_transfers --runs 5    medians and ranges of the shares, in Markdown

``scripts/bench.py --part wire`` has one run of it with the rest.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts import bench_runtime
from scripts.bench_runtime import take_turns
from scripts.wire_peers import bare_relay, bare_websockets, bare_zmq, raw_socket, tapml
from scripts.wire_peers.placement import (
    APART,
    FREE,
    ONE_CORE,
    Placement,
    fixed_placements,
    placed,
)
from scripts.wire_peers.process import ROUND_BYTES, Bytes, Peer, settle
from tapml_targets.errors import TapmlError

SIZES: Final = {"1 MB": 1 << 20, "16 MB": 16 << 20, "128 MB": 128 << 20}
# TVM's RPC takes seconds for more, and no less per byte.
_MOST_FOR_TVM: Final = 16 << 20
_SECONDS: Final = 2.0
NOT_BUILT: Final = "not built"

RAW, ZMQ, RELAY, WEBSOCKETS = "raw socket", "zmq", "zmq, handed on", "websockets"
TVM = bench_runtime.PEER
PLAIN, CURVE, WEB = "tapml, ZeroMQ", "tapml, CURVE", "tapml, WebSocket"
LOCAL = "tapml, local worker"
# The peer that each rate is compared with.
_BESIDE: Final = {ZMQ: RAW, RELAY: RAW, PLAIN: RAW, LOCAL: RAW, CURVE: RAW, WEB: WEBSOCKETS}

_Openers = Mapping[str, Callable[[], AbstractContextManager[Peer | None]]]


def row(name: str, value: Any, unit: str = "", bar: str = "", met: bool | None = None) -> Any:
    """A row of the wire's part."""
    found = {"part": "wire", "name": name, "value": value, "unit": unit, "share": ""}
    return {**found, "bar": bar, "met": met}


def measure(seconds: float = _SECONDS) -> Iterator[dict[str, Any]]:
    """Rows of the wire's bench, placement after placement; each line takes about `seconds`."""
    pair: _Openers = {
        RAW: raw_socket.open_peer,
        ZMQ: bare_zmq.open_peer,
        PLAIN: tapml.open_zmq,
        LOCAL: tapml.open_worker,
    }
    fixed = fixed_placements()
    if not fixed:
        yield row("placements", "free alone: this machine has one core, or lets nobody choose")
    for placement in fixed:
        yield from _transfers(placement, pair, seconds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        everybody: _Openers = {
            **pair,
            RELAY: bare_relay.open_peer,
            WEBSOCKETS: bare_websockets.open_peer,
            CURVE: lambda: tapml.open_curve(folder),
            WEB: tapml.open_websocket,
            TVM: lambda: _open_tvm(folder),
        }
        yield from _transfers(FREE, everybody, seconds, decided=bool(fixed))


class _Tvm:
    """TVM's RPC in the peers' terms."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._sources: dict[int, Any] = {}

    def upload(self, data: Bytes) -> None:
        self._peer.upload(data.view(np.float32))

    def download(self, nbytes: int) -> Bytes:
        if nbytes not in self._sources:
            self._sources[nbytes] = np.zeros(nbytes // 4, np.float32)
        self._peer.download(self._sources[nbytes])
        return np.empty(0, np.uint8)


@contextmanager
def _open_tvm(folder: Path) -> Iterator[Peer | None]:
    if importlib.util.find_spec("cloudpickle") is None:
        yield None
        return
    shared_object = folder / "add.so"
    bench_runtime._compile_add(shared_object)
    with bench_runtime._peer(shared_object) as peer:
        yield _Tvm(peer)


def _transfers(
    placement: Placement, openers: _Openers, seconds: float, decided: bool = False
) -> Iterator[dict[str, Any]]:
    """Rows of one placement; `decided` if others compare plain ZeroMQ with raw sockets."""
    with ExitStack() as stack:
        go_to_client = stack.enter_context(placed(placement))
        peers: dict[str, Peer] = {}
        for name, opener in openers.items():
            with suppress(TapmlError, RuntimeError, LookupError):
                peer = stack.enter_context(opener())
                if peer is not None:
                    peers[name] = peer
        go_to_client()
        settle()
        for size, nbytes in SIZES.items():
            for direction in ("upload", "download"):
                what = f"{placement.name}: {direction} {size}"
                count = max(1, ROUND_BYTES // nbytes)
                rates = _rates(peers, direction, nbytes, count, seconds)
                yield from rows_of(what, rates, openers, decided)
                if count > 1:
                    # Each transfer follows those of all others, so that no process has warm caches.
                    rates = _rates(peers, direction, nbytes, 1, seconds)
                    yield from (_unjudged(f"{what}, cold", who, rates) for who in rates)


def _rates(
    peers: dict[str, Peer], direction: str, nbytes: int, count: int, seconds: float
) -> dict[str, float]:
    """MB/s of each peer that moves `nbytes`, waits for the answer, and again, `count` times."""
    # Like the tensors of a session, each transfer has its own memory.
    around = max(1, ROUND_BYTES // nbytes)
    data = np.random.default_rng(20240229).integers(0, 256, (around, nbytes), np.uint8)
    arguments: list[Any] = list(data) if direction == "upload" else [nbytes] * around
    turns = {
        name: partial(
            _in_a_row,
            getattr(peer, direction),
            cycle(arguments),
            count,
            deque(maxlen=around if around > 1 else 0),
        )
        for name, peer in peers.items()
        if name != TVM or nbytes <= _MOST_FOR_TVM
    }
    taken = take_turns(turns, seconds)
    return {name: count * nbytes / each / 1e6 for name, each in taken.items()}


def _in_a_row(
    transfer: Callable[[Any], object], arguments: Iterator[Any], count: int, kept: deque[object]
) -> None:
    for argument in islice(arguments, count):
        kept.append(transfer(argument))


def rows_of(
    what: str, rates: Mapping[str, float], expected: Collection[str], decided: bool = False
) -> Iterator[dict[str, Any]]:
    """One transfer's rows: each peer's rate in MB/s, its share of the bare one's, and its bars.

    With `decided` plain ZeroMQ's share of a raw socket is reported without a bar.
    """
    bars: dict[str, list[tuple[str, float]]] = {
        PLAIN: [],
        CURVE: [("200 MB/s", 200.0)],
        WEB: [],
    }
    # There is no bar without the peer.
    if RAW in rates and not decided:
        bars[PLAIN].append(("60 % of the raw socket", 0.6 * rates[RAW]))
    if WEBSOCKETS in rates:
        bars[WEB].append(("80 % of websockets", 0.8 * rates[WEBSOCKETS]))
    if TVM in rates:
        bars[PLAIN].append(("10 times TVM's RPC", 10 * rates[TVM]))
    for who in expected:
        if who in rates:
            found = _unjudged(what, who, rates)
            texts = [f"{name} ({least:.0f})" for name, least in bars.get(who, [])]
            if texts:
                found["met"] = all(rates[who] >= least for _, least in bars[who])
            if who == PLAIN and decided and RAW in rates:
                texts.append(f"raw socket not judged here ({0.6 * rates[RAW]:.0f})")
            found["bar"] = "; ".join(texts)
            yield found
        elif who != TVM:
            yield row(f"{what}, {who}", NOT_BUILT)


def _unjudged(what: str, who: str, rates: Mapping[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = row(f"{what}, {who}", round(rates[who]), "MB/s")
    beside = _BESIDE.get(who, "")
    if beside in rates:
        found["share"] = f"{100 * rates[who] / rates[beside]:.0f} % of {beside}"
    return found


def _runs(text: str) -> int:
    """Parse the number of runs."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a number of runs from 1, got {text!r}")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    """Measure several times and print the shares as a Markdown table."""
    parser = argparse.ArgumentParser(description="Transfers beside bare ones, several runs.")
    parser.add_argument("--runs", type=_runs, default=5, metavar="N")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for number in range(options.runs):
        load = os.getloadavg()[0]
        rows += measure()
        print(f"run {number + 1} of {options.runs}, load {load:.1f}", file=sys.stderr, flush=True)
    print("\n".join(table(rows)))


def table(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The shares of several runs, up / down: medians, and in brackets the lowest and highest."""
    shares: dict[str, list[int]] = defaultdict(list)
    for each in rows:
        if each["share"]:
            shares[each["name"]].append(int(each["share"].split()[0]))
    whats = ("1 MB", "1 MB, cold", *list(SIZES)[1:])
    yield f"| | {' | '.join(whats)} |"
    yield "|---" * (1 + len(whats)) + "|"
    for placement in (APART, ONE_CORE, FREE.name):
        for who, beside in _BESIDE.items():
            cells = [
                " / ".join(
                    _median(found)
                    for direction in ("upload", "download")
                    if (found := shares.get(f"{placement}: {direction} {what}, {who}"))
                )
                for what in whats
            ]
            if any(cells):
                line = " | ".join(cell or "-" for cell in cells)
                yield f"| {placement}: {who}, of {beside} | {line} |"


def _median(shares: list[int]) -> str:
    return f"{statistics.median(shares):.0f} % ({min(shares)} to {max(shares)})"


if __name__ == "__main__":
    main()
