"""Where a compiled Library can be made wrong, and the wrong Library."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scripts.mutants.syntax import Expression, KernelText, Statement
from tapml_targets.library import CodeModule, Library, OperatorProgram


@dataclass(frozen=True)
class Edit:
    """Other text in one place of a kernel.

    Attributes
    ----------
    rule
        Which of its kind's rules made it.
    kernel
        Name of the kernel.
    start, end
        What is replaced in the module's text.
    replacement
        By what.
    """

    rule: str
    kernel: str
    start: int
    end: int
    replacement: str


def edit(kernel: KernelText, rule: str, part: Expression | Statement, replacement: str) -> Edit:
    """Put `replacement` in the place of a part of a kernel."""
    return Edit(rule, kernel.name, part.start, part.end, replacement)


@dataclass(frozen=True)
class SourceSite:
    """An edit of a module's source."""

    kind: str
    edit: Edit
    module: int
    source: str

    @property
    def rule(self) -> str:
        """Which of its kind's rules made it."""
        return self.edit.rule

    @property
    def line(self) -> int:
        """Line of the module's text, from 1."""
        return self.source.count("\n", 0, self.edit.start) + 1

    @property
    def before(self) -> str:
        """What is replaced."""
        return self.source[self.edit.start : self.edit.end]

    @property
    def after(self) -> str:
        """By what."""
        return self.edit.replacement

    @property
    def text(self) -> str:
        """The whole text once edited."""
        edit = self.edit
        return self.source[: edit.start] + edit.replacement + self.source[edit.end :]

    def apply(self, library: Library) -> Library:
        """The wrong Library."""
        modules = list(library.modules)
        modules[self.module] = CodeModule(modules[self.module].dialect, self.text.encode())
        return replace(library, modules=tuple(modules))


@dataclass(frozen=True)
class PlanSite:
    """A change of the launch plan.

    `before` and `after` show the part that changes; `program` is the whole once changed.
    """

    kind: str
    rule: str
    before: str
    after: str
    program: OperatorProgram
    line: int = 0

    def apply(self, library: Library) -> Library:
        """The wrong Library."""
        operators = {**library.operators, self.program.name: self.program}
        return replace(library, operators=operators)


Site = SourceSite | PlanSite
