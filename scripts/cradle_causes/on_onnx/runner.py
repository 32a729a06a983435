"""Loads an ONNX model into ONNX's reference implementation and plants a fault in its operators."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.cradle_causes.further import FURTHER, INT8
from scripts.cradle_causes.on_onnx import attributes, codes
from scripts.cradle_causes.on_onnx.mended import mend_reference
from scripts.cradle_causes.patches import act_at
from tapml.backends.onnx_reference.runner import load as load_healthy

Run = Callable[..., Any]


def _noted(right: Run, wrong: Run) -> Run:
    """`wrong`, and a note where it gives anything else than `right`."""

    @wraps(right)
    def run(self: Any, *values: Any, **named: Any) -> Any:
        node = str(self.onnx_node.output[0])
        try:
            found = wrong(lambda *v, **n: right(self, *v, **n), *values, **named)
        except Exception:
            act_at(node)
            raise
        expected = right(self, *values, **named)[0]
        scale = np.abs(expected).max(initial=0)
        if (
            found[0].shape != expected.shape
            or not np.abs(np.subtract(found[0], expected, dtype=float)).max(initial=0)
            <= 1e-5 * scale
        ):
            act_at(node)
        return found

    return run


def _norm_epsilon(right: Run, *values: Any, epsilon: Any = None, **named: Any) -> Any:
    return right(*values, epsilon=0.0, **named)


def _norm_deviation(
    right: Run, x: Any, gain: Any, bias: Any, mean: Any, variance: Any, epsilon: Any = None,
    **named: Any,
) -> Any:  # fmt: skip
    small = epsilon or 1e-5
    variance = ((variance + small) ** 2 - small).astype(variance.dtype)
    return right(x, gain, bias, mean, variance, epsilon=epsilon, **named)


def _explicit(x: Any, named: dict[str, Any], window: Any) -> list[tuple[int, int]]:
    """What a node pads on both sides of every axis."""
    rank = x.ndim - 2
    strides = named.get("strides") or [1] * rank
    how = named.get("auto_pad") or "NOTSET"
    if how.startswith("SAME"):
        found = []
        for extent, size, stride in zip(x.shape[2:], window, strides, strict=True):
            total = max((-(-extent // stride) - 1) * stride + size - extent, 0)
            small, large = total // 2, total - total // 2
            found.append((small, large) if how == "SAME_UPPER" else (large, small))
        return found
    pads = named.get("pads") or [0] * 2 * rank
    return list(zip(pads[:rank], pads[rank:], strict=True))


def _padded(
    right: Run, change: Callable[[int, int], tuple[int, int]], x: Any, kernel: Any, *bias: Any,
    **named: Any,
) -> Any:  # fmt: skip
    """A convolution padded otherwise, cropped to its shape."""
    plain = right(x, kernel, *bias, **named)[0]
    sides = [change(*each) for each in _explicit(x, named, kernel.shape[2:])]
    how = {**named, "auto_pad": "NOTSET",
           "pads": [each[0] for each in sides] + [each[1] for each in sides]}  # fmt: skip
    found = right(x, kernel, *bias, **how)[0]
    return (found[tuple(slice(0, each) for each in plain.shape)],)


def _padding_symmetric(right: Run, *values: Any, **named: Any) -> Any:
    return _padded(right, lambda a, b: (max(a, b), max(a, b)), *values, **named)


def _padding_first(right: Run, *values: Any, **named: Any) -> Any:
    return _padded(right, lambda a, b: (b, a), *values, **named)


def _pooling_padding(right: Run, x: Any, count_include_pad: Any = None, **named: Any) -> Any:
    return right(x, count_include_pad=1, **named)


def _kernel_flipped(right: Run, x: Any, kernel: Any, *bias: Any, **named: Any) -> Any:
    return right(x, np.flip(kernel, tuple(range(2, kernel.ndim))).copy(), *bias, **named)


def _kernel_transposed(right: Run, x: Any, kernel: Any, *bias: Any, **named: Any) -> Any:
    square = kernel.ndim == 4 and kernel.shape[2] == kernel.shape[3]
    return right(x, kernel.swapaxes(2, 3).copy() if square else kernel, *bias, **named)


def _crash_kernel(right: Run, x: Any, kernel: Any, *bias: Any, **named: Any) -> Any:
    wrong = kernel.swapaxes(0, 1).copy()
    if wrong.shape != kernel.shape:
        np.matmul(np.zeros((1, x.shape[1])), np.zeros((wrong.shape[1], 1)))
    return right(x, wrong, *bias, **named)


def _crash_depthwise(right: Run, x: Any, kernel: Any, *bias: Any, **named: Any) -> Any:
    depthwise = named.get("group") not in (None, 1) and named["group"] == x.shape[1]
    wrong = np.reshape(kernel, (1, -1, *kernel.shape[2:])) if depthwise else kernel
    return right(x, wrong, *bias, **named)


def _crash_norm(right: Run, x: Any, gain: Any, *values: Any, **named: Any) -> Any:
    return right(x, np.zeros((1, len(gain) + 1), gain.dtype), *values, **named)


def _crash_pooling(right: Run, x: Any, kernel_shape: Any = None, **named: Any) -> Any:
    return right(x, kernel_shape=[1, *kernel_shape], **named)


def _crash_dense(right: Run, x: Any, kernel: Any, *bias: Any, **named: Any) -> Any:
    return right(x, np.swapaxes(kernel, -1, -2), *bias, **named)


_OPERATORS: Final[dict[str, tuple[tuple[str, ...], Run]]] = {
    "norm-epsilon": (("BatchNormalization",), _norm_epsilon),
    "norm-deviation": (("BatchNormalization",), _norm_deviation),
    "padding-symmetric": (("Conv",), _padding_symmetric),
    "padding-first": (("Conv",), _padding_first),
    "pooling-padding": (("AveragePool",), _pooling_padding),
    "kernel-flipped": (("Conv",), _kernel_flipped),
    "kernel-transposed": (("Conv",), _kernel_transposed),
    "crash-kernel": (("Conv",), _crash_kernel),
    "crash-depthwise": (("Conv",), _crash_depthwise),
    "crash-norm": (("BatchNormalization",), _crash_norm),
    "crash-pooling": (("AveragePool", "MaxPool"), _crash_pooling),
    "crash-dense": (("Gemm", "MatMul"), _crash_dense),
}


class _Whole:
    """Whether the model runs as a whole."""

    runs = False

    @classmethod
    def of(cls, run: Run) -> Run:
        """A run of the whole model, or of it as far as a node."""

        def whole(*given: Any) -> Any:
            cls.runs = True
            try:
                return run(*given)
            finally:
                cls.runs = False

        return whole

    @classmethod
    def only(cls, wrong: Run) -> Run:
        """A fault of the whole model, as one of fused layers is."""
        return lambda right, *v, **n: wrong(right, *v, **n) if cls.runs else right(*v, **n)


def _module_of(kind: str) -> Any:
    """The module of an operator: BatchNormalization is in op_batch_normalization."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()
    found = _MODULES.get(kind, f"op_{snake}")
    return import_module(f"onnx.reference.ops.{found}")


_MODULES: Final = {"MatMul": "op_matmul", "TopK": "op_topk", "PRelu": "op_prelu",
                   "QLinearMatMul": "op_qlinear_matmul"}  # fmt: skip


def _kinds_and_run(variant: str) -> tuple[tuple[str, ...], Run]:
    if variant in _OPERATORS:
        return _OPERATORS[variant]
    fault = next(each for each in (*FURTHER, *INT8) if each.name == variant)
    run = {**attributes.FAULTS, **codes.FAULTS}[variant]
    return fault.onnx, _Whole.only(run) if fault.fused else run


def load(model: Path, variant: str) -> Any:
    """Load the model, and plant the fault that a variant names."""
    mend_reference()
    if not variant:
        return load_healthy(model, "")
    kinds, wrong = _kinds_and_run(variant)
    for kind in kinds:
        # One class for each form that the operator had: BatchNormalization_9.
        for name, each in vars(_module_of(kind)).items():
            if name.partition("_")[0] == kind and isinstance(each, type) and "_run" in vars(each):
                operator: Any = each
                operator._run = _noted(operator._run, wrong)
    runner: Any = load_healthy(model, "")
    runner.run, runner.prefix = _Whole.of(runner.run), _Whole.of(runner.prefix)
    return runner
