"""What the causes are called, where they can act, and what the paper says of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_CONVOLUTIONS: Final = ("Conv1D", "Conv2D")
_NORM: Final = ("BatchNormalization",)
_CONV: Final = ("Conv",)
_DEPTHWISE: Final = ("DepthwiseConv2D", "SeparableConv2D")


@dataclass(frozen=True)
class Cause:
    """One bug.

    Attributes
    ----------
    name
        The variant of the faulty backends.
    kinds
        Layers that it can act on.
    title
        In words.
    root
        The row of the paper's table III; empty for a crash.
    everywhere
        Whether it is a bug of Keras, so that every backend has it.
    onnx
        Operators of ONNX that it can act on; empty for none.
    torch
        PyTorch's operations that it can act on.
    fused
        Whether it is one of layers together: alone each of them is right.
    """

    name: str
    kinds: tuple[str, ...]
    title: str
    root: str = ""
    everywhere: bool = False
    onnx: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    fused: bool = False

    def acts_on(self, suffix: str) -> tuple[str, ...]:
        """The layers or operators of a model that it can act on."""
        return {".keras": self.kinds, ".onnx": self.onnx, ".module": self.torch}[suffix]


CAUSES: Final = (
    Cause("norm-epsilon", ("BatchNormalization",),
          "the root of the variance without epsilon (figure 2)", "batch normalization", onnx=_NORM),
    Cause("norm-deviation", ("BatchNormalization",),
          "the variance where the deviation belongs", "batch normalization", onnx=_NORM),
    Cause("padding-symmetric", _CONVOLUTIONS,
          "`same` pads both sides alike, then crops", "padding scheme", onnx=_CONV),
    Cause("padding-first", _DEPTHWISE,
          "`same` puts the odd row first", "padding scheme", onnx=_CONV),
    Cause("pooling-padding", ("AveragePooling2D",),
          "the average counts the padding (figure 6)", "pooling scheme", onnx=("AveragePool",)),
    Cause("kernel-flipped", (*_CONVOLUTIONS, "SeparableConv2D"),
          "kernels mirrored, as a true convolution has them", "parameter organization", onnx=_CONV),
    Cause("kernel-transposed", ("Conv2D", "SeparableConv2D"),
          "kernels with height and width exchanged", "parameter organization", onnx=_CONV),
    Cause("crash-kernel", (*_CONVOLUTIONS, "SeparableConv2D"),
          "a kernel with inputs and outputs exchanged", onnx=_CONV),
    Cause("crash-depthwise", _DEPTHWISE,
          "a depthwise kernel without its channels", onnx=_CONV),
    Cause("crash-norm", ("BatchNormalization",), "a gain of the wrong shape",
          everywhere=True, onnx=_NORM),
    Cause("crash-pooling", ("MaxPooling2D", "AveragePooling2D"),
          "a window with the batch's axis", everywhere=True, onnx=("AveragePool", "MaxPool")),
    Cause("crash-dense", ("Dense",), "a transposed kernel",
          everywhere=True, onnx=("Gemm", "MatMul")),
)  # fmt: skip
