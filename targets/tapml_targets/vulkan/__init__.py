"""The vulkan platform: GLSL kernels on any Vulkan device that computes.

What a Library for it holds, for the code generator that makes one and the driver that runs one:

- A module has the dialect ``glsl`` and is one whole compute shader for Vulkan, with its
  ``#version`` and extensions. Its ``main`` calls a function without parameters, whose name is the
  kernel's `symbol`; one module per kernel.
- Or it has the dialect ``spirv`` and is that shader as SPIR-V 1.3, with the names of its push
  constants.
- A launch's arguments are first the buffers, in the order of the bindings 0 to n-1 of set 0, then
  the scalars, in the order of the members of the push-constant block, each at the next multiple of
  its own size. A last member ``uint tapml_grid_x`` is no argument: the driver fills it.
- `Launch.grid` counts workgroups before they are folded: where the block has ``tapml_grid_x``, a
  grid whose x is above the device's bound is folded into z, and the member holds x.
  `Launch.block` is the text's ``local_size``.
- A buffer that is only read is ``readonly``.
"""

from __future__ import annotations

from typing import Final

# Which form of an operator it compiles, where sort and scan come in two: a serial loop or kernels.
# TVM's kernels for a scan have a race; the serial form says what they mean.
FUNCTION_KIND: Final = "cpu"
