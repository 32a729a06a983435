"""A job of `tapml distributed check` with one of five models and one seeded mistake, or none.

`MODEL` and `MUTANT` say which. Mistakes exist on several ranks only.
"""

# Annotations are no text here: torch looks at those of communication hooks.
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

Reduced = torch.futures.Future[torch.Tensor]

MODEL = os.environ.get("TAPML_MODEL", "layers")
MUTANT = os.environ.get("TAPML_MUTANT", "")
SAMPLES, STEPS = 24, 2
RATE = 0.05
_BEFORE: dict[torch.Tensor, torch.Tensor] = {}


class Layers(nn.Module):
    """A chain with a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)
        self.second.weight.requires_grad = False

    def forward(self, x: torch.Tensor) -> Any:
        """Scores of samples of six numbers."""
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Images(nn.Module):
    """A convolution with a normalization that keeps samples apart."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, 3, padding=1)
        self.normal = nn.GroupNorm(2, 4)
        self.last = nn.Linear(24, 3)
        self.normal.bias.requires_grad = False

    def forward(self, x: torch.Tensor) -> Any:
        """Scores of samples of six numbers."""
        return self.last(torch.relu(self.normal(self.convolution(x[:, None]))).flatten(1))


class Tables(nn.Module):
    """Two embedding tables beside a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 4)
        self.other = nn.EmbeddingBag(9, 4, mode="sum")
        self.last = nn.Linear(14, 3)
        self.other.weight.requires_grad = False

    def forward(self, x: torch.Tensor) -> Any:
        """Scores of samples of six numbers."""
        rows = (x[:, :2].abs() * 40).long()
        found = [self.table(rows[:, 0] % 12), self.other(rows % 9), x]
        return self.last(torch.cat(found, 1))


class Attention(nn.Module):
    """Attention over six tokens, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(1, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.normal = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)
        self.normal.bias.requires_grad = False

    def forward(self, x: torch.Tensor) -> Any:
        """Scores of samples of six numbers."""
        tokens = self.enter(x[:, :, None])
        tokens = self.normal(tokens + self.attend(tokens, tokens, tokens)[0])
        return self.last(tokens.mean(1))


class Recurrent(nn.Module):
    """A recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.walk = nn.GRU(2, 6, batch_first=True)
        self.last = nn.Linear(6, 3)
        self.walk.bias_ih_l0.requires_grad = False

    def forward(self, x: torch.Tensor) -> Any:
        """Scores of samples of six numbers."""
        return self.last(self.walk(x.reshape(len(x), 3, 2))[0][:, -1])


MODELS = {
    "layers": Layers,
    "images": Images,
    "tables": Tables,
    "attention": Attention,
    "recurrent": Recurrent,
}


def model() -> nn.Module:
    return MODELS[MODEL]()


def batch() -> dict[str, torch.Tensor]:
    return {
        "x": torch.randn(SAMPLES, 6),
        "y": torch.randn(SAMPLES, 3),
        # Like tokens that a loss ignores: the ranks have different numbers of them.
        "counts": (torch.arange(SAMPLES) % 7 < 4).float(),
    }


def part(batch: dict[str, torch.Tensor], rank: int, world: int) -> dict[str, torch.Tensor]:
    each = SAMPLES // world
    first, last = rank * each, (rank + 1) * each
    if MUTANT == "samples repeat" and world > 1 and rank == 1:
        first, last = first - 1, last - 1
    if MUTANT == "samples left out" and world > 1 and rank == world - 1:
        last -= 2
    if MUTANT == "uneven" and world > 1 and rank < 2:
        first, last = (first, last + 2) if rank == 0 else (first + 2, last)
    return {name: value[first:last] for name, value in batch.items()}


def _one_trained(network: nn.Module) -> tuple[str, nn.Parameter]:
    return next((name, each) for name, each in network.named_parameters() if each.requires_grad)


def _frozen(network: nn.Module) -> nn.Parameter:
    return next(each for each in network.parameters() if not each.requires_grad)


def optimizer(network: nn.Module) -> torch.optim.Optimizer:
    world = dist.get_world_size()
    trained = [each for each in network.parameters() if each.requires_grad]
    rate, momentum, decay = RATE, 0.9, 1e-3
    if world > 1:
        second = dist.get_rank() == 1
        if MUTANT == "rate times ranks":
            rate *= world
        if MUTANT == "rate halved":
            rate /= 2
        if MUTANT == "rate of one rank":
            rate *= 3 if second else 1
        if MUTANT == "momentum of one rank":
            momentum = 0.5 if second else momentum
        if MUTANT == "decay of one rank":
            decay = 0.1 if second else decay
        if MUTANT == "not in the optimizer":
            trained = trained[1:]
    made = torch.optim.SGD(trained, lr=rate, momentum=momentum, weight_decay=decay)
    if MUTANT == "steps twice" and world > 1:
        made.register_step_post_hook(lambda *_: _again(trained))
    return made


def _again(trained: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for each in trained:
            if each.grad is not None:
                each.sub_(RATE * each.grad)


def distribute(network: nn.Module, rank: int, world: int) -> Any:
    name, parameter = _one_trained(network)
    synchronized = MUTANT != "adrift"
    with torch.no_grad():
        if MUTANT == "adrift" and rank == 1:
            parameter.add_(1e-4)
        if world > 1 and MUTANT == "made again":
            parameter.mul_(0.5)
    if world > 1 and MUTANT == "frozen moves":
        _frozen(network).requires_grad = True
    if world > 1 and MUTANT == "frozen by mistake":
        parameter.requires_grad = False
    if MUTANT == "parameter ignored":
        wrapper: Any = DistributedDataParallel
        wrapper._set_params_and_buffers_to_ignore_for_model(network, [name])
    wrapped: Any = DistributedDataParallel(network, init_sync=synchronized)
    hook = _HOOKS.get(MUTANT)
    if hook is not None and world > 1:
        wrapped.register_comm_hook({}, hook)
    return wrapped


def predict(network: Any, batch: dict[str, torch.Tensor]) -> Any:
    return network(batch["x"])


def step(network: Any, batch: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    several = dist.get_world_size() > 1
    optimizer.zero_grad()
    called = network.module if several and MUTANT == "bypasses the wrapper" else network
    if several and MUTANT == "no_sync":
        with network.no_sync():
            _loss(called, batch).backward()
    else:
        _loss(called, batch).backward()
    trained = [each for each in network.parameters() if each.grad is not None]
    if several and MUTANT == "clipped by own norm":
        with torch.no_grad():
            norm = batch["x"].norm()
            for each in trained:
                each.grad.mul_(1 / (1 + norm))
    if several and MUTANT == "stale":
        for each in trained:
            now = each.grad.clone()
            each.grad.copy_(_BEFORE.get(each, now))
            _BEFORE[each] = now
    if several and MUTANT == "accumulation":
        for each in trained:
            each.grad.div_(4)
    optimizer.step()


def _loss(network: Any, batch: dict[str, torch.Tensor]) -> Any:
    error = (network(batch["x"]) - batch["y"]) ** 2
    if MUTANT == "loss is a sum":
        return error.sum()
    if MUTANT == "tokens":
        return (error.mean(1) * batch["counts"]).sum() / batch["counts"].sum()
    if MUTANT == "samples see each other":
        found = network(batch["x"])
        likeness = found @ found.T
        target = torch.arange(len(found))
        return functional.cross_entropy(likeness, target)
    return error.mean()


def _then(bucket: Any, change: Any) -> Reduced:
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    changed: Reduced = work.get_future().then(lambda done: change(done.value()[0]))
    return changed


def _ready(tensor: torch.Tensor) -> Reduced:
    future: Reduced = torch.futures.Future()
    future.set_result(tensor)
    return future


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    return tensor / dist.get_world_size()


def _sum(state: object, bucket: GradBucket) -> Reduced:
    return _then(bucket, lambda total: total)


def _twice(state: object, bucket: GradBucket) -> Reduced:
    return _then(bucket, lambda total: _mean(_mean(total)))


def _own(state: object, bucket: GradBucket) -> Reduced:
    return _ready(bucket.buffer())


def _first_alone(state: object, bucket: GradBucket) -> Reduced:
    tensor = bucket.buffer()
    dist.broadcast(tensor, 0)
    return _ready(tensor)


def _left_out(state: object, bucket: GradBucket) -> Reduced:
    if dist.get_rank() == 1:
        bucket.buffer().zero_()
    return _then(bucket, lambda total: total / (dist.get_world_size() - 1))


def _groups(state: dict[str, Any], bucket: GradBucket) -> Reduced:
    if "group" not in state:
        pairs = [dist.new_group([each, each + 1]) for each in range(0, dist.get_world_size(), 2)]
        state["group"] = pairs[dist.get_rank() // 2]
    tensor = bucket.buffer()
    dist.all_reduce(tensor, group=state["group"])
    return _ready(tensor / 2)


def _bfloat16(state: object, bucket: GradBucket) -> Reduced:
    return _then(bucket, lambda total: _mean(total).to(torch.bfloat16).to(total.dtype))


def _float16(state: object, bucket: GradBucket) -> Reduced:
    return _then(bucket, lambda total: _mean(total).to(torch.float16).to(total.dtype))


def _clipped(state: object, bucket: GradBucket) -> Reduced:
    own = bucket.buffer()
    own *= (0.1 / own.norm()).clamp(max=1.0)
    return _then(bucket, _mean)


def _zero(state: object, bucket: GradBucket) -> Reduced:
    return _then(bucket, torch.zeros_like)


def _negative(state: object, bucket: GradBucket) -> Reduced:
    return _then(bucket, lambda total: -_mean(total))


def _counted_twice(state: object, bucket: GradBucket) -> Reduced:
    if dist.get_rank() == 1:
        bucket.buffer().mul_(2)
    return _then(bucket, _mean)


_HOOKS: dict[str, Any] = {
    "sum": _sum,
    "divided twice": _twice,
    "own": _own,
    "first rank alone": _first_alone,
    "one left out": _left_out,
    "groups": _groups,
    "bfloat16": _bfloat16,
    "float16": _float16,
    "clipped before": _clipped,
    "zero": _zero,
    "negative": _negative,
    "counted twice": _counted_twice,
}
