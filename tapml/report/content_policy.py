"""Content security policies: which inline code of a page a browser may run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import Final

_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def inline_sources(texts: Iterable[str]) -> str:
    """The sources of a ``script-src`` or ``style-src`` that allow these inline texts alone."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in texts)
    return " ".join(f"'sha256-{digest.decode()}'" for digest in digests) or "'none'"


def content_policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """The policy of a page: it runs these texts alone and fetches only from its own server."""
    return (
        f"default-src 'none'; script-src {inline_sources(scripts)}; "
        f"style-src {inline_sources(styles)}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def served_policy(page: str) -> str:
    """The policy that a server sends with a page: its own inline code, and no frame around it."""
    inline = _INLINE.findall(page)
    scripts, styles = (
        [text for kind, text in inline if kind == wanted] for wanted in ("script", "style")
    )
    return f"{content_policy(scripts, styles)}; frame-ancestors 'none'"
