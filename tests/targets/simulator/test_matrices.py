"""Products of matrices that lie in the lanes of a wave: wmma and simdgroup matrices."""

from __future__ import annotations

import numpy as np
import pytest

from tapml_targets.errors import RemoteError
from tests.targets.simulator.running import run

A, B = np.random.default_rng(0).random((2, 16, 16)).astype(np.float16)
PRODUCT = A.astype(np.float32) @ B.astype(np.float32).T

WMMA = """\
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void f(half* a, half* b, float* c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
  wmma::fill_fragment(z, 0.0f);
  wmma::load_matrix_sync(x, a, 16);
  wmma::load_matrix_sync(y, b, 16);
  wmma::mma_sync(z, x, y, z);
  for (int i = 0; i < z.num_elements; ++i) z.x[i] *= 2.0f;
  wmma::store_matrix_sync(c, z, 16, wmma::mem_row_major);
}
"""
SIMDGROUP = """\
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
kernel void f(device half* a [[buffer(0)]], device half* b [[buffer(1)]],
              device float* c [[buffer(2)]]) {
  simdgroup_half8x8 x[1], y[1];
  simdgroup_float8x8 z = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (int k = 0; k < 2; ++k) {
    simdgroup_load(x[0], a + 8 * k, 16, 0, false);
    simdgroup_load(y[0], b, 16, ulong2(8 * k, 0), true);
    simdgroup_multiply_accumulate(z, x[0], y[0], z);
  }
  simdgroup_store(z, c, 8, 0, false);
}
"""


def test_wmma_multiplies_fragments() -> None:
    *_, c = run(WMMA, [A, B, np.zeros((16, 16), np.float32)], block=32)
    assert np.allclose(c, 2 * PRODUCT, rtol=1e-6)


def test_wmma_wants_all_lanes() -> None:
    text = WMMA.replace("wmma::mma_sync(z", "if (threadIdx.x < 16) wmma::mma_sync(z")
    with pytest.raises(
        RemoteError, match=r"divergent shuffle: .* at line 10, and thread \(16,0,0\)"
    ):
        run(text, [A, B, np.zeros((16, 16), np.float32)], block=32)


@pytest.mark.parametrize("schedule", ["ascending", "random:3"])
def test_simdgroup_matrices_are_multiplied_with_origin_and_transposed(schedule: str) -> None:
    given = [A, B, np.zeros((8, 8), np.float32)]
    text = SIMDGROUP.replace("b, 16, ulong2(8 * k, 0), true", "b, 16, ulong2(0, 8 * k), true")
    for each in (SIMDGROUP, text):
        *_, c = run(each, given, dialect="metal", block=32, schedule=schedule)
        right = np.allclose(c, PRODUCT[:8, :8], rtol=1e-6)
        assert right == (each == SIMDGROUP)
