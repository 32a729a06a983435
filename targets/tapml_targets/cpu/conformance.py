"""Kernels as a shared object: C in apache-tvm-ffi's calling convention, built by `cc`."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from tapml_targets.conformance_kernels import KernelText
from tapml_targets.cpu.loader import import_tvm_ffi
from tapml_targets.library import CodeModule

POINTERS: Final = False
BROKEN: Final = "does not load here"
_TYPES: Final = {"float32": "float", "uint32": "uint32_t", "int32": "int32_t"}
_FIELDS: Final = {"float32": "v_float64", "uint32": "v_int64", "int32": "v_int64"}
# As DLPack numbers kinds of types.
_CODES: Final = {"float32": "kDLFloat", "uint32": "kDLUInt", "int32": "kDLInt"}
_HEAD: Final = """\
#include <stdint.h>
#include <tvm/ffi/c_api.h>
static void* elements(const TVMFFIAny* given, uint8_t code) {
  if (given->type_index != kTVMFFITensor) return 0;
  DLTensor* tensor = (DLTensor*)((char*)given->v_obj + sizeof(TVMFFIObject));
  return tensor->dtype.code == code ? (char*)tensor->data + tensor->byte_offset : 0;
}
static int refuse(const char* why) {
  TVMFFIErrorSetRaisedFromCStr("TypeError", why);
  return -1;
}
"""


def modules(kernels: Sequence[KernelText]) -> tuple[CodeModule, ...]:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    code = _built("\n".join([_HEAD, *map(_text, kernels)]))
    return (CodeModule("elf-shared-object", code, kind="machine"),)


def broken(module: CodeModule) -> CodeModule:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    return replace(module, code=module.code[:500])


def _text(kernel: KernelText) -> str:
    element, tensors = _TYPES[kernel.dtype], ("o", *kernel.reads)
    count = len(tensors) + len(kernel.all_scalars)
    lines = [
        f"  {element}* {name} = elements(&given[{place}], {_CODES[kernel.dtype]});\n"
        f'  if (!{name}) return refuse("{name} is no tensor of {kernel.dtype}");'
        for place, name in enumerate(tensors)
    ]
    lines += [
        f"  {_TYPES[dtype]} {name} = ({_TYPES[dtype]})given[{place}].{_FIELDS[dtype]};"
        for place, (name, dtype) in enumerate(kernel.all_scalars.items(), len(tensors))
    ]
    body = kernel.body.replace("VAR", element).replace("ELEMENT", f"({element})")
    return "\n".join(
        [
            f"TVM_FFI_DLL_EXPORT int __tvm_ffi_{kernel.name}("
            "void* self, const TVMFFIAny* given, int32_t count, TVMFFIAny* result) {",
            f'  if (count != {count}) return refuse("{kernel.name} takes {count} arguments");',
            *lines,
            f"  for (int32_t i = 0; i < n; i++) {{ {body} }}",
            "  return 0;\n}\n",
        ]
    )


@cache
def _built(source: str) -> bytes:
    import_tvm_ffi()
    from tvm_ffi import libinfo

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.so"
        folders = {libinfo.find_include_path(), libinfo.find_dlpack_include_path()}
        include = (f"-I{each}" for each in sorted(folders))
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", *include, "-x", "c", "-", "-o", str(path)],
            input=source.encode(),
            check=True,
        )
        return path.read_bytes()
