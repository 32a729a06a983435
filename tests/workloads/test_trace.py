"""What the reference gave for the cases of a model."""

from __future__ import annotations

import numpy as np
import pytest

from tapml.plan.graph_plan import GraphPlan
from tapml.plan.plan_notes import BRANCHES, notes_of
from tapml.verdicts.modelwise import allowed_logit_error
from tapml.workloads.module import Input
from tapml.workloads.trace import CaseTrace, ReferenceTrace
from tapml_targets.errors import InputError


def test_a_case_that_takes_another_branch_is_refused_with_the_line() -> None:
    numbers = np.array([[1.0, 2.0]], np.float32)
    allowed = allowed_logit_error("float32", np.ones(1), 0.0)
    cases = tuple(
        CaseTrace(Input.of((numbers,), text), (), outputs, allowed)
        for text, outputs in (("a.npy", numbers), ("b.npy", numbers * np.nan))
    )
    plan = GraphPlan("net", {}, {}, {}, {}, metadata={BRANCHES: "models/net.py:3"})
    assert "models/net.py:3" in notes_of(plan)[0]
    ReferenceTrace(cases[:1]).check_branches(plan)
    with pytest.raises(InputError, match=r"case 2 \(b\.npy\) .* branch at models/net\.py:3 than"):
        ReferenceTrace(cases).check_branches(plan)
    # Elsewhere, NaN is a number as the module gives it.
    ReferenceTrace(cases).check_branches(GraphPlan("net", {}, {}, {}, {}))
