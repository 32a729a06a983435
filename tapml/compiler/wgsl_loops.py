"""A WGSL kernel rewritten to read like C, as far as its loops go.

:mod:`tapml.compiler.loop_counts` reads C: the bounds of loops, and what the launch passes by
position. In WGSL scalars are members of a struct, types stand behind names, numbers end in letters.
"""

from __future__ import annotations

import re
from typing import Final

WGSL: Final = "wgsl"

_COMMENT: Final = re.compile(r"//[^\n]*")
_UNIFORM: Final = re.compile(r"var\s*<\s*uniform\s*>\s*(\w+)\s*:\s*(\w+)\s*;")
_STORAGE: Final = re.compile(r"var\s*<\s*storage\b")
_MEMBERS: Final = r"struct\s+{}\s*\{{([^}}]*)\}}"
_VARIABLE: Final = re.compile(r"\b(?:var|let)\s+(\w+)(?:\s*:\s*\w+)?\s*=")
_NUMBER: Final = re.compile(r"\b(\d+)[iu]\b")
_CAST: Final = re.compile(r"\b[iu]32\(")


def like_c(source: str, entry: str) -> str:
    """The kernel `entry` of a module with its buffers, then its scalars, as parameters.

    A text that has no such kernel is returned as it came.
    """
    plain = _COMMENT.sub("", source)
    found = re.search(rf"\bfn\s+{re.escape(entry)}\s*\([^{{]*\{{", plain)
    if found is None:
        return source
    names = [f"buffer_{index}" for index in range(len(_STORAGE.findall(plain)))]
    body = plain[found.end() - 1 :]
    uniform = _UNIFORM.search(plain)
    if uniform is not None:
        members = re.search(_MEMBERS.format(re.escape(uniform[2])), plain)
        names += re.findall(r"(\w+)\s*:", members[1] if members else "")
        body = body.replace(f"{uniform[1]}.", "")
    body = _VARIABLE.sub(r"int \1 =", body)
    return f"void {entry}({', '.join(names)}) " + _CAST.sub("(", _NUMBER.sub(r"\1", body))
