"""The ATen operations a torch sub-graph may hold.

A suite may come from anyone, and torch's operations open files, draw random numbers, read memory
that was never written and change tensors in place. What is listed here computes tensors from
tensors and nothing else, checks its indices, and gives a tensor whose size can be told beforehand.
"""

from __future__ import annotations

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ELEMENTWISE: Final = _names("""
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not
    bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min cos cosh div elu eq erf exp expm1
    floor floor_divide fmod ge gelu gt hardsigmoid hardswish hardtanh isfinite isinf isnan
    leaky_relu le lerp log log10 log1p log2 logaddexp logical_and logical_not logical_or
    logical_xor lt masked_fill maximum minimum mul ne neg pow prelu reciprocal relu relu6
    remainder round rsqrt rsub selu sigmoid sign silu sin sinh softplus softshrink sqrt square
    sub tan tanh threshold trunc where
""")
"""Each element from the elements at its place; shapes are broadcast."""

KEEPING: Final = _names("""
    _log_softmax _native_batch_norm_legit_no_training _softmax all amax amin any argmax argmin
    argsort cumprod cumsum linalg_vector_norm logsumexp max mean median min native_group_norm
    native_layer_norm prod sort std sum topk var var_mean
    alias cat chunk clone contiguous detach diagonal flatten flip lift_fresh_copy narrow permute
    pixel_shuffle reshape roll select select_scatter slice slice_scatter split split_with_sizes
    squeeze stack t transpose tril triu unbind unflatten unsqueeze view
    index_put isin masked_scatter scatter scatter_add scatter_reduce
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d
    avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices
    _to_copy full_like ones_like scalar_tensor to type_as zeros_like
""")
"""No result has more elements than all operands together, a few for its margins apart."""

GROWING: Final = _names("""
    addbmm addmm addmv baddbmm bmm convolution dot linear matmul mm mv outer
    scaled_dot_product_attention
    broadcast_to constant_pad_nd expand expand_as pad repeat tile reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d
    embedding gather index index_select take
    upsample_bilinear2d upsample_bicubic2d upsample_nearest2d
    arange eye full linspace new_full new_ones new_zeros ones zeros
""")
"""How large the result is follows from shapes and integers in a way of their own."""

ALLOWED: Final = ELEMENTWISE | KEEPING | GROWING
"""Names of operations (packets); of their overloads those that change nothing in place."""
