"""The ATen operations a torch sub-graph may hold.

A suite may come from anyone, and torch's operations open files, draw random numbers, read memory
that was never written and change tensors in place. What is listed here computes tensors from
tensors and nothing else, and checks its indices.
"""

from __future__ import annotations

from typing import Final

_ELEMENTWISE: Final = """
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not
    bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min cos cosh div elu eq erf exp expm1
    floor floor_divide fmod ge gelu gt hardsigmoid hardswish hardtanh isfinite isinf isnan
    leaky_relu le lerp log log10 log1p log2 logaddexp logical_and logical_not logical_or
    logical_xor lt masked_fill maximum minimum mul ne neg pow prelu reciprocal relu relu6
    remainder round rsqrt rsub selu sigmoid sign silu sin sinh softplus softshrink sqrt square
    sub tan tanh threshold trunc where
"""
_REDUCTIONS: Final = """
    _log_softmax _softmax all amax amin any argmax argmin argsort cumprod cumsum linalg_vector_norm
    logsumexp max mean median min native_group_norm native_layer_norm
    _native_batch_norm_legit_no_training prod sort std sum topk var var_mean
"""
_PRODUCTS: Final = """
    addbmm addmm addmv baddbmm bmm convolution dot einsum linear matmul mm mv outer
    scaled_dot_product_attention
"""
_SHAPES: Final = """
    alias broadcast_to cat chunk clone constant_pad_nd contiguous detach diagonal expand expand_as
    flatten flip lift_fresh_copy narrow pad permute pixel_shuffle repeat reshape roll select slice
    split split_with_sizes squeeze stack t tile transpose tril triu unbind unflatten unfold
    unsqueeze view reflection_pad1d reflection_pad2d reflection_pad3d replication_pad2d
    replication_pad3d select_scatter slice_scatter
"""
_INDEXING: Final = """
    embedding gather index index_put index_select isin masked_scatter one_hot scatter scatter_add
    scatter_reduce take
"""
_IMAGES: Final = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d
    avg_pool2d avg_pool3d col2im grid_sampler_2d im2col max_pool2d_with_indices
    max_pool3d_with_indices upsample_bilinear2d upsample_bicubic2d upsample_nearest2d
"""
_MAKING: Final = """
    _to_copy arange eye fill full full_like linspace new_full new_ones new_zeros ones ones_like
    scalar_tensor to type_as zeros zeros_like
"""

ALLOWED: Final = frozenset(
    " ".join((_ELEMENTWISE, _REDUCTIONS, _PRODUCTS, _SHAPES, _INDEXING, _IMAGES, _MAKING)).split()
)
"""Names of operations (packets); of their overloads those that change nothing in place."""
