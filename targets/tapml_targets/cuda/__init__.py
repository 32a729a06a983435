"""The cuda platform: NVIDIA GPUs, through cuda-core and NVRTC.

What a Library for it holds, for the code generator that makes one and the driver that runs one:

- A module has the dialect ``cuda-c`` and is text that NVRTC compiles by itself: no header of the
  C++ library, ``cuda_fp16.h`` and its like where they are used. Kernels are ``extern "C"``.
- A launch's arguments are those of the kernel, in its order: pointers and numbers.
"""

from __future__ import annotations

from typing import Final

# Which form of an operator it compiles, where sort and scan come in two: a serial loop or kernels.
# TVM's kernels for a scan have a race; the serial form says what they mean.
FUNCTION_KIND: Final = "cpu"
