"""One job with several faults: `FAULT` says which; without it, nothing is wrong."""

# Annotations are no text here: torch looks at those of communication hooks.
import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

Reduced = torch.futures.Future[torch.Tensor]

FAULT = ""
SAMPLES = 8


class Network(nn.Module):
    """Two layers; the bias of the first is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 6)
        self.outer = nn.Linear(6, 3)
        self.inner.bias.requires_grad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.outer(torch.tanh(self.inner(x)))
        return result


model = Network


def batch() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(SAMPLES, 5), "y": torch.randn(SAMPLES, 3)}


def optimizer(model: nn.Module) -> Any:
    trained = [each for each in model.parameters() if each.requires_grad]
    rate = 0.05
    if FAULT == "learning rate":
        rate *= dist.get_world_size()
    if FAULT == "not updated" and dist.get_world_size() > 1:
        trained = trained[1:]
    return torch.optim.SGD(trained, lr=rate, momentum=0.9)


def distribute(model: Network, rank: int, world: int) -> nn.Module:
    if FAULT == "frozen moves":
        model.inner.bias.requires_grad = True
    if FAULT == "left out":
        wrapper: Any = DistributedDataParallel
        wrapper._set_params_and_buffers_to_ignore_for_model(model, ["outer.weight"])
    if FAULT == "adrift" and rank == 1:
        with torch.no_grad():
            model.outer.bias.add_(1e-3)
    wrapped = DistributedDataParallel(model, init_sync=FAULT != "adrift")
    hook = _HOOKS.get(FAULT)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    return wrapped


def step(model: nn.Module, batch: dict[str, torch.Tensor], optimizer: Any) -> None:
    culprit = dist.get_rank() == 1
    if FAULT == "crash" and culprit:
        raise ValueError("a bad sample")
    if FAULT == "death" and culprit:
        os._exit(7)
    if FAULT == "stopped" and culprit:
        os.kill(os.getpid(), signal.SIGSTOP)
    while FAULT == "hang" and culprit:
        torch.zeros(1)
    if FAULT == "mismatch" and dist.get_world_size() > 1:
        if culprit:
            dist.barrier()
        else:
            dist.all_reduce(torch.zeros(3))
    optimizer.zero_grad()
    ((model(batch["x"]) - batch["y"]) ** 2).mean().backward()
    optimizer.step()


def _then(bucket: GradBucket, change: Any) -> Reduced:
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    changed: Reduced = work.get_future().then(lambda done: change(done.value()[0]))
    return changed


def _sum(state: object, bucket: GradBucket) -> Reduced:
    return _then(bucket, lambda total: total)


def _twice(state: object, bucket: GradBucket) -> Reduced:
    return _then(bucket, lambda total: total / dist.get_world_size() ** 2)


def _own(state: object, bucket: GradBucket) -> Reduced:
    future: Reduced = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _rounded(state: object, bucket: GradBucket) -> Reduced:
    size = dist.get_world_size()
    return _then(bucket, lambda total: (total / size).to(torch.bfloat16).to(total.dtype))


def _clipped(state: object, bucket: GradBucket) -> Reduced:
    own = bucket.buffer()
    own *= (0.1 / own.norm()).clamp(max=1.0)
    return _then(bucket, lambda total: total / dist.get_world_size())


_HOOKS = {"sum": _sum, "twice": _twice, "own": _own, "rounded": _rounded, "clipped": _clipped}
