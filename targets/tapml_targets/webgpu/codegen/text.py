"""From what TVM prints for WebGPU to one WGSL module per kernel."""

from __future__ import annotations

import re
from typing import Final

from tapml_targets.errors import CompileError

_MARK: Final = re.compile(r"^// Function: (\S+)$", re.MULTILINE)
_PROLOGUE: Final = re.compile(r"^(?:enable|requires|diagnostic)\b[^;]*;\s*", re.MULTILINE)
_COMMENT: Final = re.compile(r"^//.*$\n?", re.MULTILINE)
_MEMBERS: Final = re.compile(r"struct PODArgs \{([^}]*)\}")
_PACKED: Final = "packGridDimX: u32"
_FLOAT16: Final = re.compile(r"\bf16\b|\d[hH]\b")
_EXCHANGE: Final = re.compile(r"\bsubgroup[A-Z]\w*\(")
# The largest float as TVM rounds it is no float any more: Tint refuses it, naga takes it.
_LARGEST: Final = ("3.40282347e+38f", "3.40282346638528859e+38f")
# The sign of the least integer is no part of the literal, which is no integer of 32 bits then.
_LEAST: Final = ("-2147483648i", "i32(-2147483648)")


def split_kernels(printed: str) -> dict[str, str]:
    """The text of each kernel by its name, without the lines that a compiler's dialect decides."""
    marks = list(_MARK.finditer(printed))
    texts: dict[str, str] = {}
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        end = len(printed) if following is None else following.start()
        # A module of one kernel has the mark twice; what is between the two is empty.
        body = _PROLOGUE.sub("", _COMMENT.sub("", printed[mark.end() : end])).strip()
        if body:
            texts[mark[1]] = body.replace(*_LARGEST).replace(*_LEAST) + "\n"
    return texts


def without_short_circuits(text: str) -> str:
    """The text with operators on booleans that take both sides, as TVM's expressions allow.

    A short circuit is a branch. For a padded, transposed convolution, whose conditions are chains
    of ten, SwiftShader's compiler took 8 GB and more than 40 s, and without the branches 0.3 s.
    What a side reads beyond a buffer is some element, and what it divides by zero some number.
    """
    return text.replace(" && ", " & ").replace(" || ", " | ")


def check_scalars(name: str, text: str, count: int) -> None:
    """Hold a kernel's uniform struct to the launch's scalars: one member each, then the grid.

    Raises
    ------
    CompileError
        If TVM printed something else.
    """
    found = _MEMBERS.search(text)
    members = [m.strip() for m in (found[1] if found else "").split(",") if m.strip()]
    scalars = [m for m in members if m != _PACKED]
    if len(scalars) != count or (members and members[-1] != _PACKED):
        raise CompileError(
            f"kernel {name!r}: the launch passes {count} scalars, TVM's WGSL takes {members}: this "
            "tapml was made for another version of TVM"
        )


def features_of(text: str) -> tuple[str, ...]:
    """The device features that a kernel needs."""
    needed = {"float16": _FLOAT16, "subgroups": _EXCHANGE}
    return tuple(name for name, pattern in needed.items() if pattern.search(text))
