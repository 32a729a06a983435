"""More wrong kernels, each stopped at as the first ones."""

from __future__ import annotations

import pytest

from tapml.plan.graph_plan import GraphPlan
from tapml_targets.target import Target
from tests.offload.end_to_end.test_planted_kernels import (
    Stopped,
    stop_at,
    test_its_repro_folder_replays_to_the_same_verdict_elsewhere,
    test_right_kernels_in_its_place_let_the_same_session_finish,
    test_the_last_lines_name_the_operator_where_it_comes_from_and_its_numbers,
    test_the_migration_stops_at_exactly_that_operator,
)
from tests.offload.sessions import FinishedSession

__all__ = [
    "test_its_repro_folder_replays_to_the_same_verdict_elsewhere",
    "test_right_kernels_in_its_place_let_the_same_session_finish",
    "test_the_last_lines_name_the_operator_where_it_comes_from_and_its_numbers",
    "test_the_migration_stops_at_exactly_that_operator",
]


@pytest.fixture(scope="module", params=["index", "transposed weight", "swapped arguments"])
def stopped(
    request: pytest.FixtureRequest,
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    tiny_target: Target,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stopped:
    root = tmp_path_factory.mktemp("planted")
    return stop_at(request.param, finished, tiny_plan, tiny_target, root)
