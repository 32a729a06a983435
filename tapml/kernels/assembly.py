"""Builds an operator's Library from a manifest and its sources."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from tapml.kernels.agreement import check_arguments, check_parameters
from tapml.kernels.dialects import language_of
from tapml.kernels.expression_text import ExpressionError, Scope, parse
from tapml.kernels.manifest import (
    MAX_SOURCE_BYTES,
    Manifest,
    ManifestArgument,
    ManifestGroup,
    ManifestLaunch,
    Text,
    read_text,
)
from tapml.kernels.manifest_places import Key
from tapml.kernels.signature import Signature
from tapml.kernels.signature_reader import read_entries, read_signature
from tapml.plan.graph_plan import Operator
from tapml_targets.dtype import dtype
from tapml_targets.errors import CompileError, InputError, ProtocolError, SetupError
from tapml_targets.expression import Expression, evaluate, product, symbols_of
from tapml_targets.kernel_language import KernelLanguage
from tapml_targets.library import (
    Argument,
    BufferArgument,
    CodeModule,
    Condition,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    ScalarArgument,
    Statement,
    Workspace,
)
from tapml_targets.library_check import check_library

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class AssembledKernel:
    """A hand-written kernel as a Library, and the files it was made from, the manifest first."""

    library: Library
    files: tuple[Path, ...]


def assemble(manifest: Manifest, operator: Operator) -> AssembledKernel:
    """Make the Library of `operator` that a manifest describes.

    Raises
    ------
    CompileError
        If manifest, sources and operator do not match; it names file, line and key.
    """
    return _Assembler(manifest, operator).run()


class _Assembler:
    def __init__(self, manifest: Manifest, operator: Operator) -> None:
        self._manifest = manifest
        self._operator = operator
        self._parameters = {parameter.name: parameter for parameter in operator.parameters}
        self._language = self._find_language()
        self._sources: dict[str, str] = {}
        self._modules: dict[tuple[str, tuple[str, ...]], int] = {}
        self._kernels: dict[tuple[int, str], Kernel] = {}
        self._passed: set[str] = set()

    def run(self) -> AssembledKernel:
        manifest, operator = self._manifest, self._operator
        if manifest.hash and manifest.hash != operator.hash:
            raise self.error(
                ("hash",),
                f"this kernel was written for another operator: expected {operator.hash} (the "
                f"{operator.name} of this session), got {manifest.hash[:80]!r}; if it computes "
                "this one as well, put its hash here",
            )
        scope = Scope(check_parameters(manifest, operator), self._parameters)
        workspaces = self._workspaces(scope)
        statements = self._statements(manifest.launches, scope)
        unpassed = [p.name for p in operator.written if p.name not in self._passed]
        if unpassed:
            raise self.error(
                ("launches",),
                f"no launch is given {', '.join(unpassed)}, so nothing would write it; expected it "
                "among the arguments",
            )
        program = OperatorProgram(
            operator.name, operator.parameters, statements, workspaces, operator.symbols
        )
        library = Library(
            target=manifest.target,
            modules=tuple(
                CodeModule(
                    self._language.dialect,
                    self._sources[source].encode(),
                    options,
                    self._language.kind,
                )
                for source, options in self._modules
            ),
            kernels={kernel.name: kernel for kernel in self._kernels.values()},
            operators={operator.name: program},
        )
        try:
            check_library(library)
        except ProtocolError as error:
            raise CompileError(f"{manifest.path}: {error}") from error
        files = (manifest.path, *(manifest.folder / source for source in self._sources))
        return AssembledKernel(library, files)

    def _find_language(self) -> KernelLanguage:
        try:
            return language_of(self._manifest.target)
        except (InputError, SetupError) as error:
            raise self.error(("target",), str(error)) from None

    def _workspaces(self, scope: Scope) -> tuple[Workspace, ...]:
        found = []
        for name, nbytes in self._manifest.workspaces.items():
            key = ("workspaces", name)
            if not _NAME.fullmatch(name) or name in self._parameters:
                taken = (
                    "a parameter has that name" if name in self._parameters else "letters, digits"
                )
                raise self.error(key, f"expected a name of its own ({taken}), got {name[:80]!r}")
            size = self._expression(key, nbytes, scope)
            if isinstance(size, int) and size < 0:
                raise self.error(key, f"expected a number of bytes, got {size}")
            found.append(Workspace(name, size))
        return tuple(found)

    def _statements(
        self, launches: Sequence[ManifestLaunch | ManifestGroup], scope: Scope
    ) -> tuple[Statement, ...]:
        return tuple(
            self._group(each, scope)
            if isinstance(each, ManifestGroup)
            else self._launch(each, scope)
            for each in launches
        )

    def _group(self, group: ManifestGroup, scope: Scope) -> Statement:
        if not group.symbol:
            return self._when(group, scope, self._statements(group.launches, scope))
        key = (*group.key, "for")
        taken = group.symbol in scope.symbols or group.symbol in self._parameters
        if taken or not _NAME.fullmatch(group.symbol):
            known = ", ".join((*scope.symbols, *self._parameters))
            raise self.error(key, f"expected a new name beside {known}, got {group.symbol[:80]!r}")
        loop = Loop(
            group.symbol,
            self._expression((*group.key, "from"), group.start, scope),
            self._expression((*group.key, "count"), group.count, scope),
            self._statements(group.launches, scope.with_symbol(group.symbol)),
        )
        return self._when(group, scope, (loop,))

    def _when(
        self, item: ManifestLaunch | ManifestGroup, scope: Scope, inside: tuple[Statement, ...]
    ) -> Statement:
        if item.when is None and len(inside) == 1:
            return inside[0]
        condition: Text = 1 if item.when is None else item.when
        return Condition(self._expression((*item.key, "when"), condition, scope), inside)

    def _launch(self, item: ManifestLaunch, scope: Scope) -> Statement:
        block = self._extents(item, "block", item.block, scope, least=1)
        grid = self._extents(item, "grid", item.grid, scope, least=0)
        module = self._module(item)
        signature = self._signature(item)
        arguments = tuple(self._argument(argument, scope) for argument in item.arguments)
        if signature is not None:
            source = self._manifest.folder / item.source
            check_arguments(self._manifest, self._operator, item, arguments, signature, source)
        kernel = self._kernel(item, module, product(block))
        return self._when(item, scope, (Launch(kernel, arguments, grid, block),))

    def _kernel(self, item: ManifestLaunch, module: int, threads: Expression) -> str:
        """Register the kernel of a launch and return its name in the Library."""
        fixed = threads if isinstance(threads, int) else 0
        known = self._kernels.get((module, item.entry))
        if known is None:
            names = {kernel.name for kernel in self._kernels.values()}
            name = item.entry if item.entry not in names else f"{item.entry}.{module}"
            known = Kernel(name, item.entry, module, fixed, item.shared_memory_bytes, item.features)
        else:
            known = replace(
                known,
                threads_per_block=max(known.threads_per_block, fixed),
                shared_memory_bytes=max(known.shared_memory_bytes, item.shared_memory_bytes),
                features=tuple(sorted({*known.features, *item.features})),
            )
        self._kernels[module, item.entry] = known
        return known.name

    def _module(self, item: ManifestLaunch) -> int:
        options = tuple(sorted(set(item.options)))
        for option in options:
            if option not in self._language.options:
                near = difflib.get_close_matches(option, self._language.options, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                at: Key = (*item.key, "options")
                if self._manifest.places.line(at) == self._manifest.places.line(item.key):
                    at = ("options",)
                raise self.error(
                    at,
                    f"there is no build option {option[:80]!r}; {hint}there are "
                    f"{', '.join(self._language.options)}",
                )
        if item.source not in self._sources:
            self._sources[item.source] = self._read_source(item)
        return self._modules.setdefault((item.source, options), len(self._modules))

    def _read_source(self, item: ManifestLaunch) -> str:
        folder = self._manifest.folder
        path = folder / item.source
        key = (*item.key, "source")
        if self._manifest.places.line(key) == self._manifest.places.line(item.key):
            key = ("source",)
        if Path(item.source).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
            raise self.error(
                key, f"expected a file in {folder}, got {item.source[:200]!r}, which lies outside"
            )
        wanted = f".{self._language.extension}"
        if path.suffix != wanted:
            raise self.error(
                key,
                f"expected a file of {self._language.dialect} ending in {wanted}, got "
                f"{item.source[:200]!r}",
            )
        if not path.is_file():
            beside = sorted(each.name for each in folder.glob(f"*{wanted}"))[:10]
            there = f"in the folder are {', '.join(beside)}" if beside else "the folder has none"
            raise self.error(key, f"there is no file {item.source!r}; {there}")
        return read_text(path, MAX_SOURCE_BYTES, self._manifest.path)

    def _signature(self, item: ManifestLaunch) -> Signature | None:
        key = (*item.key, "entry")
        if not _NAME.fullmatch(item.entry):
            raise self.error(key, f"expected the name of a kernel, got {item.entry[:80]!r}")
        text = self._sources[item.source]
        if not re.search(rf"\b{re.escape(item.entry)}\b", text):
            there = read_entries(self._language, text)[:20]
            near = difflib.get_close_matches(item.entry, there, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise self.error(
                key,
                f"{item.source} has no kernel {item.entry!r}; {hint}it has "
                f"{', '.join(there) or 'none'}",
            )
        return read_signature(self._language, text, item.entry)

    def _argument(self, argument: ManifestArgument, scope: Scope) -> Argument:
        if not argument.buffer:
            key = (*argument.key, "scalar")
            value = self._expression(key, argument.value, scope)
            return ScalarArgument(value, self._scalar_dtype(argument))
        name = argument.buffer
        known = (*self._parameters, *self._manifest.workspaces)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            number = f'; a number is given as {{ scalar = "{name[:40]}", dtype = "int32" }}' * (
                name in scope.symbols
            )
            raise self.error(
                argument.key,
                f"{self._operator.name} has no parameter or workspace {name[:80]!r}; {hint}there "
                f"are {', '.join(known)}{number}",
            )
        self._passed.add(name)
        offset = self._expression((*argument.key, "byte_offset"), argument.value, scope)
        if argument.nbytes is None:
            return BufferArgument(name, offset)
        size = self._expression((*argument.key, "nbytes"), argument.nbytes, scope)
        return BufferArgument(name, offset, size)

    def _scalar_dtype(self, argument: ManifestArgument) -> str:
        try:
            found = dtype(argument.dtype)
        except InputError as error:
            raise self.error((*argument.key, "dtype"), str(error)) from None
        if found.packing != 1 or found.numpy_name != found.name:
            raise self.error((*argument.key, "dtype"), f"a kernel takes no {found.name} numbers")
        return found.name

    def _extents(
        self, item: ManifestLaunch, name: str, texts: Sequence[Text], scope: Scope, *, least: int
    ) -> tuple[Expression, Expression, Expression]:
        extents = [
            self._expression((*item.key, name, index), text, scope)
            for index, text in enumerate(texts)
        ]
        for index, extent in enumerate(extents):
            if isinstance(extent, int) and extent < least:
                raise self.error(
                    (*item.key, name, index), f"expected an extent from {least}, got {extent}"
                )
        x, y, z = (*extents, 1, 1, 1)[:3]
        return x, y, z

    def _expression(self, key: Key, text: Text, scope: Scope) -> Expression:
        if isinstance(text, int):
            return text
        try:
            expression = parse(text, scope)
        except ExpressionError as error:
            raise self.error(key, str(error)) from None
        if symbols_of(expression):
            return expression
        try:
            return evaluate(expression, {})
        except InputError as error:
            raise self.error(key, str(error)) from None

    def error(self, key: Key, problem: str) -> CompileError:
        return self._manifest.places.error(key, problem)
