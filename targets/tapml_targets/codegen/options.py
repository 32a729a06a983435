"""A target's options, checked: a misspelt one would compile something else than was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from tapml_targets.errors import CompileError
from tapml_targets.target import Target


def check_options(target: Target, allowed: Mapping[str, tuple[str, ...] | None]) -> dict[str, str]:
    """The options of `target` by name.

    Parameters
    ----------
    allowed
        Names the platform's code generator knows, and the values each may have; None for any.

    Raises
    ------
    CompileError
        If an option is not among them; the message lists those that are.
    """
    options = dict(target.options)
    for name, value in options.items():
        if name not in allowed:
            raise CompileError(
                f"{target.platform} targets have no option {name!r}; there are "
                f"{', '.join(sorted(allowed))}"
            )
        values = allowed[name]
        if values is not None and value not in values:
            raise CompileError(
                f"the option {name!r} of {target.platform} targets is one of {', '.join(values)}, "
                f"not {value!r}"
            )
    return options
