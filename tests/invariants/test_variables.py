"""Variables of a watched run are known by cheap marks only as long as these tell."""

from __future__ import annotations

import torch
from torch import nn

from tapml.invariants.needs import Needs
from tapml.invariants.recorder import Recorder
from tapml.invariants.recording import Recording
from tapml.invariants.variables import Variables


def test_a_parameter_that_lay_elsewhere_for_a_while_is_read_where_it_lies() -> None:
    needs = Needs(frozenset(), {}, frozenset(), False, False, False, between=True)
    variables, recorder = Variables(needs), Recorder(Recording())
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    variables.add(model, optimizer)
    variables.versions_tell = lambda _: True
    variables.note_step(recorder, variables.values())
    first = variables.left()
    own = model.weight.data
    model.weight.data = torch.zeros(1, 2)
    assert variables.values()["weight"] != first["weight"]
    model.weight.data = own
    variables.note_step(recorder, first)
    assert variables.left() == first
