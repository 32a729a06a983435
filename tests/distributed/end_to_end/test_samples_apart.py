"""Layers that mix samples, or draw random numbers, are named as the cause, with the remedy."""

from __future__ import annotations

from tapml.distributed.results import Outcome
from tests.distributed.conftest import CheckJob

_BATCH_NORM = """
def model():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
"""
_DROPOUT = """
def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
"""
_FUNCTION = """
class Dropping(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)

def model():
    return Dropping(4, 2)
"""
_BOTH = """
def model():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))

def distribute(model, rank, world):
    from torch.nn.parallel import DistributedDataParallel
    wrapped = DistributedDataParallel(model)
    if SUMMED:
        from tests.distributed.jobs.planted import _sum
        wrapped.register_comm_hook(None, _sum)
    return wrapped
"""


def test_batch_norm_is_the_cause(check_job: CheckJob) -> None:
    one, ddp, fsdp2 = (
        check_job(_BATCH_NORM, worlds=[world], engines=[engine]).results[0]
        for engine, world in (("ddp", 1), ("ddp", 2), ("fsdp2", 2))
    )

    assert one.outcome is Outcome.EQUAL
    for found in (ddp, fsdp2):
        assert found.outcome is Outcome.INCONSISTENT
        assert found.triggers == ("BatchNorm",)
        assert "BatchNorm computes statistics of each rank's own samples" in found.mistake
        assert "SyncBatchNorm" in found.remedy


def test_dropout_is_the_cause_as_a_layer_and_as_a_function(check_job: CheckJob) -> None:
    for code in (_DROPOUT, _FUNCTION):
        (found,) = check_job(code, worlds=[2], engines=["ddp"]).results

        assert found.triggers == ("dropout",)
        assert "dropout draws other masks" in found.mistake
        assert "set dropout to 0" in found.remedy


def test_both_causes_are_named_and_a_mistake_beside_them_is_found(check_job: CheckJob) -> None:
    (both,) = check_job(_BOTH + "SUMMED = False", worlds=[2]).results
    (summed,) = check_job(_BOTH + "SUMMED = True", worlds=[2]).results

    assert both.triggers == ("BatchNorm", "dropout")
    assert summed.triggers == ()
    assert "summed over the ranks" in summed.mistake
