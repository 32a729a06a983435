"""A kernel with the right signature and nothing in it, where the compiler gives none."""

from __future__ import annotations

from typing import Final

from tapml.graph.plan import Operator
from tapml.kernels.dialects import Dialect
from tapml.kernels.manifest_text import manifest_head
from tapml_targets.target import Target

_THREADS: Final = 64


def skeleton(operator: Operator, target: Target, dialect: Dialect) -> tuple[str, str]:
    """Manifest and source: one thread per element of the first output, which writes nothing yet.

    `tapml kernel check` says then that no element was ever written.
    """
    first = operator.written[0]
    entry = f"{operator.name}_kernel"
    symbols = _symbols(operator)
    threads = min(_THREADS, target.limits.max_threads_per_block or _THREADS)
    lines = [
        "",
        "[[launches]]",
        f'entry = "{entry}"',
        "# In the order of the kernel in its source.",
        "arguments = [",
        *(f'  "{parameter.name}",' for parameter in operator.parameters),
        *(f'  {{ scalar = "{symbol}", dtype = "{dialect.integer}" }},' for symbol in symbols),
        f'  {{ scalar = "{first.name}.size", dtype = "{dialect.integer}" }},',
        "]",
        "# Blocks (work-groups) and threads of each, as (x, y, z).",
        f'grid = ["ceildiv({first.name}.size, {threads})"]',
        f"block = [{threads}]",
    ]
    source = f"{operator.name}.{dialect.extension}"
    manifest = manifest_head(operator, target.platform, [source]) + "\n".join(lines) + "\n"
    return manifest, dialect.write_skeleton(entry, operator.parameters, symbols)


def _symbols(operator: Operator) -> list[str]:
    shapes = [extent for parameter in operator.parameters for extent in parameter.shape]
    return list(dict.fromkeys((*(e for e in shapes if isinstance(e, str)), *operator.symbols)))
