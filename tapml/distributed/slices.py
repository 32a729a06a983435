"""The gradient of each rank's samples alone, on one device: what standard mistakes combine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tapml.distributed.child_process import join, named_tensors, seed_all
from tapml.distributed.job_file import load_job
from tapml.distributed.optimizers import before_steps
from tapml.distributed.packing import to_array, unpack, unpack_tensor
from tapml.distributed.rank import build, cast, twin_dtype
from tapml.isolate.member import Member


def slice_gradients(member: Member, payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a step for each rank's batch; a job of a group of one.

    The payload is that of :func:`tapml.distributed.rank.run`, with ``weights`` as they were before
    the step, ``batches``, one for each rank, and ``gradients`` of one device: of several optimizers
    each steps with those, so that the next one's gradients are of the weights that one device had.

    Returns
    -------
    list
        By rank, the gradient of each parameter that has one, before the optimizer's step.
    """
    torch.set_num_threads(1)
    dtype = twin_dtype(payload)
    job = load_job(Path(payload["job"]))
    join(member, payload["deadline"])
    model = build(job, payload, dtype)
    start = {name: unpack_tensor(value) for name, value in payload["weights"].items()}
    found = []
    for packed in payload["batches"]:
        with torch.no_grad():
            for name, tensor in named_tensors(model):
                tensor.copy_(start[name])
        model.zero_grad()
        optimizer = job.optimizer(model)
        taken: dict[str, np.ndarray[Any, Any]] = {}

        def take(
            waiting: frozenset[int] = frozenset(),
            taken: dict[str, np.ndarray[Any, Any]] = taken,
        ) -> None:
            for name, each in model.named_parameters():
                if name in taken or each.grad is None or id(each) in waiting:
                    continue
                taken[name] = to_array(each.grad)
                whole = payload["gradients"].get(name, {}).get("tensor") if waiting else None
                if whole is not None and whole.shape == tuple(each.grad.shape):
                    each.grad.copy_(torch.from_numpy(np.array(whole)))

        before_steps(optimizer, take)
        seed_all()
        job.step(model, cast(unpack(packed), dtype), optimizer)
        take()
        found.append(taken)
    return found
