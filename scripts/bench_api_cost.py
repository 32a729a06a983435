"""What seeing a call of an API costs, after figure 11 of the paper.

    python scripts/bench_api_cost.py            the table
    python scripts/bench_api_cost.py --write    into docs/invariants.md

CPU microseconds of a call with one thread: plain, watched by an invariant about this API alone,
and recorded in full to learn from. Rows are made and thrown away: neither writing nor evaluating
is in them. The three alternate in short rounds; each figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from scripts.bench_invariants import SETTLED, Gpt
from scripts.marked_section import write_between
from tapml.invariants.instrument import Instruments
from tapml.invariants.modules import module_name
from tapml.invariants.needs import Needs
from tapml.invariants.record import BACKWARD, BATCH, FORWARD, STEP, ZERO_GRAD, Row
from tapml.invariants.recorder import Recorder
from tapml.invariants.relation import short_name
from tapml.invariants.repeating import Repeating

BEGIN: Final = "<!-- api cost: begin -->"
END: Final = "<!-- api cost: end -->"
ROUNDS: Final = 9
ROUND_SECONDS: Final = 0.004
KINDS: Final = ("plain", "watched", "recorded")


class Nowhere:
    """A sink that keeps nothing."""

    def write(self, rows: list[Row], *, wait: bool) -> None:
        """Throw rows away."""


class Calls:
    """Calls of APIs by name."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        small, matrix = torch.randn(16), torch.randn(64, 64)
        image, rows = torch.randn(8, 16, 12, 12), torch.randn(8, 64, 128)
        linear, conv = nn.Linear(64, 64), nn.Conv2d(16, 16, 3)
        encoder = nn.TransformerEncoderLayer(128, 4, dim_feedforward=256, batch_first=True)
        gpt, tokens = Gpt(), torch.randint(0, 256, (8, 64))
        optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
        gradients = [torch.randn_like(each) for each in gpt.parameters()]
        for parameter, gradient in zip(gpt.parameters(), gradients, strict=True):
            parameter.grad = gradient
        weight, bias = torch.randn(64, 64), torch.randn(64)
        query = torch.randn(8, 4, 64, 32)
        source = torch.randn(8, 64, requires_grad=True)
        batches = iter(DataLoader(TensorDataset(torch.randn(1 << 20, 4)), batch_size=16))

        def backward() -> None:
            torch.autograd.backward(linear(source).sum())

        def zero_grad() -> None:
            # Zeros would have to be looked at to the last one.
            torch._foreach_add_(gradients, 1.0)
            optimizer.zero_grad(set_to_none=False)

        self.all: dict[str, Callable[[], Any]] = {
            "torch.add": lambda: torch.add(small, small),
            "torch.nn.functional.relu": lambda: functional.relu(small),
            "torch.matmul": lambda: torch.matmul(matrix, matrix),
            "torch.nn.functional.linear": lambda: functional.linear(matrix, weight, bias),
            "torch.nn.functional.layer_norm": lambda: functional.layer_norm(rows, (128,)),
            "torch.conv2d": lambda: functional.conv2d(image, conv.weight, conv.bias),
            "torch.nn.functional.scaled_dot_product_attention": lambda: (
                functional.scaled_dot_product_attention(query, query, query)
            ),
            module_name(linear): lambda: linear(matrix),
            module_name(conv): lambda: conv(image),
            module_name(encoder): lambda: encoder(rows),
            FORWARD: lambda: gpt(tokens),
            BATCH: lambda: next(batches),
            BACKWARD: backward,
            ZERO_GRAD: zero_grad,
            STEP: optimizer.step,
        }


def seen(kind: str, api: str) -> AbstractContextManager[Any]:
    """A block in which calls of an API are not seen, seen alone, or seen with all others."""
    if kind == "plain":
        return nullcontext()
    needs = Needs(frozenset({api}), {}, frozenset(), gradients=False, batches=False, ranks=False)
    watched = kind == "watched"
    repeating = Repeating() if watched else None
    instruments = Instruments(
        Recorder(Nowhere(), repeating),
        (lambda: repeating.begin(repeated=repeating.repeated())) if repeating else None,
        needs=needs if watched else None,
    )
    return instruments.installed()


def cost(api: str, call: Callable[[], Any]) -> dict[str, float]:
    """Median microseconds of a call of each kind."""
    begun = time.thread_time()
    for _ in range(3):
        call()
    count = max(SETTLED, int(ROUND_SECONDS * 3 / max(time.thread_time() - begun, 1e-6)))
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS):
        for kind in KINDS if number % 2 else reversed(KINDS):
            with seen(kind, api):
                # The first meet cold caches and hooks, and no step to repeat.
                for _ in range(SETTLED):
                    call()
                begun = time.thread_time()
                for _ in range(count):
                    call()
                times[kind].append(1e6 * (time.thread_time() - begun) / count)
    return {kind: statistics.median(each) for kind, each in times.items()}


def table() -> list[str]:
    """A line for each API, from the cheapest call to the dearest."""
    found = {api: cost(api, call) for api, call in Calls().all.items()}
    lines = [
        "| API | plain, µs | watched, µs | recorded, µs | watched / plain | recorded / plain |",
        "|---" * 6 + "|",
    ]
    for api, each in sorted(found.items(), key=lambda item: item[1]["plain"]):
        plain = each["plain"]
        cells = [
            f"{each[kind]:,.0f}" if each[kind] >= 10 else f"{each[kind]:.1f}" for kind in KINDS
        ]
        ratios = [f"{each[kind] / plain:.2f}" for kind in KINDS[1:]]
        lines.append(f"| {short_name(api)} | {' | '.join(cells + ratios)} |")
    return lines


def main() -> int:
    """Print the table, and with ``--write`` keep it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the table into the document")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = "\n".join(table())
    print(text)
    if arguments.write:
        write_between(ROOT / "docs" / "invariants.md", BEGIN, END, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
