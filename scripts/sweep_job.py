"""One shape of scripts/sweep_configurations.py on some devices, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scripts import configuration_shapes
from scripts.configuration_shapes import Shape
from scripts.oracle_in_parts import OracleInParts, imported
from scripts.support_matrix import (
    LazyCompiler,
    column_of,
    devices_of,
    run_case,
    version_of,
)
from tapml.compiler.twin import compile_twins
from tapml.oracles.oracle import Oracle

if TYPE_CHECKING:
    from scripts.support_operators import Array
    from tapml.importing.module import Module
    from tapml.matrix.running import Judging
    from tapml.verdicts.policy import Policy

TRY: Final = "scripts.sweep_job:try_shape"
DTYPE: Final = "float32"
WRITTEN: Final = Path(str(configuration_shapes.__file__))
"""What a shape computes: a cell's version depends on it."""
PART_BYTES: Final = 32 << 20
"""Of the rows of a weight that the float64 oracle takes at a time."""


def try_shape(asked: dict[str, Any]) -> dict[str, Any]:
    """Validate a shape on the devices one after the other; an outcome for each.

    `asked` has `operator` and `extents` of the shape, and the names of the `devices`.
    """
    shape = Shape(asked["operator"], tuple(asked["extents"]))
    devices = list(devices_of(asked["devices"]))
    found = {}
    with ExitStack() as stack:
        compiler = stack.enter_context(LazyCompiler())
        columns = {each.spec: column_of(each) for each in devices}
        for column in columns.values():
            stack.callback(column.close)
        for device, outcome, _ in run_case(
            ShapeCase(shape), devices, columns, compiler, lambda *_: None
        ):
            found[device.spec] = asdict(
                replace(
                    outcome,
                    made=f"{datetime.now(UTC):%Y-%m-%d}",
                    version=version_of(device.description.platform, WRITTEN),
                )
            )
            # A device that is done keeps nothing of a large weight.
            columns[device.spec].close()
    return found


@dataclass(frozen=True)
class ShapeCase:
    """A shape with inputs and weights; its oracle takes a large weight in parts."""

    shape: Shape
    dtype: str = DTYPE

    def drawn(self) -> list[list[Array]]:
        """The inputs of its one test."""
        return [self.shape.draw_inputs()]

    def imported(self, arrays: Sequence[Array]) -> Module:
        """Its plan. Raises TapmlError if it cannot be imported."""
        return imported(self.shape, arrays, self.shape.draw_weights())

    def oracle(self, mod: Module, policy: Policy) -> AbstractContextManager[Judging]:
        """What gives the expected outputs of the plan's operators."""
        if self.shape.weight_bytes <= PART_BYTES:
            return Oracle(mod.plan.operators, compile_twins, policy)
        threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
        return OracleInParts(self.shape, mod.plan.operators, PART_BYTES, policy, threads=threads)
