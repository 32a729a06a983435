"""The self-test's kernels in CUDA C; :mod:`tapml_targets.self_test.kernels` specifies them."""

from __future__ import annotations

from tapml_targets.cuda.prologue import PROLOGUE
from tapml_targets.library import Library
from tapml_targets.limits import Limits
from tapml_targets.threaded_c.kernels import self_test


def self_test_library(part: str, limits: Limits = Limits()) -> Library:
    """The Library of a part of the self-test; see :data:`tapml_targets.self_test.kernels.PARTS`."""
    return self_test("cuda", "cuda-c", part, PROLOGUE.of("half" if part == "float16" else ""))
