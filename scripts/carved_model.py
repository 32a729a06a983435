"""The shipped model, imported, carved and compiled: what most benches start from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tapml.carving.record import carve
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.execute.executor import Executor
from tapml.importing.cache import PlanCache
from tapml.importing.imported import ImportedModel
from tapml.importing.importer import import_model
from tapml.models import LoadedModel, calibration_prompts
from tapml.models.huggingface import load_model
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import Operator
from tapml.replaying.memory import ReplayMemory
from tapml.replaying.replayer import replay
from tapml.replaying.results import ReplayResult
from tapml.suite.carved_test import CarvedTest
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import CompileError
from tapml_targets.library import Library
from tapml_targets.target import Target

MODEL: Final = "pydoc-llama"


@dataclass(frozen=True)
class CarvedModel:
    """A suite of the shipped model, and a session that holds every operator's kernels."""

    suite: Suite
    session: Session
    libraries: Mapping[str, RemoteLibrary]
    memory: ReplayMemory

    def replay(self, tests: Iterable[CarvedTest], oracle: Oracle) -> list[ReplayResult]:
        """Replay tests one by one under the default policy."""
        return [
            replay(
                self.suite.operators[test.operator], test, self.libraries[test.operator],
                self.session, oracle, Policy(), memory=self.memory,
            )
            for test in tests
        ]  # fmt: skip


def import_shipped() -> tuple[LoadedModel, ImportedModel]:
    """Load and import the shipped model."""
    model = load_model(MODEL)
    return model, import_model(model, cache=PlanCache())


def reference_executor(imported: ImportedModel) -> Executor:
    """Runs the imported model on the reference."""
    return Executor(imported.plan, imported.weights, compile_reference(imported.plan))


@contextmanager
def open_carved(prompts: int, new_tokens: int) -> Iterator[CarvedModel]:
    """Carve the shipped model and upload its kernels to the best OpenCL device."""
    model, imported = import_shipped()
    with tempfile.TemporaryDirectory() as folder, Compiler() as compiler:
        suite = carve(
            model,
            reference_executor(imported),
            calibration_prompts(model, prompts),
            Path(folder) / "suite",
            max_new_tokens=new_tokens,
        )
        with suite, open_local("opencl") as session:
            target = Target("opencl", limits=session.device.limits)
            compiled = compile_all(compiler, imported.plan.operators.values(), target)
            libraries = {name: session.upload(library) for name, library in compiled.items()}
            with ReplayMemory(session) as memory:
                yield CarvedModel(suite, session, libraries, memory)


def compile_all(
    compiler: Compiler, operators: Iterable[Operator], target: Target
) -> dict[str, Library]:
    """Compile every operator.

    Raises
    ------
    CompileError
        If one does not compile.
    """
    libraries = {}
    for operator, library in compiler.compile_all(operators, target):
        if isinstance(library, CompileError):
            raise library
        libraries[operator.name] = library
    return libraries


@contextmanager
def cache_in(folder: Path) -> Iterator[Path]:
    """Keep compiled code in `folder` for the duration of the block."""
    before = os.environ.get("TAPML_CACHE_DIR")
    os.environ["TAPML_CACHE_DIR"] = str(folder)
    try:
        yield folder
    finally:
        del os.environ["TAPML_CACHE_DIR"]
        if before is not None:
            os.environ["TAPML_CACHE_DIR"] = before
