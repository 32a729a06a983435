"""Keys of verdicts: a resumed session repeats a step if and only if its key changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from tapml.oracles.oracle import ORACLE_VERSION
from tapml.oracles.probing import PROBING_VERSION
from tapml.plan.graph_plan import Operator
from tapml.runs.result_key import ResultKey, hash_parts
from tapml.suite.carved_test import CarvedTest
from tapml.verdicts.policy import Policy, policy_of_operator
from tapml_targets.description import fingerprint, fingerprint_parts
from tapml_targets.driver import DeviceDescription
from tapml_targets.installed import compiler_versions, versions_text
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash, pack

_SHOWN: Final = 16
"""Hexadecimal digits of a hash in the parts; the key's hash covers all digits."""
_DEVICES_KEPT: Final = 8
_DEFAULTS: Final = Policy()
# Descriptions are not hashable: entries are found by `id` and keep their description alive.
_FINGERPRINTS: Final[dict[int, tuple[DeviceDescription, str, dict[str, str]]]] = {}


def kernel_key(library: Library) -> str:
    """Content hash of an operator's Library (kernels and launch plan)."""
    return library_hash(pack(library))


def tests_key(tests: Iterable[CarvedTest]) -> str:
    """Hash of the names and tensors of tests; the suite's index has the tensors' hashes."""
    lines = (f"{test.id} {test.stored_key}" for test in tests)
    return _hash("\n".join(lines))


def operator_key(
    operator: Operator,
    kernel: str,
    tests: str,
    policy: Policy,
    device: DeviceDescription,
    reference: str = "",
) -> ResultKey:
    """Key of an operator-wise verdict.

    `reference` identifies the device that is the reference; empty for this process.
    """
    limits = policy_of_operator(policy, operator).hash
    torch, forms = versions_text("torch"), repr(operator.torch_forms)
    # Do not change these parts: the hashes in existing journals depend on them.
    found = hash_parts(
        stage="operator",
        kernel=kernel,
        body=operator.hash,
        # Not part of the function: the meaning of its outputs, and the torch operators.
        kinds=" ".join(operator.output_kinds),
        torch=f"{torch} {forms}",
        oracle=str(ORACLE_VERSION),
        tests=tests,
        probes=str(PROBING_VERSION),
        policy=limits,
        # It compiles the reference and the float64 twins, too.
        compiler=compiler_versions(),
        device=_fingerprint(device)[0],
        **_reference(reference),
    )
    parts = {
        "kernel": kernel[:_SHOWN],
        "body": operator.hash[:_SHOWN],
        "kinds": " ".join(operator.output_kinds),
        "torch": torch,
        "forms": _hash(forms)[:_SHOWN],
        "oracle": str(ORACLE_VERSION),
        "tests": tests[:_SHOWN],
        "probes": str(PROBING_VERSION),
        "policy": limits[:_SHOWN],
        "compiler": compiler_versions(),
        **_reference(reference),
    }
    return ResultKey(found, parts | _fingerprint(device)[1])


def model_key(
    kernels: Mapping[str, str],
    trace: str,
    device: DeviceDescription,
    stage: str,
    reference: str = "",
) -> ResultKey:
    """Key of a model-wise verdict; `kernels` has the kernel hashes of the placed operators.

    No policy: the allowed logit error follows from the reference's own deviation.
    """
    placed = "\n".join(f"{name} {kernel}" for name, kernel in sorted(kernels.items()))
    found = hash_parts(
        stage=stage,
        placed=placed,
        trace=trace,
        # Constant; the hashes in existing journals include it.
        policy=_DEFAULTS.hash,
        compiler=compiler_versions(),
        device=_fingerprint(device)[0],
        **_reference(reference),
    )
    parts = {
        "operators": _hash("\n".join(sorted(kernels)))[:_SHOWN],
        "kernels": _hash(placed)[:_SHOWN],
        "trace": _hash(trace)[:_SHOWN],
        "compiler": compiler_versions(),
        **_reference(reference),
    }
    return ResultKey(found, parts | _fingerprint(device)[1])


def _reference(identity: str) -> dict[str, str]:
    """The part for a reference that is a device; the hashes in journals without one have none."""
    return {"reference": _hash(identity)[:_SHOWN]} if identity else {}


def _fingerprint(device: DeviceDescription) -> tuple[str, dict[str, str]]:
    """A device's fingerprint and its parts, cached for hundreds of keys."""
    known = _FINGERPRINTS.get(id(device))
    if known is None or known[0] is not device:
        if len(_FINGERPRINTS) >= _DEVICES_KEPT:
            _FINGERPRINTS.clear()
        known = device, fingerprint(device), fingerprint_parts(device)
        _FINGERPRINTS[id(device)] = known
    return known[1:]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
