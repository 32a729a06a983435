"""The webgpu platform: WGSL kernels on any implementation of WebGPU.

Rules of its Libraries, for the code generator and for every driver, wgpu or a browser's:

- A module has the dialect ``wgsl`` and is a complete WGSL text with one entry point, whose name is
  the kernel's `symbol`; one module per kernel. It has no ``enable`` lines: the driver prepends
  those that its compiler needs for `Kernel.features` (``float16``: ``enable f16;``,
  ``subgroups``: ``enable subgroups;`` on Tint and nothing on naga).
- A launch's arguments are first the buffers, in the order of the bindings 0 to n-1 of group 0, then
  the scalars, in the order of the members of the uniform struct at binding n: ``int32``, ``uint32``
  and ``float32``, 4 bytes each. A last member ``packGridDimX: u32`` is not an argument: the
  driver fills it. A kernel with neither scalars nor that member has no binding n.
- `Launch.grid` counts workgroups before they are folded: if the text has ``packGridDimX``, a
  grid whose x is above the device's bound is folded into z, and the member holds x - 1.
  `Launch.block` is the text's ``@workgroup_size``.
- The text says whether a binding is read or also written: ``var<storage, read>`` or
  ``var<storage, read_write>``.
"""

from __future__ import annotations

from typing import Final

# The form of an operator that it compiles: sort and scan exist as a serial loop and as kernels.
# TVM's kernels for them cannot be launched here; the serial form defines their meaning.
FUNCTION_KIND: Final = "cpu"

IN_BROWSERS: Final = "WebGPU"
"""The standard by which every browser is a device of this platform."""
