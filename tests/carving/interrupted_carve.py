"""A carve in a process of its own, for tests that end it: PLAN WEIGHTS SUITE [FILE_SIZE_LIMIT].

Prints a line when the first prompt is carved, and carves on until it is ended. Exits as the command
line would.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tapml.carving.record import CarveProgress, carve
from tapml.compiler.reference import compile_reference
from tapml.execute.arrays import Array
from tapml.execute.executor import Executor
from tapml.models.inputs import entry_inputs
from tapml.plan import format as plan_format
from tapml_targets.errors import EXIT_INTERRUPTED, TapmlError

CONTEXT = 512


class Decoder:
    """The small Llama as far as generation needs it, without torch."""

    name = "small"
    context_length = CONTEXT
    end_tokens: frozenset[int] = frozenset()
    weights_hash = "0" * 64

    def prompt_runs(self, token_ids: Sequence[int]) -> list[tuple[str, dict[str, Array]]]:
        """One run of ``prefill``."""
        return [("prefill", entry_inputs(token_ids, 0, context_length=CONTEXT, dtype="float32"))]

    def prepare_decode(self, token_id: int, position: int) -> dict[str, Array]:
        """Inputs of ``decode``."""
        return entry_inputs((token_id,), position, context_length=CONTEXT, dtype="float32")


def tell(progress: CarveProgress) -> None:
    """Say that the first prompt is through, and by how much."""
    if progress.prompt == 2 and progress.step == 0:
        print("carving", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Carve; the exit code of the error tree."""
    plan = plan_format.unpack(Path(arguments[0]).read_bytes())
    weights = dict(np.load(arguments[1]))
    executor = Executor(plan, weights, compile_reference(plan))
    if len(arguments) > 3:
        limit = int(arguments[3])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    prompts = [(1, 2, 3, token % 100) for token in range(2000)]
    try:
        carve(Decoder(), executor, prompts, arguments[2], max_new_tokens=40, progress=tell)
    except TapmlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0
