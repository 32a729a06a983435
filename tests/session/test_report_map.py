"""Where call sites stand on the migration map."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tapml.plan import format as plan_format
from tapml.report.layout import COLUMN_WIDTH, COLUMNS, LANE_HEIGHT, GraphMap
from tapml.session.report_map import map_of
from tests.offload.sessions import FinishedSession
from tests.session.plans import chain, decoder


def drawn(layers: int) -> GraphMap:
    plan = decoder(layers)
    return map_of(plan, plan.entries["e"])


def place(entry_map: GraphMap, site: str) -> tuple[int, int]:
    (node,) = (each for each in entry_map.nodes if each.node.name == site)
    return node.left, node.top


def test_there_is_a_band_per_layer_and_one_before_and_after() -> None:
    assert [title for title, *_ in drawn(3).bands] == [
        "before", "layer 0", "layer 1", "layer 2", "after",
    ]  # fmt: skip


def test_a_model_without_layers_is_one_band() -> None:
    assert [title for title, *_ in drawn(0).bands] == ["model"]


def test_edges_go_from_who_writes_to_who_reads_and_through_views() -> None:
    entry_map = drawn(2)
    sites = [node.node.name for node in entry_map.nodes]
    edges = {(sites[source], sites[target]) for source, target in entry_map.edges}
    layer = {
        (f"e/layer{n}/{source}", f"e/layer{n}/{target}")
        for n in range(2)
        for source, target in (
            ("norm", "left"), ("norm", "right"), ("left", "join"), ("right", "join"),
            ("join", "last"),
        )
    }  # fmt: skip
    assert edges == layer | {
        ("e/embed", "e/layer0/norm"),
        ("e/layer0/last", "e/layer1/norm"),
        ("e/layer1/last", "e/head"),
    }


def test_inside_a_layer_a_site_stands_right_of_what_it_reads() -> None:
    entry_map = drawn(1)
    left, right = place(entry_map, "e/layer0/left"), place(entry_map, "e/layer0/right")
    join = place(entry_map, "e/layer0/join")
    assert left[0] == right[0] == place(entry_map, "e/layer0/norm")[0] + COLUMN_WIDTH
    assert right[1] == left[1] + LANE_HEIGHT
    assert join[0] == left[0] + COLUMN_WIDTH


def test_layers_stand_alike() -> None:
    entry_map = drawn(3)
    corners = {title: (left, top) for title, left, top, _ in entry_map.bands}
    shapes = [
        [
            (node.left - corners[f"layer {layer}"][0], node.top - corners[f"layer {layer}"][1])
            for node in entry_map.nodes
            if node.node.band == f"layer {layer}"
        ]
        for layer in range(3)
    ]
    assert shapes[0] == shapes[1] == shapes[2]


def test_many_layers_are_about_as_wide_as_tall() -> None:
    for layers in (24, 48, 96):
        entry_map = drawn(layers)
        assert 0.7 < entry_map.width / entry_map.height < 2.5
        titles = [title for title, *_ in entry_map.bands]
        assert titles == ["before", *(f"layer {n}" for n in range(layers)), "after"]


def test_a_long_layer_is_broken_into_rows() -> None:
    entry = chain(3 * COLUMNS + 2)
    entry_map = map_of(entry, entry.entries["e"])
    lefts = [node.left for node in entry_map.nodes]
    tops = [node.top for node in entry_map.nodes]
    assert lefts[:COLUMNS] == sorted(set(lefts))
    assert lefts[COLUMNS : 2 * COLUMNS] == lefts[:COLUMNS]
    assert len(set(tops)) == 4
    assert tops == sorted(tops)


@given(st.integers(0, 60))
def test_nothing_overlaps_and_everything_is_inside(layers: int) -> None:
    plan = decoder(layers)
    entry_map = map_of(plan, plan.entries["e"])
    assert [node.node.name for node in entry_map.nodes] == [c.site for c in plan.entries["e"].calls]
    assert len({(node.left, node.top) for node in entry_map.nodes}) == len(entry_map.nodes)
    ends: dict[int, int] = {}
    for title, left, top, height in entry_map.bands:
        assert top >= ends.get(left, 0)
        ends[left] = top + height
        assert left + entry_map.strip <= entry_map.width
        for node in entry_map.nodes:
            if node.node.band == title:
                assert top <= node.top <= top + height - LANE_HEIGHT
                assert left <= node.left <= left + entry_map.strip - COLUMN_WIDTH
    assert max(ends.values()) <= entry_map.height
    corners = sorted(ends)
    assert all(b - a >= entry_map.strip for a, b in pairwise(corners))
    for source, target in entry_map.edges:
        assert source < target < len(entry_map.nodes)


def test_a_real_plan_draws_every_call_site_once(finished: FinishedSession) -> None:
    plan = plan_format.unpack((finished.folder / "finished" / "plan.msgpack").read_bytes())
    for entry in plan.entries.values():
        entry_map = map_of(plan, entry)
        assert [node.node.name for node in entry_map.nodes] == [call.site for call in entry.calls]
        read = {target for _, target in entry_map.edges}
        assert len(read) >= len(entry.calls) * 0.7, "most call sites read another's output"
        assert "layer 0" in [title for title, *_ in entry_map.bands]
