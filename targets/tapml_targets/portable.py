"""A Library that needs no compiler of source text where it runs."""

from __future__ import annotations

from dataclasses import replace

from tapml_targets.library import CodeModule, Library
from tapml_targets.platforms import optional_part


def in_portable_code(library: Library) -> Library:
    """The Library with portable modules in the place of source text.

    A platform whose source is compiled by a library of its own, which a device may lack, has a file
    ``portable.py`` with a function ``as_portable(module, kernel)``; it gives None where that
    library is not here. Other modules stay as they are.

    Raises
    ------
    CompileError
        If a module does not compile.
    """
    part = optional_part(library.target, "portable")
    if part is None:
        return library
    modules: list[CodeModule] = list(library.modules)
    for kernel in library.kernels.values():
        module = library.modules[kernel.module]
        if module.kind == "source":
            modules[kernel.module] = part.as_portable(module, kernel) or module
    return replace(library, modules=tuple(modules))
