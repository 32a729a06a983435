"""Classifiers of digits in whole numbers of 8 bits, as ONNX Runtime's own quantizer makes them.

One keeps layers of floats between `QuantizeLinear` and `DequantizeLinear`; the other has layers of
codes, `QLinearConv` and `QLinearMatMul`. Both have a scale for each channel of the weights, and
were calibrated on a part of the data, so that codes saturate.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.model_set.seeded_onnx import make_seeded

_SEEDED: Final = "digits-same-upper"
_CALIBRATED: Final = 4
_OPSET: Final = 21
"""The first of which ONNX's reference implementation has both operators."""
FORMS: Final = {"digits-int8": "QDQ", "digits-int8-codes": "QOperator"}


def make_int8(folder: Path) -> None:
    """Write each model and its data, where they are not there."""
    for name, form in FORMS.items():
        model = folder / f"{name}.onnx"
        if not model.exists():
            make_seeded(_SEEDED, model, model.with_suffix(".npz"))
            quantize(model, np.load(model.with_suffix(".npz"))["x"][:_CALIBRATED], form)


def quantize(model: Path, images: Any, form: str) -> None:
    """Replace an ONNX model by one of 8 bits, with normalizations folded into convolutions.

    Parameters
    ----------
    images
        What ranges are taken from, as its one input.
    form
        ``QDQ``, or ``QOperator`` for ONNX's own layers of codes.
    """
    import onnx
    import onnxruntime
    from onnxruntime import quantization

    class Images(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self._given: Iterator[dict[str, Any]] = iter([{name: images}])

        def get_next(self) -> dict[str, Any] | None:
            return next(self._given, None)

    logging.getLogger().addFilter(lambda record: "pre-process" not in record.getMessage())
    with tempfile.TemporaryDirectory() as scratch:
        folded = Path(scratch) / "folded.onnx"
        newer = onnx.version_converter.convert_version(onnx.load(model), _OPSET)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folded)
        onnxruntime.InferenceSession(newer.SerializeToString(), options)
        # With codes from -128 the zero point of what is never negative is not 0.
        codes, activations = (form == "QOperator"), ("QUInt8" if form == "QOperator" else "QInt8")
        quantization.quantize_static(
            folded, model, Images(newer.graph.input[0].name),
            quant_format=quantization.QuantFormat[form],
            # Of the others the quantizer makes operators of ONNX Runtime alone.
            op_types_to_quantize=["Conv", "MatMul"] if codes else None,
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            activation_type=quantization.QuantType[activations],
        )  # fmt: skip
