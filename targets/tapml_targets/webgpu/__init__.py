"""The webgpu platform: WGSL kernels on any implementation of WebGPU.

What a Library for it holds, for the code generator that makes one and for every driver that runs
one, wgpu here and a browser's elsewhere:

- A module has the dialect ``wgsl`` and is one whole WGSL text with one entry point, whose name is
  the kernel's `symbol`; one module per kernel. It has no ``enable`` lines: whoever compiles the
  text puts before it what its compiler wants for `Kernel.features` (``float16``: ``enable f16;``,
  ``subgroups``: ``enable subgroups;`` on Tint and nothing on naga).
- A launch's arguments are first the buffers, in the order of the bindings 0 to n-1 of group 0, then
  the scalars, in the order of the members of the uniform struct at binding n: ``int32``, ``uint32``
  and ``float32``, 4 bytes each. A last member ``packGridDimX: u32`` is no argument: the driver
  fills it. A kernel with neither scalars nor that member has no binding n.
- `Launch.grid` counts workgroups before they are folded: where the text has ``packGridDimX``, a
  grid whose x is above the device's bound is folded into z, and the member holds x - 1.
  `Launch.block` is the text's ``@workgroup_size``.
- Whether a binding is read or also written is what its text says: ``var<storage, read>`` or
  ``var<storage, read_write>``.
"""

from __future__ import annotations

from typing import Final

# Which form of an operator it compiles, where sort and scan come in two: a serial loop or kernels.
# TVM's kernels for them cannot be launched here; the serial form says what they mean.
FUNCTION_KIND: Final = "cpu"
