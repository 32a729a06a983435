"""The metal platform: Metal's shading language on Apple's GPUs, or executed from source.

What a Library for it holds, for the code generator that makes one and the driver that runs one:

- A module has the dialect ``msl`` and is the source of a Metal library; a kernel's `symbol` is the
  name of its function.
- A launch's arguments are first the buffers, in the order of their places ``[[buffer(0)]]`` and
  up, then the scalars. A kernel with scalars takes one structure of them behind its buffers, as
  ``constant NAME_args_t& arg [[buffer(n)]]``: each at the next multiple of its own size, int64 as
  ``long``, in the order of the arguments.
- `Launch.grid` counts threadgroups and `Launch.block` threads of one.
- A module's option ``fast-math`` lets the compiler trade accuracy for speed; without it the driver
  asks for Metal's safe mathematics, which is not Metal's own default.
"""

from __future__ import annotations

from typing import Final

# Which form of an operator it compiles, where sort and scan come in two: a serial loop or kernels.
# TVM's kernels for a scan have a race; the serial form says what they mean.
FUNCTION_KIND: Final = "cpu"
