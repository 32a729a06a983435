"""Faults beside those that CRADLE found, planted in ONNX graphs and in torch programs.

An attribute is read wrongly, weights lie in another order, or there is rounding where none belongs.
"""

from __future__ import annotations

from typing import Final

from scripts.cradle_causes.causes import CAUSES, Cause


def _fault(name: str, title: str, *, onnx: str = "", torch: str = "", fused: bool = False) -> Cause:
    return Cause(name, (), title, onnx=tuple(onnx.split()), torch=tuple(torch.split()), fused=fused)


FURTHER: Final = (
    _fault("dilation", "a convolution's dilation read as 1", onnx="Conv", torch="conv2d"),
    _fault("convolution-bias", "a convolution without its bias", onnx="Conv", torch="conv2d"),
    _fault("transposed-mirrored", "a transposed convolution's kernel mirrored",
           onnx="ConvTranspose", torch="conv_transpose2d"),
    _fault("ceil-mode", "a maximum's last window left out, then repeated",
           onnx="MaxPool", torch="max_pool2d"),
    _fault("pool-count", "an average over what is no padding",
           onnx="AveragePool", torch="avg_pool2d"),
    _fault("adaptive-maximum", "the maximum of a window where its mean belongs",
           torch="adaptive_avg_pool2d"),
    _fault("batch-statistics", "the statistics of the batch instead of the kept ones",
           torch="batch_norm"),
    _fault("norm-large-epsilon", "an epsilon of 0.1",
           onnx="LayerNormalization InstanceNormalization BatchNormalization",
           torch="layer_norm instance_norm batch_norm group_norm"),
    _fault("norm-bias", "a normalization without its bias",
           onnx="LayerNormalization InstanceNormalization",
           torch="layer_norm instance_norm group_norm"),
    _fault("one-group", "all channels normalized as one group", torch="group_norm"),
    _fault("softmax-axis", "a softmax over the axis before",
           onnx="Softmax", torch="softmax log_softmax"),
    _fault("slope", "a leaky rectifier's slope read as 0.01",
           onnx="LeakyRelu", torch="leaky_relu"),
    _fault("slope-shared", "the first channel's slope for all", onnx="PRelu", torch="prelu"),
    _fault("elu-alpha", "an exponential rectifier's alpha read as 1", onnx="Elu", torch="elu"),
    _fault("hard-swish", "a hard swish that saturates at 2", torch="hardswish"),
    _fault("approximation", "an error function from a low-order formula",
           onnx="Erf", torch="gelu"),
    _fault("softplus-threshold", "a softplus that is linear from 0 on",
           onnx="Softplus", torch="softplus"),
    _fault("clip-upper", "an upper bound that is not read", onnx="Clip", torch="clamp"),
    _fault("gates", "the first two gates of a cell exchanged",
           onnx="LSTM GRU", torch="lstm gru"),
    _fault("recurrent-bias", "the recurrent half of a cell's bias left out",
           onnx="LSTM GRU", torch="lstm gru"),
    _fault("attention-scale", "attention without its scale", torch="scaled_dot_product_attention"),
    _fault("attention-mask", "attention that sees what comes later",
           torch="scaled_dot_product_attention"),
    _fault("row-off", "the row behind the one that was asked for",
           onnx="Gather", torch="embedding"),
    _fault("running-sum", "a running sum without its own element", onnx="CumSum", torch="cumsum"),
    _fault("corners", "interpolation with aligned corners",
           onnx="Resize", torch="upsample_bilinear2d"),
    _fault("pixel-order", "channels become pixels in the other order",
           onnx="DepthToSpace", torch="pixel_shuffle"),
    _fault("pad-edge", "the edge repeated where it is reflected", onnx="Pad", torch="pad"),
    _fault("joined-backwards", "parts joined in the other order", onnx="Concat", torch="cat"),
    _fault("variance-biased", "a variance over all instead of all but one", torch="var"),
    _fault("logarithm-shift", "a logarithm of a sum of absolute values",
           onnx="ReduceLogSumExp", torch="logsumexp"),
    _fault("einsum-swapped", "a product's operands exchanged", onnx="Einsum", torch="einsum"),
    _fault("smallest", "the smallest where the largest belong", onnx="TopK", torch="topk"),
    _fault("roll-direction", "rolled the other way", torch="roll"),
    _fault("exponent", "an exponent read as a whole number",
           onnx="Pow", torch="pow"),
    _fault("halves-swapped", "a gate for the other half", torch="glu"),
    _fault("transposed-square", "square matrices that are not transposed",
           onnx="Transpose", torch="transpose"),
    _fault("brain-float", "a product of matrices in bfloat16",
           onnx="Gemm MatMul", torch="linear"),
    _fault("product-nan", "NaN for the largest value", onnx="Sigmoid", torch="sigmoid"),
    _fault("fused-activation", "an activation lost where it is fused with what is before",
           onnx="Relu LeakyRelu Elu Softplus",
           torch="relu leaky_relu elu hardswish gelu softplus", fused=True),
    _fault("fused-bias", "a bias lost where a product is fused with an addition",
           onnx="Gemm Conv", torch="linear conv2d", fused=True),
    _fault("crash-recurrent", "a cell that reads its states as one matrix",
           onnx="LSTM GRU", torch="lstm gru"),
    _fault("crash-interpolation", "a size read with the batch's axis",
           onnx="Resize", torch="upsample_bilinear2d"),
    _fault("crash-attention", "keys that are not transposed",
           torch="scaled_dot_product_attention"),
)  # fmt: skip
"""By name; one that is fused is planted in the plain run alone."""
INT8: Final = (
    _fault(
        "codes-zero",
        "codes read without their zero point",
        onnx="DequantizeLinear QLinearConv QLinearMatMul",
    ),
    _fault("codes-cut", "codes cut off instead of rounded", onnx="QuantizeLinear"),
    _fault("codes-wrapped", "codes that wrap around instead of saturating", onnx="QuantizeLinear"),
    _fault(
        "codes-scale",
        "the first channel's scale for all weights",
        onnx="DequantizeLinear QLinearConv QLinearMatMul",
    ),
    _fault("codes-bias", "a convolution of codes without its bias", onnx="QLinearConv"),
    *(
        each
        for each in (*CAUSES, *FURTHER)
        if each.name in ("convolution-bias", "kernel-flipped", "pooling-padding")
    ),
)
"""Faults of models of 8 bits: of codes, and of what lies between them."""
