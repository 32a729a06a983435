"""ONNX's reference implementation without the faults that it has today.

A cause is planted in what is right otherwise. ``docs/bugs/`` has a script for each of these faults.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def mend_reference() -> None:
    """Normalize by the weights in every opset, and pool over all spatial axes."""
    from onnx.reference.ops.op_batch_normalization import BatchNormalization_9
    from onnx.reference.ops.op_global_max_pool import GlobalMaxPool

    normalize: Any = BatchNormalization_9._run

    def norm(self: Any, *values: Any, epsilon: Any = None, **_: Any) -> Any:
        # With a momentum it takes the statistics of the batch.
        return normalize(self, *values, epsilon=epsilon, momentum=None)

    def pool(_: Any, x: Any) -> Any:
        return (np.max(x, axis=tuple(range(2, x.ndim)), keepdims=True),)

    mended: dict[Any, Any] = {BatchNormalization_9: norm, GlobalMaxPool: pool}
    for operator, run in mended.items():
        operator._run = run
