"""``tapml run`` of a model that continues no text: vectors, classes, tensors, its own text."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from tapml.execute.generate import NEW_TOKENS
from tapml.models.input_files import read_inputs

if TYPE_CHECKING:
    from tapml.package.target_model import TargetModel

_SHOWN: Final = 4


def run_once(model: TargetModel, arguments: argparse.Namespace, ready: float) -> int:
    """Print what a case gives: a line for people, or rows as JSON."""
    workload: Any = model.workload
    array = None if arguments.input is None else read_inputs(arguments.input)
    case = workload.from_arguments(
        arguments.prompt or (), arguments.tokens or (), array, lambda: model.codec
    )
    started = time.monotonic()
    wanted = arguments.max_new_tokens or NEW_TOKENS
    made = model.run(case, max_new_tokens=wanted)
    rows, outputs = workload.rows(case, made), workload.by_name(made)
    seconds = time.monotonic() - started
    result = workload.describe(case, rows)
    # An encoder-decoder writes: where it was given a text, a text.
    written = workload.writes
    if written and arguments.prompt:
        result = model.codec.decode(tuple(outputs["tokens"].tolist()))
    if arguments.json:
        data = {
            "model": model.name,
            "device": model.device.name,
            "notes": list(model.notes),
            "result": result,
            "rows": [] if written else [[float(each) for each in row] for row in rows],
            "outputs": {name: each.tolist() for name, each in outputs.items()},
            "ready_seconds": ready,
            "seconds": seconds,
        }
        print(json.dumps(data, indent=1))
        return 0
    print(result)
    if workload.subject == "vectors":
        for row in rows[:_SHOWN]:
            print(" ", *(f"{each:.4f}" for each in row[:_SHOWN]), "..." * (len(row) > _SHOWN))
    if written:
        tokens = outputs["tokens"]
        if len(tokens) < wanted and int(tokens[-1]) not in model.end_tokens:
            print(f"stopped at the context of {model.context_length} tokens", file=sys.stderr)
    print(f"{seconds * 1e3:.1f} ms; ready in {ready:.2f} s", file=sys.stderr)
    return 0
