"""What a verdict depends on, as keys: a resumed session repeats a step exactly when one changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from tapml.carving.carved_test import CarvedTest
from tapml.carving.probing import PROBING_VERSION
from tapml.compare.oracle import ORACLE_VERSION
from tapml.compare.policy import Policy
from tapml.compare.policy_scope import policy_of_operator
from tapml.graph.plan import Operator
from tapml.offload.verdict_key import VerdictKey, hash_parts
from tapml_targets.driver import DeviceDescription
from tapml_targets.fingerprint import fingerprint, fingerprint_parts
from tapml_targets.installed import compiler_versions, versions_text
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash, pack

_SHOWN: Final = 16
"""Hexadecimal digits of a hash among the parts; the whole of it is in the key's hash."""
_DEVICES_KEPT: Final = 8
_DEFAULTS: Final = Policy()
# A description is not hashable: it is known by its identity for as long as it is kept here.
_FINGERPRINTS: Final[dict[int, tuple[DeviceDescription, str, dict[str, str]]]] = {}


def kernel_key(library: Library) -> str:
    """Content hash of an operator's Library: its kernels and its launch plan."""
    return library_hash(pack(library))


def tests_key(tests: Iterable[CarvedTest]) -> str:
    """Hash of the tests replayed: their names and, by the suite's index, their tensors."""
    lines = (f"{test.id} {test.stored_key}" for test in tests)
    return _hash("\n".join(lines))


def operator_key(
    operator: Operator, kernel: str, tests: str, policy: Policy, device: DeviceDescription
) -> VerdictKey:
    """Key of an operator-wise verdict."""
    limits = policy_of_operator(policy, operator).hash
    torch, forms = versions_text("torch"), repr(operator.torch_forms)
    # Its form is that of the first journals: what they hold is found again.
    found = hash_parts(
        stage="operator",
        kernel=kernel,
        body=operator.hash,
        # The function does not say what its outputs mean, nor what torch computes in its place.
        kinds=" ".join(operator.output_kinds),
        torch=f"{torch} {forms}",
        oracle=str(ORACLE_VERSION),
        tests=tests,
        probes=str(PROBING_VERSION),
        policy=limits,
        # Reference and float64 twins are compiled, too.
        compiler=compiler_versions(),
        device=_fingerprint(device)[0],
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
    }
    return VerdictKey(found, parts | _fingerprint(device)[1])


def model_key(
    kernels: Mapping[str, str], trace: str, device: DeviceDescription, stage: str
) -> VerdictKey:
    """Key of a model-wise verdict over the operators placed on the target, by their kernels.

    Logits are held against what the reference's own deviation allows, not against a policy.
    """
    placed = "\n".join(f"{name} {kernel}" for name, kernel in sorted(kernels.items()))
    found = hash_parts(
        stage=stage,
        placed=placed,
        trace=trace,
        # As in the first journals, which are found again.
        policy=_DEFAULTS.hash,
        compiler=compiler_versions(),
        device=_fingerprint(device)[0],
    )
    parts = {
        "operators": _hash("\n".join(sorted(kernels)))[:_SHOWN],
        "kernels": _hash(placed)[:_SHOWN],
        "trace": _hash(trace)[:_SHOWN],
        "compiler": compiler_versions(),
    }
    return VerdictKey(found, parts | _fingerprint(device)[1])


def _fingerprint(device: DeviceDescription) -> tuple[str, dict[str, str]]:
    """A device's fingerprint and its parts: taken once, where hundreds of keys hold them."""
    known = _FINGERPRINTS.get(id(device))
    if known is None or known[0] is not device:
        if len(_FINGERPRINTS) >= _DEVICES_KEPT:
            _FINGERPRINTS.clear()
        known = device, fingerprint(device), fingerprint_parts(device)
        _FINGERPRINTS[id(device)] = known
    return known[1:]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
