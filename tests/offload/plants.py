"""Wrong kernels, planted where the compiler keeps its right ones.

Each is the compiler's own Library with one thing changed, the kind of mistake a schedule or a code
generator makes; it lies in the compile cache under the right one's key, so that a whole migration
meets it without knowing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec import structs

from tapml.compiler.cache import LibraryCache, library_key
from tapml.compiler.compiler import operator_source
from tapml.plan.graph_plan import Operator
from tapml_targets.library import BufferArgument, CodeModule, Launch, Library
from tapml_targets.library_format import pack
from tapml_targets.target import Target


@dataclass(frozen=True)
class Plant:
    """One wrong kernel.

    Attributes
    ----------
    operator
        Whose it is.
    layer_path
        Part of the module path that operator comes from.
    change
        Makes the right Library wrong.
    says
        Words of the verdict.
    """

    operator: str
    layer_path: str
    change: Callable[[Library], Library]
    says: str


def plant(wrong: Plant, operator: Operator, target: Target, cache: Path) -> None:
    """Put the wrong Library in the right one's place in the cache."""
    libraries = LibraryCache(cache / "libraries")
    key = library_key(operator_source(operator, target), target)
    right = libraries.get(key)
    assert right is not None, f"{operator.name} is not in the cache: has its key changed?"
    libraries.put(key, pack(wrong.change(right)))


def edit(pattern: str, replacement: str) -> Callable[[Library], Library]:
    """Change the first match in the kernel's source; it must be there."""

    def change(library: Library) -> Library:
        (module,) = library.modules
        source, count = re.subn(pattern, replacement, module.code.decode(), count=1)
        assert count == 1, f"{pattern!r} is not in:\n{module.code.decode()}"
        return replace(library, modules=(CodeModule(module.dialect, source.encode()),))

    return change


def _swap_inputs(library: Library) -> Library:
    """The kernel gets its two inputs in each other's place."""
    ((name, operator),) = library.operators.items()
    (launch,) = operator.statements
    assert isinstance(launch, Launch)
    inputs = {p.name for p in operator.parameters if p.role == "input"}
    arguments = list(launch.arguments)
    first, second = (
        index
        for index, argument in enumerate(arguments)
        if isinstance(argument, BufferArgument) and argument.name in inputs
    )
    arguments[first], arguments[second] = arguments[second], arguments[first]
    swapped = structs.replace(
        operator, statements=(structs.replace(launch, arguments=tuple(arguments)),)
    )
    return replace(library, operators={name: swapped})


_GROUP: Final = r"\(convert_int\(get_group_id\(0\)\)\)"
_THREAD: Final = r"\(convert_int\(get_local_id\(0\)\)\)"

PLANTS: Final = {
    # The residual sum behind the decode's last product reads its neighbour's element.
    "index": Plant(
        "fused_matmul_transposed_add_3",
        "model.layers.0",
        edit(rf"input_2_ptr\[{_GROUP}\]", "input_2_ptr[convert_int(get_group_id(0)) ^ 1]"),
        "exceeded by 72 of 72 elements",
    ),
    # Query times key in the decode leaves out the first of its 12 terms.
    "reduction start": Plant(
        "fused_matmul_multiply_add_2",
        "self_attn",
        edit(r"(\(convert_int\(get_local_id\(1\)\)\)) < 12\)", r"\1 < 12 && \1 > 0)"),
        "times (sensitivity + ulp)",
    ),
    # Threads beyond the last element write as well.
    "missing guard": Plant(
        "fused_silu_multiply", "mlp", edit(r"if \(.+? < cse_v1\)", "if (1)"), "outside its outputs"
    ),
    # Rows and columns of a square weight.
    "transposed weight": Plant(
        "matmul_transposed_5",
        "q_proj",
        edit(
            rf"(input_1_local_ptr\[0\] = input_1_ptr)\[\(\({_GROUP} \* 72\) \+ {_THREAD}\)\]",
            r"\1[get_local_id(0) * 72 + get_group_id(0)]",
        ),
        "exceeded by 72 of 72 elements",
    ),
    # silu(gate) * up becomes silu(up) * gate.
    "swapped arguments": Plant(
        "fused_silu_multiply_2", "mlp", _swap_inputs, "times (sensitivity + ulp)"
    ),
}
