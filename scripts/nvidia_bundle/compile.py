"""Every kernel of the demo package compiled by NVRTC, for one architecture; it needs no GPU.

compile.py PACKAGE ARCHITECTURE
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any


def main(package: str, architecture: str) -> dict[str, Any]:
    """Compile them; the last line of output is the result."""
    if importlib.util.find_spec("cuda") is None:
        return {"status": "skip", "line": "cuda-core and cuda-bindings are not installed"}
    from tapml.package.load import open_package
    from tapml_targets.cuda.programs import compile_cubin
    from tapml_targets.errors import CompileError, SetupError

    library = open_package(Path(package)).library
    began = time.perf_counter()
    sizes = []
    for number, module in enumerate(library.modules):
        try:
            sizes.append(len(compile_cubin(module, architecture)))
        except SetupError as error:
            return {"status": "skip", "line": str(error)}
        except CompileError as error:
            return {"status": "fail", "line": f"module {number} for {architecture}: {error}"}
    seconds = time.perf_counter() - began
    return {
        "status": "pass",
        "line": f"{len(sizes)} modules for {architecture} in {seconds:.1f} s",
        "figures": {"passed": len(sizes), "of": len(library.modules), "bytes": sum(sizes)},
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
