"""The jobs that a child may run. A name that is not here is refused."""

from __future__ import annotations

from typing import Final

# Each is ``module:function``; the function takes and returns plain data that msgpack carries.
JOBS: Final[dict[str, str]] = {
    "compile": "tapml.compiler.job:compile_operator",
}
