"""The rocm platform: AMD GPUs.

What a Library for it holds, for the code generator that makes one and the driver that runs one:

- A module has the dialect ``hip-c`` and is text for every architecture that clang compiles by
  itself, without a header. Kernels are ``extern "C"``.
- Shuffles are within 32 lanes, so a text is right on waves of 32 and of 64.
- A launch's arguments are those of the kernel, in its order: pointers and numbers.
"""

from __future__ import annotations

from typing import Final

# Which form of an operator it compiles, where sort and scan come in two: a serial loop or kernels.
# TVM's kernels for a scan have a race; the serial form says what they mean.
FUNCTION_KIND: Final = "cpu"
