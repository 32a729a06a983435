"""The reference's code is found again in the cache, without TVM."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapml.compiler.reference import compile_reference
from tapml.compiler.reference_module import StoredReference, processor_identity
from tapml.plan.graph_plan import Operator
from tapml_targets.errors import InputError
from tests.compiler.operators import scale, softmax

_LOADING = """
import json, sys
import numpy as np
from tapml.compiler.reference_module import StoredReference
from tapml.compiler.reference_module import StoredReference
from tapml.plan.graph_plan import Operator
from tapml_targets.library import Parameter
parameters = tuple(Parameter(n, ("n", 8), "float32", r) for n, r in (("a", "input"), ("b", "output")))
operator = Operator("scale", "", parameters, (), "", "", ("value",))
loaded = StoredReference.from_json(json.loads(sys.argv[1])).load([operator])
given, result = np.ones((2, 8), np.float32), np.zeros((2, 8), np.float32)
loaded["scale"](given, result)
print(result.sum(), sorted({"tvm", "torch"} & set(sys.modules)))
"""  # noqa: E501


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path))
    return tmp_path / "reference"


@pytest.fixture
def operators() -> list[Operator]:
    return [scale(factor=3.0), softmax()]


def stored(operators: list[Operator]) -> StoredReference:
    found = compile_reference(operators).stored
    assert found is not None
    return found


def test_the_code_is_loaded_without_tvm_or_torch(
    own_cache: Path, operators: list[Operator]
) -> None:
    assert own_cache.parent.is_dir()
    data = json.dumps(stored(operators).to_json())
    ended = subprocess.run(
        [sys.executable, "-c", _LOADING, data], capture_output=True, text=True, check=False
    )
    assert ended.stdout.strip() == "48.0 []", ended.stderr


def test_missing_or_damaged_code_is_not_loaded(own_cache: Path, operators: list[Operator]) -> None:
    found = stored(operators)
    (file,) = own_cache.glob("*.so")
    other = replace(operators[0], name="other")
    assert found.load([*operators, other]) is None
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert found.load(operators) is None
    assert not file.exists()
    assert found.load(operators) is None


def test_a_reference_with_a_broken_operator_is_not_stored(
    own_cache: Path, operators: list[Operator]
) -> None:
    broken = replace(
        operators[0], name="broken", function=operators[0].function.replace("tirx.For", "tirx.Fur")
    )
    assert compile_reference([*operators, broken]).stored is None
    assert own_cache.parent.is_dir()


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"key": "../" * 20, "symbols": {}},
        {"key": "ab" * 32, "symbols": {"one": "no identifier"}},
        {"key": "ab" * 32, "symbols": {"one": 1}},
    ],
)
def test_other_files_are_refused_as_a_stored_reference(data: object) -> None:
    with pytest.raises(InputError, match="a stored reference"):
        StoredReference.from_json(data)


def test_a_processor_is_described_the_same_way_twice() -> None:
    first = processor_identity()
    processor_identity.cache_clear()
    assert processor_identity() == first
    assert len(first) > 5


def test_a_loaded_reference_computes_the_same_bits(
    own_cache: Path, operators: list[Operator]
) -> None:
    compiled = compile_reference(operators)
    assert compiled.stored is not None
    loaded = compiled.stored.load(operators)
    assert loaded is not None
    assert own_cache.is_dir()
    given = np.random.default_rng(0).standard_normal((3, 100), np.float32)
    results = [np.zeros_like(given) for _ in range(2)]
    for reference, result in zip((compiled, loaded), results, strict=True):
        reference["softmax"](given, result)
    np.testing.assert_array_equal(results[0], results[1])
