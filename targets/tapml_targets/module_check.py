"""What must hold between a Library's modules and kernels and the device that is to load them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tapml_targets.errors import CompileError
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.limits import Limits


class Need(NamedTuple):
    """What a kernel needs and a device has not; `limit` is ``feature`` or a field of Limits."""

    limit: str
    need: str
    has: str

    def __str__(self) -> str:
        return self.need if self.limit == "feature" else f"{self.limit} {self.need}"


def check_module(module: CodeModule, dialects: Mapping[str, ModuleKind], whose: str) -> None:
    """Check that a device takes a module, and that it is the kind of code that it says it is.

    Parameters
    ----------
    module
        The module.
    dialects
        What the device takes; see :class:`tapml_targets.driver.Driver`.
    whose
        The device, for errors.

    Raises
    ------
    CompileError
        If it does not; the message says what it takes.
    """
    kind = dialects.get(module.dialect)
    if kind is None:
        raise CompileError(
            f"{whose} takes {' or '.join(map(repr, sorted(dialects)))} modules, this one holds "
            f"{module.dialect!r}: compile it for this platform"
        )
    if kind != module.kind:
        raise CompileError(
            f"a module says that it is {module.kind} code, and {module.dialect!r} is {kind} code"
        )


def unmet(kernel: Kernel, module: CodeModule, limits: Limits) -> Iterator[Need]:
    """What a kernel needs of a device's features, subgroups and architecture, and is not there."""
    for feature in kernel.features:
        if feature not in limits.features:
            has = ", ".join(sorted(limits.features)) or "none of the optional features"
            yield Need("feature", feature, has)
    width, (least, most) = kernel.subgroup_width, limits.subgroup_widths
    if width and not least <= width <= most:
        has = f"{least} to {most}" if most else "none that is known"
        yield Need("subgroup_widths", str(width), has)
    if module.architecture and module.architecture != limits.architecture:
        has = limits.architecture or "none that is known"
        yield Need("architecture", module.architecture, has)
