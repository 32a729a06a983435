"""One run: the reference, or one rank of a distributed run. It ends with its process."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from tapml.distributed.child_process import join, named_tensors, seed_all
from tapml.distributed.engine import ranks_of
from tapml.distributed.job_file import Job, describe, kind_of, load_job
from tapml.distributed.optimizers import before_steps
from tapml.distributed.packing import map_tensors, tensors_in, unpack, unpack_tensor
from tapml.distributed.recording import Recorder, leaves_of
from tapml.distributed.samples_apart import switch_off
from tapml.distributed.witness import Witness
from tapml.isolate.member import Member
from tapml_targets.errors import InputError, RefusedError, WrongJobError

# A distributed model that is freed before the process ends may hang it.
_KEPT: Final[list[Any]] = []


def run(member: Member, payload: dict[str, Any]) -> dict[str, Any]:
    """Train as one rank; a job of a group, which for the reference has one member.

    With ranks on several machines, each has a group, and ``payload["part"]`` says which ranks.

    Raises
    ------
    RefusedError
        If the engine refuses the model.
    InputError
        If the job is wrong.
    """
    part, flag = payload.get("part"), Path(member.folder, "failed")
    if part is not None:
        member = replace(member, rank=part["first"] + member.rank, size=part["size"])
        flag = Path(part["flag"])
    started = time.monotonic()
    witness = Witness(member, payload["deadline"], flag)
    with witness.reporting():
        found = _run(member, payload, witness)
        if part is not None:
            from tapml.distributed.machines.meeting import leave

            leave(member, part, started + payload["deadline"] - time.monotonic())
        return found


def build(job: Job, payload: dict[str, Any], dtype: torch.dtype | None) -> nn.Module:
    """The model with the weights that were sent, in `dtype` unless that is None."""
    seed_all()
    model = job.model()
    given = payload["weights"]
    with torch.no_grad():
        for name, tensor in named_tensors(model):
            if name not in given:
                raise InputError(
                    f"{job.path.name}: model() built {name} in one process and not in all"
                )
            value = unpack_tensor(given[name])
            if is_lazy(tensor):
                tensor.materialize(value.shape)
            if tensor.shape != value.shape:
                raise InputError(
                    f"{job.path.name}: model() gave {name} the shape {tuple(value.shape)} at "
                    f"first and {tuple(tensor.shape)} now; build the same model every time"
                )
            tensor.copy_(value)
    switch_off(model, payload["off"])
    if dtype is not None:
        model.to(dtype)
    if payload["perturb"]:
        _perturb(model, payload["perturb"], payload["roundoff"])
    return model


def cast(batch: Any, dtype: torch.dtype | None) -> Any:
    """A batch with its floating-point tensors in `dtype`."""
    if dtype is None:
        return batch
    return map_tensors(batch, lambda each: each.to(dtype) if each.is_floating_point() else each)


def twin_dtype(payload: dict[str, Any]) -> torch.dtype | None:
    """The dtype of a float64 run, which also becomes the default; None for the job's own."""
    if payload["precision"] != "float64":
        return None
    torch.set_default_dtype(torch.float64)
    return torch.float64


def _run(member: Member, payload: dict[str, Any], witness: Witness) -> dict[str, Any]:
    torch.set_num_threads(1)
    dtype = twin_dtype(payload)
    witness.stage = "load the job"
    job = load_job(Path(payload["job"]))
    witness.stage = "meet the other ranks"
    join(member, payload["deadline"], payload.get("part"))
    witness.stage = "model()"
    model = build(job, payload, dtype)
    reference = payload["engine"] is None
    ranks = None if reference else ranks_of(payload["engine"])
    held = getattr(ranks, "held", None)
    sends = member.rank == 0 or payload["send_all"] or getattr(ranks, "APART", False)
    recorder = Recorder(model, sends=sends, held=held)
    if reference:
        recorder.watch_backward(model)
        wrapped = model
    else:
        witness.stage = "distribute"
        wrapped = _distribute(job, payload, model, member)
    witness.stage = "optimizer()"
    with job.calling("optimizer()"):
        optimizer = job.optimizer(wrapped)
    shard = getattr(ranks, "shard_optimizer", None)
    holder = optimizer
    if shard is not None:
        optimizer, holder = shard(optimizer, wrapped)
    _KEPT.append((model, wrapped, optimizer, recorder))
    _listen(recorder, wrapped, optimizer)
    take_step = _step_of(job, payload)
    precisions = _Precisions()
    seed_all()
    random_before = torch.get_rng_state()
    started = time.monotonic()
    for step, ranks in enumerate(payload["steps"], 1):
        witness.stage = f"step {step}"
        packed, rows = ranks[member.rank]
        batch = cast(unpack(packed), dtype)
        recorder.begin_step(wrapped)
        given = map_tensors(batch, torch.clone)
        with precisions if payload["observe"] else nullcontext(), job.calling("step()"):
            take_step(wrapped, given, optimizer)
        recorder.end_step(wrapped, holder, step, rows, sends_state=holder is not optimizer)
    seconds = time.monotonic() - started
    drew = not torch.equal(random_before, torch.get_rng_state())
    recorder = _evaluate(job, payload, witness, wrapped, batch, recorder, rows)
    witness.stage = "done"
    return {
        "records": recorder.records,
        "not_compared": recorder.not_compared,
        "seconds": seconds,
        "random": drew,
        "dtypes": precisions.seen,
    }


def _distribute(job: Job, payload: dict[str, Any], model: nn.Module, member: Member) -> nn.Module:
    package, options = payload["engine"], payload["options"]
    try:
        return ranks_of(package).distribute(model, job, member.rank, member.size, **options)
    except InputError:
        raise
    except Exception as error:
        if package.endswith(".own"):
            raise InputError(
                f"{job.path.name}: distribute() raised {describe(error, job.path)}"
            ) from error
        said = describe(error, job.path)
        raise RefusedError(said) from error


def _evaluate(
    job: Job,
    payload: dict[str, Any],
    witness: Witness,
    model: nn.Module,
    batch: Any,
    recorder: Recorder,
    rows: list[int] | None,
) -> Recorder:
    """Record what the trained model predicts, as it is or as it is served."""
    steps, serve = len(payload["steps"]), payload["serve"]
    if serve is not None:
        witness.stage = "serve"
        model, recorder = _serve(job, serve, model, recorder)
    witness.stage = "predict"
    listens = payload["hidden"] or serve is not None
    if listens:
        recorder.begin_hidden()
    failed = _predict(job, model, batch, recorder, steps, rows)
    if failed and serve is not None:
        raise RuntimeError(failed)
    if listens:
        recorder.end_hidden(steps, rows, "hidden" if payload["hidden"] else "forward")
    return recorder


def _serve(
    job: Job, serve: dict[str, Any], model: nn.Module, recorder: Recorder
) -> tuple[nn.Module, Recorder]:
    """The trained model as it is served, and its recorder, which knows the last step's calls."""
    recorder.stop()
    ranks: Any = ranks_of(serve["engine"])
    try:
        served = ranks.serve(model, serve["world"], **serve["options"])
    except Exception as error:
        raise RefusedError(describe(error, job.path)) from error
    listening = Recorder(served, sends=True)
    listening.root_calls = recorder.root_calls
    _KEPT.append((served, listening))
    return served, listening


def _listen(recorder: Recorder, model: nn.Module, optimizer: Any) -> None:
    """Record the start, and the gradients as the optimizer finds them."""
    if hasattr(model, "_orig_mod"):
        recorder.keep_out_of(model)
    recorder.start(model)
    without = before_steps(optimizer, lambda others: recorder.take_gradients(model, others))
    if without:
        text = f"{without[0]} has no hooks before its step: they are read after it"
        recorder.not_compared["gradients as the optimizer finds them"] = text


def _step_of(job: Job, payload: dict[str, Any]) -> Callable[[nn.Module, Any, Any], Any]:
    """The job's step, or the engine's way to take it."""
    package = payload["engine"]
    of_engine = None if package is None else getattr(ranks_of(package), "step", None)
    if of_engine is None:
        return job.step
    taken: Callable[[nn.Module, Any, Any], Any] = partial(of_engine, job, **payload["options"])
    return taken


def _predict(
    job: Job,
    model: nn.Module,
    batch: Any,
    recorder: Recorder,
    step: int,
    rows: list[int] | None,
) -> str:
    """Record predictions: the job's, or those of the calls that the last step made.

    Returns why there are none; empty if there are.
    """
    model.eval()
    with torch.no_grad():
        if job.has("predict"):
            with job.calling("predict()"):
                found = leaves_of(job.module.predict(model, batch))
            if not any(True for _ in tensors_in(found)):
                raise WrongJobError(
                    f"{job.path.name}: predict() must return a tensor, or a dictionary, list or "
                    f"tuple of tensors, got {kind_of(found)}"
                )
            recorder.predictions([found], step, rows)
            return ""
        try:
            calls = list(recorder.root_calls)
            found = [leaves_of(model(*args, **named)) for args, named in calls]
        except Exception as error:
            # A model may not run outside its step; all ranks then fail alike.
            recorder.not_compared["(prediction)"] = describe(error, job.path)
            return recorder.not_compared["(prediction)"]
    recorder.predictions(found, step, rows, by_calls=True)
    return ""


def _perturb(model: nn.Module, seed: int, roundoff: float) -> None:
    """Move every weight by up to `roundoff` relative, or its own last place, up or down."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, tensor in named_tensors(model):
            if tensor.is_floating_point():
                noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
                scale = max(torch.finfo(tensor.dtype).eps, roundoff) * noise
                tensor.copy_((tensor.double() * (1 + scale)).to(tensor.dtype))


class _Precisions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the floating-point formats that operations give, and the first that gives each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[str, list[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tensors_in(found if isinstance(found, tuple | list) else [found]):
            if tensor.is_floating_point():
                name = str(tensor.dtype).removeprefix("torch.")
                self.seen.setdefault(name, [torch.finfo(tensor.dtype).eps, str(func)])
        return found
