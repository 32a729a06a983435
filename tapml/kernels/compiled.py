"""The compiler's kernel of an operator, to start from or to compare with."""

from __future__ import annotations

from tapml.compiler.cache import LibraryCache, library_key
from tapml.compiler.compiler import Compiler, operator_source
from tapml.plan.graph_plan import Operator
from tapml_targets.errors import CompileError, SetupError
from tapml_targets.library import Library
from tapml_targets.target import Target


def compiled_library(operator: Operator, target: Target) -> Library:
    """The compiled Library, from the compile cache if possible.

    Raises
    ------
    CompileError
        If the compiler refuses the operator, or is not installed.
    """
    kept = LibraryCache().get(library_key(operator_source(operator, target), target))
    if kept is not None:
        return kept
    try:
        with Compiler(workers=1) as compiler:
            return compiler.compile(operator, target)
    except SetupError as error:
        raise CompileError(f"{operator.name} is in no cache, and {error}") from error
