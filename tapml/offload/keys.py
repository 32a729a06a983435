"""What a verdict depends on, as keys: a resumed session repeats a step exactly when one changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from tapml.carving.carved_test import CarvedTest
from tapml.carving.probing import PROBING_VERSION
from tapml.compare.oracle import ORACLE_VERSION
from tapml.compare.policy import Policy
from tapml.graph.plan import Operator
from tapml.offload.journal import verdict_key
from tapml_targets.installed import compiler_versions, versions_text
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash, pack


def kernel_key(library: Library) -> str:
    """Content hash of an operator's Library: its kernels and its launch plan."""
    return library_hash(pack(library))


def tests_key(tests: Iterable[CarvedTest]) -> str:
    """Hash of the tests replayed: their names and, by the suite's index, their tensors."""
    lines = (f"{test.id} {test.stored_key}" for test in tests)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def operator_key(
    operator: Operator, kernel: str, tests: str, policy: Policy, fingerprint: str
) -> str:
    """Key of an operator-wise verdict."""
    return verdict_key(
        stage="operator",
        kernel=kernel,
        body=operator.hash,
        # The function does not say what its outputs mean, nor what torch computes in its place.
        kinds=" ".join(operator.output_kinds),
        torch=f"{versions_text('torch')} {operator.torch_forms!r}",
        oracle=str(ORACLE_VERSION),
        tests=tests,
        probes=str(PROBING_VERSION),
        policy=policy.hash,
        # Reference and float64 twins are compiled, too.
        compiler=compiler_versions(),
        device=fingerprint,
    )


def model_key(
    kernels: Mapping[str, str], trace: str, policy: Policy, fingerprint: str, stage: str
) -> str:
    """Key of a model-wise verdict over the operators placed on the target, by their kernels."""
    placed = "\n".join(f"{name} {kernel}" for name, kernel in sorted(kernels.items()))
    return verdict_key(
        stage=stage,
        placed=placed,
        trace=trace,
        policy=policy.hash,
        compiler=compiler_versions(),
        device=fingerprint,
    )
