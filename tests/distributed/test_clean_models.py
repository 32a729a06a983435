"""Jobs of all kinds without a fault raise no alarm."""

from __future__ import annotations

import pytest

from tapml.distributed.results import Outcome
from tests.distributed.conftest import CheckJob

_JOBS = {
    "fewer rows than ranks, Adam, in-place layers": """
def model():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.GroupNorm(2, 4), nn.Flatten(),
        nn.Linear(16, 5),
    )
def batch():
    return torch.randn(8, 1, 4, 4)
def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=1e-2)
STEPS = 2
WORLDS = [4]
""",
    "attention, tied weights, clipping": """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Embedding(9, 4)
        self.inner = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.last = nn.Linear(4, 9, bias=False)
        self.last.weight = self.first.weight
    def forward(self, x):
        return self.last(self.inner(self.first(x)))
model = Tied
def batch():
    return torch.randint(0, 9, (8, 3))
def optimizer(m):
    return torch.optim.AdamW(m.parameters(), lr=1e-2)
def step(m, b, o):
    m.train()
    o.zero_grad()
    nn.functional.cross_entropy(m(b).flatten(0, 1), b.flatten()).backward()
    nn.utils.clip_grad_norm_(m.parameters(), 0.1)
    o.step()
STEPS = 2
""",
    "micro-batches and checkpointing": """
from torch.utils.checkpoint import checkpoint
class Checkpointed(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        inner = lambda h: torch.tanh(self.inner(h))
        return checkpoint(inner, super().forward(x), use_reentrant=False)
model = Checkpointed
def step(m, b, o):
    o.zero_grad()
    for each in b.chunk(2):
        (m(each).square().mean() / 2).backward()
    o.step()
""",
    "two calls with all samples each, packed sequences, a list of parameters, gathered outputs": """
import torch.distributed as dist
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(4, 3, batch_first=True)
        self.scales = nn.ParameterList([torch.ones(3), torch.zeros(3)])
    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        found, _ = pad_packed_sequence(self.inner(packed)[0], True, total_length=x.shape[1])
        return found.mean(1) * self.scales[0] + self.scales[1]
class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(found, x)
        return torch.cat(found)
    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]
model = Packed
def batch():
    return torch.randn(8, 5, 4), torch.randn(8, 5, 4), torch.tensor([3, 1, 5, 2, 4, 4, 2, 5])
def step(m, b, o):
    o.zero_grad()
    one, other = m(b[0], b[2]), m(b[1], b[2])
    scores = one @ Gathered.apply(other).T
    places = torch.arange(len(one)) + dist.get_rank() * len(one)
    nn.functional.cross_entropy(scores, places).backward()
    o.step()
""",
    "autocast": """
def step(m, b, o):
    o.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = m(b).square().mean()
    loss.backward()
    o.step()
""",
    "every second sample": """
def part(batch, rank, world):
    return batch[rank::world]
""",
}


@pytest.mark.parametrize("name", _JOBS)
def test_a_clean_job_is_equal(check_job: CheckJob, name: str) -> None:
    found = check_job(_JOBS[name], **({} if "WORLDS" in _JOBS[name] else {"worlds": [2]}))

    assert [each.outcome for each in found.results] == [Outcome.EQUAL] * 2, found.results
    assert all(each.compared["forward"] for each in found.results)


def test_a_job_that_computes_below_float64_is_judged_in_float32(check_job: CheckJob) -> None:
    code = """
class Cast(nn.Linear):
    def forward(self, x):
        return super().forward(x.float().tanh().to(x.dtype))
def model():
    return Cast(4, 2)
"""
    clean = check_job(code, worlds=[2], engines=["fsdp2"])
    wrong = check_job(code + "def part(b, rank, world):\n    return b[:4]", worlds=[2])

    assert not clean.facts.twin
    assert "computes in float32 whatever its weights are" in clean.facts.twin_reason
    assert [(each.outcome, each.precision) for each in clean.results] == [("equal", "float32")]
    for each in wrong.results:
        assert each.outcome is Outcome.INCONSISTENT
        assert "part() repeats samples or leaves some out" in each.mistake


def test_gradients_that_the_averaging_of_weights_makes_up_for_are_no_finding(
    check_job: CheckJob,
) -> None:
    code = """
import torch.distributed as dist
def distribute(model, rank, world):
    return model
def optimizer(m):
    return torch.optim.SGD(m.parameters(), lr={rate})
def step(m, b, o):
    o.zero_grad()
    m(b).square().mean().backward()
    o.step()
    with torch.no_grad():
        for each in m.parameters():
            dist.all_reduce(each)
            each /= dist.get_world_size()
"""

    def found(rate: float) -> tuple[str, str]:
        (result,) = check_job(code.format(rate=rate), worlds=[2], engines=["own"]).results
        told = [each for each in result.not_compared if each.startswith("gradient of")]
        return str(result.outcome), told[0] if told else result.mistake

    reason = "it differs, but what the ranks do with it gives the same update"
    assert found(0.1) == ("equal", f"gradient of bias: {reason}")
    # A rate of zero hides the mistake for now.
    assert found(0.0) == ("inconsistent", "gradients are not reduced: each rank keeps its own")
