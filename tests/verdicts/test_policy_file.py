"""Policies as TOML: what is read back, what is refused and how it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.verdicts.limits import DEFAULT_LIMITS, RatioLimits
from tapml.verdicts.operator_class import CLASSES, OperatorClass
from tapml.verdicts.policy import Override, Policy
from tapml.verdicts.policy_file import parse_policy, policy_of, read_policy, write_policy
from tapml_targets.errors import InputError

ROOT = Path(__file__).parents[2]
EXAMPLE = """\
reason = "the device halves its clock"

[limits.float32.product]
passing = 100
degraded = 400.0

[[override]]
operator = "fused_gelu*"
output = "output_0"
dtype = "float32"
class = "transcendental"
passing = 256.0
degraded = 1024.0
reason = "tanh is read from a table"
"""


def test_what_the_file_says_holds() -> None:
    policy = parse_policy(EXAMPLE)
    product = policy.choose("matmul", "float32", 1, operator_class="product").limits
    assert product == RatioLimits(100.0, 400.0)
    assert policy.loosened == (
        "float32 product: the device halves its clock",
        "fused_gelu* (float32, transcendental, output_0): tanh is read from a table",
    )


@pytest.mark.parametrize(
    ("operator", "output", "dtype", "operator_class", "applies"),
    [
        ("fused_gelu2", "output_0", "float32", "transcendental", True),
        ("gelu", "output_0", "float32", "transcendental", False),
        ("fused_gelu2", "output_1", "float32", "transcendental", False),
        ("fused_gelu2", "output_0", "float16", "transcendental", False),
        ("fused_gelu2", "output_0", "float32", "elementwise", False),
    ],
)
def test_an_override_applies_to_what_it_names_and_to_nothing_else(
    operator: str, output: str, dtype: str, operator_class: OperatorClass, applies: bool
) -> None:
    chosen = parse_policy(EXAMPLE).choose(
        operator, dtype, 1, operator_class=operator_class, output=output
    )
    assert (chosen.override is not None) == applies


def test_numbers_computed_in_a_narrower_dtype_have_its_limits() -> None:
    chosen = Policy().choose("x", "float32", 1, operator_class="product", arithmetic="float16")
    assert chosen.dtype == "float16"
    chosen = Policy().choose("x", "float16", 1, operator_class="rounded", arithmetic="float32")
    assert chosen.dtype == "float16"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("repeat = 3", r"line 1: unknown key 'repeat'; did you mean 'repeats'\?"),
        ("\nrepeats = '3'", r"line 2: repeats should be an integer, got '3'"),
        ("repeats = true", "repeats should be an integer, got True"),
        ("repeats = 5\nappeal_repeats = 2", "expected 1 <= repeats <= appeal_repeats"),
        ("version = 1", "line 1: version 1: this tapml knows version 2"),
        ("seed = \nrepeats = 3", "is not TOML: .*line 1"),
        ("[limits]\nfloat23.product = {}", r"line 2: unknown dtype 'float23'.*'float32'"),
        ("[limits.float32.produkt]", "line 1: unknown operator class 'produkt'.*'product'"),
        ("[limits.float32]\npassing = 1", r"line 2: limits are given by class: write \[limits"),
        ("[limits.float32.scan]\ndegraded = 9", "line 1: limits.float32.scan has no 'passing': "),
        ("[limits.float32.scan]\npassing = 'x'\ndegraded = 9", "line 2: .*should be a number"),
        ("[limits.float32.scan]\npassing = nan\ndegraded = 9", "expected 0 < passing <= degraded"),
        ("[limits.float32.scan]\npassing = 90\ndegraded = 999", "scan are looser .* say why"),
        ("limits = 3", "limits should be a table"),
        ("override = 3", r"\[\[override\]\], once for each"),
        ("[[override]]\npassing = 1\ndegraded = 2\nreason = 'x'", "override 1 has no 'operator'"),
        ("[[override]]\noperator = 'x'\npassing = 1\ndegraded = 2", "line 2: .* has no reason"),
        ("[[override]]\noperater = 'x'", "unknown key 'operater' in override 1; .*'operator'"),
        ("flushes_subnormals = ['int8']", "unknown dtype 'int8' in flushes_subnormals"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_policy(text)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_policy(tmp_path / "none.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_policy(binary)


def test_the_example_of_the_documentation_is_a_policy() -> None:
    text = (ROOT / "docs" / "verdicts.md").read_text()
    example = text.partition("```toml\n")[2].partition("```")[0]
    policy = parse_policy(example)
    assert len(policy.loosened) == 2
    assert policy.overrides[0].output == "output_0"


def test_the_limits_of_the_documentation_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "verdicts.md").read_text()
    for name in CLASSES:
        if name == "discrete":
            continue
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        columns = row.strip("|").split("|")[2:]
        for dtype, column in zip(("float32", "float16", "bfloat16"), columns, strict=True):
            limits = DEFAULT_LIMITS[dtype][name]
            grows = limits.terms_without_growth
            start = "" if grows == RatioLimits(1, 1).terms_without_growth else f" from {grows}"
            assert column.strip() == f"{limits.passing:g} / {limits.degraded:g}{start}", (
                name,
                dtype,
            )


def test_without_a_file_the_calibrated_policy_holds(tmp_path: Path) -> None:
    assert policy_of(None) == Policy()
    path = tmp_path / "policy.toml"
    path.write_text(write_policy(Policy()))
    assert policy_of(path) == Policy()


def test_the_defaults_that_are_written_can_be_uncommented() -> None:
    text = write_policy(Policy())
    start = text.index("# [limits.")
    policy = parse_policy(text[:start] + text[start:].replace("# ", ""))
    assert len(policy.limits) == sum(map(len, DEFAULT_LIMITS.values()))
    assert policy.loosened == ()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
reasons = texts.map(lambda text: f"because {text}")
dtypes = st.sampled_from(list(DEFAULT_LIMITS))
classes = st.sampled_from([name for name in CLASSES if name != "discrete"])


@st.composite
def some_limits(draw: st.DrawFn) -> RatioLimits:
    passing = draw(st.floats(1e-3, 1e6))
    return RatioLimits(passing, passing * draw(st.floats(1, 100)), draw(st.integers(1, 10**6)))


overrides = st.builds(
    Override,
    pattern=texts,
    limits=some_limits(),
    reason=reasons,
    dtype=st.one_of(st.just(""), dtypes),
    operator_class=st.one_of(st.none(), classes),
    output=texts,
)
rows = st.dictionaries(st.tuples(dtypes, classes), some_limits(), max_size=4)
policies = st.builds(
    Policy,
    limits=rows.map(lambda table: tuple((*key, limits) for key, limits in sorted(table.items()))),
    overrides=st.lists(overrides, max_size=3).map(tuple),
    reason=reasons,
    repeats=st.integers(1, 5),
    appeal_repeats=st.integers(5, 50),
    flushes_subnormals=st.lists(dtypes, max_size=3).map(tuple),
    seed=st.integers(0, 2**40),
)


@given(policies)
def test_a_policy_survives_its_file(policy: Policy) -> None:
    assert parse_policy(write_policy(policy)) == policy
