"""lavapipe compares a widened 32-bit integer with a 64-bit constant wrongly, Mesa 22.3.6.

`int64_t(x) < 5L` of an int is always false; of the same bits packed by hand it is right.
Found by PyTorch's samples of `torch.lu` on vulkan. Needs tapml with the extra vulkan.
"""

import numpy as np

from tapml_targets.driver import BufferUse
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.vulkan.driver import list_devices, open_device

TEXT = """\
#version 450
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(local_size_x = 1) in;
layout(std430, set = 0, binding = 0) buffer Output { int o[]; };
layout(std430, set = 0, binding = 1) readonly buffer Input { int x[]; };
void compare() {
  int i = int(gl_WorkGroupID.x);
  o[2 * i] = int(int64_t(x[i]) < 5L);
  o[2 * i + 1] = int(pack64(ivec2(x[i], x[i] >> 31)) < 5L);
}
void main() { compare(); }
"""
GIVEN = np.array([0, 1, -5, 7], np.int32)

for description in list_devices():
    if "int64" not in description.limits.features:
        continue
    device = open_device(description)
    module = CodeModule("glsl", TEXT.encode())
    kernel = device.load(module, [Kernel("compare", "compare", 0, 1)])["compare"]
    given, found = device.allocate(GIVEN.nbytes), device.allocate(2 * GIVEN.nbytes)
    device.write(given, 0, memoryview(GIVEN.tobytes()))
    uses = (BufferUse(found, 0, 2 * GIVEN.nbytes), BufferUse(given, 0, GIVEN.nbytes))
    device.launch(kernel, uses, (GIVEN.size, 1, 1), (1, 1, 1))
    widened, packed = np.frombuffer(device.read(found, 0, 32), np.int32).reshape(-1, 2).T
    print(f"{description.name}, {description.driver_version}: {GIVEN} < 5")
    print(f"  int64_t(x): {widened}, packed: {packed}, right: {(GIVEN < 5).astype(int)}")
    device.close()
