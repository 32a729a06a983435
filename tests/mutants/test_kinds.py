"""Each kind of mistake changes exactly what it says, in one place, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.mutants.kinds import KINDS, sites
from scripts.mutants.parser import parse_module
from scripts.mutants.site import PlanSite, SourceSite
from tapml_targets.library import Launch
from tests.mutants.kernels import GATE, REDUCE, library

_GATE = library(GATE, "gate_kernel")
_REDUCE = library(REDUCE, "reduce_kernel")
_THREAD = "convert_int(get_local_id(0))"


def _source_sites(name: str) -> list[SourceSite]:
    found = [*sites(_GATE).get(name, []), *sites(_REDUCE).get(name, [])]
    return [site for site in found if isinstance(site, SourceSite)]


def _plan_sites(name: str) -> list[PlanSite]:
    return [site for site in sites(_GATE).get(name, []) if isinstance(site, PlanSite)]


def _changes(name: str) -> set[tuple[str, str, str]]:
    return {(site.rule, site.before, site.after) for site in _source_sites(name)}


def test_the_two_kernels_have_sites_of_every_kind() -> None:
    assert set(sites(_GATE)) | set(sites(_REDUCE)) == set(KINDS)
    assert len(KINDS) == 15


@pytest.mark.parametrize(
    ("kind", "rule", "before", "after"),
    [
        ("index shift", "one further", "0", "(0) + 1"),
        ("index shift", "one before", f"({_THREAD}) + 4", f"(({_THREAD}) + 4) - 1"),
        ("bound off by one", "bound + 1", "S", "(S + 1)"),
        ("bound off by one", "bound - 1", "4", "(4 - 1)"),
        ("bound off by one", "bound + 1", "8", "(8 + 1)"),
        ("dropped guard", "always", f"({_THREAD}) < 4", "1"),
        ("dropped barrier", "no barrier", "barrier(CLK_LOCAL_MEM_FENCE);", ";"),
        ("reduction start", "another value", "0.00000000e+00f", "1.0f"),
        ("reduction start", "no value", "sum_ptr[0] = 0.00000000e+00f;", ";"),
        ("reduction start", "second term", "0", "(0 + 1)"),
        ("operand swap", "branches", f"({_THREAD}) == 0", f"!(({_THREAD}) == 0)"),
        ("operand swap", "arguments of pow", "pow(sum_ptr[0], 2.00000000e+00f)",
         "pow(2.00000000e+00f, sum_ptr[0])"),
        ("sign", "stored value", "sum_ptr[0]", "-(sum_ptr[0])"),
        ("constant", "twice", "2.00000000e+00f", "(2 * 2.00000000e+00f)"),
        ("constant", "one per cent more", "2.00000000e+00f", "(1.01f * 2.00000000e+00f)"),
        ("constant", "one for zero", "0.00000000e+00f", "(0.00000000e+00f + 1)"),
        ("transposed load", "row and column", "((convert_int(get_group_id(0))) * 8) + k",
         "((k) * 8) + (convert_int(get_group_id(0)))"),
        ("wrong stride", "one too many", "8", "(8 + 1)"),
        ("wrong stride", "one too few", "(long)64", "((long)64 - 1)"),
        ("skipped tail", "last round", "8", "(8 - 1)"),
        ("unsafe exponential", "pow from log", "pow(sum_ptr[0], 2.00000000e+00f)",
         "exp((2.00000000e+00f) * log(sum_ptr[0]))"),
        ("unsafe exponential", "maximum not subtracted", "((volatile __local float*)red_ptr)[0]",
         "0.0f"),
        ("wrong cast", "int through char", _THREAD, "convert_int(convert_char(get_local_id(0)))"),
        ("wrong cast", "float through int", "x_ptr[(convert_long(get_local_id(0)))]",
         "convert_float(convert_int(x_ptr[(convert_long(get_local_id(0)))]))"),
    ],
)  # fmt: skip
def test_a_rule_makes_this_of_that(kind: str, rule: str, before: str, after: str) -> None:
    assert (rule, before, after) in _changes(kind)


def test_a_sum_keeps_as_many_bits_as_a_shorter_format() -> None:
    sums = [s for s in _source_sites("accumulator precision") if "exp(" in s.before]
    assert {(site.rule, site.after.rpartition("& ")[2]) for site in sums} == {
        ("as float16", "0xFFFFE000u)"),
        ("as bfloat16", "0xFFFF0000u)"),
    }
    assert all(f"as_float(as_uint((float)({site.before}))" in site.after for site in sums)


def test_a_logistic_is_rewritten_so_that_it_overflows() -> None:
    (site,) = [s for s in _source_sites("unsafe exponential") if s.rule.startswith("exp(x)")]
    x = "x_ptr[(convert_long(get_local_id(0)))]"
    assert site.after == f"(exp({x}) / (1.0f + exp({x})))"


def test_a_stale_output_is_stored_under_a_condition() -> None:
    for site in _source_sites("stale output"):
        assert site.after.startswith("if (")
        assert f"{{ {site.before} }}" in site.after


def test_only_loops_that_add_up_start_late() -> None:
    copying = REDUCE.replace("(sum_ptr[0] + exp(", "(0.5f + exp(")
    rules = {
        site.rule for site in sites(library(copying, "reduce_kernel")).get("reduction start", [])
    }
    assert "second term" not in rules


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutant_differs_in_one_place_and_can_still_be_read(kind: str) -> None:
    for site in _source_sites(kind):
        end = len(site.source) - site.edit.end
        assert site.text != site.source
        assert site.text[: site.edit.start] == site.source[: site.edit.start]
        assert not end or site.text[-end:] == site.source[-end:]
        if not site.after.startswith(";"):
            assert parse_module(site.text)


def test_nothing_but_the_text_of_the_module_changes() -> None:
    site = _source_sites("sign")[0]
    wrong = site.apply(_GATE)
    assert wrong.modules[0].code.decode() == site.text
    assert replace(wrong, modules=_GATE.modules) == _GATE


def test_a_launch_gets_its_inputs_in_each_others_place() -> None:
    (site,) = _plan_sites("operand swap")
    launch, right = site.program.statements[0], _GATE.operators["gate_kernel"].statements[0]
    assert isinstance(launch, Launch)
    assert isinstance(right, Launch)
    assert launch.arguments[:2] == right.arguments[1::-1]
    assert launch.arguments[2:] == right.arguments[2:]
    assert site.apply(_GATE).modules == _GATE.modules


def test_a_grid_loses_its_last_block_or_the_one_that_is_not_full() -> None:
    blocks = ("floordiv", ("add", "S", 63), 64)
    grids = {}
    for site in _plan_sites("skipped tail"):
        (launch,) = site.program.statements
        assert isinstance(launch, Launch)
        grids[launch.grid] = site.rule
    assert grids == {
        (("sub", blocks, 1), 2, 1): "last block",
        (("floordiv", "S", 64), 2, 1): "block that is not full",
        (blocks, 1, 1): "last block",
    }
