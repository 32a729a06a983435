"""A platform that is not part of tapml: kernels in C, compiled by PyPI's ``ziglang``.

Its kernels take memory and numbers as parameters and loop over the threads of a launch themselves::

    work add(cells float* o, const cells float* a, int n) {
      EACH(i) { if (i < n) { o[i] = a[i] + 1.0f; } }
    }
"""

from __future__ import annotations

from typing import Final

FUNCTION_KIND: Final = "cpu"
