"""How a batch is split among ranks, and which samples each rank then has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tapml.distributed.job_file import Job, describe, kind_of
from tapml.distributed.packing import map_tensors, tensors_in
from tapml_targets.errors import InputError


class IndivisibleError(Exception):
    """A batch that cannot be split among so many ranks; its text says why."""


def count_samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of its first tensor that has one."""
    found = next((each.shape[0] for each in tensors_in(batch) if each.ndim), 0)
    if not found:
        raise InputError(
            f"batch() returned no tensor with samples, but {kind_of(batch)}; return a tensor, or a "
            "dictionary, list or tuple of tensors whose first dimension counts samples"
        )
    return found


def split(job: Job, batch: Any, world: int) -> list[Any]:
    """The batch of each rank: by the job's `part`, else equal slices of consecutive samples.

    Raises
    ------
    IndivisibleError
        If the samples do not divide.
    InputError
        If `part` returns no samples.
    """
    if job.has("part"):
        found = []
        for rank in range(world):
            try:
                part = job.module.part(map_tensors(batch, torch.clone), rank, world)
            except Exception as error:
                text = f"part(batch, {rank}, {world}) raised {describe(error, job.path)}"
                raise IndivisibleError(text) from error
            if not any(each.ndim for each in tensors_in(part)):
                raise InputError(
                    f"{job.path.name}: part(batch, {rank}, {world}) must return the samples of a "
                    f"rank in the form of batch(), got {kind_of(part)} without a tensor of samples"
                )
            found.append(part)
        return found
    samples = count_samples(batch)
    if samples < world:
        raise IndivisibleError(
            f"{samples} samples are fewer than {world} ranks: make the batch larger"
        )
    if samples % world:
        raise IndivisibleError(
            f"{samples} samples do not divide among {world} ranks; make the batch a multiple of "
            f"{world}, or define part(batch, rank, world) and weight the loss by samples"
        )
    each = samples // world

    def of_rank(tensor: torch.Tensor, rank: int) -> torch.Tensor:
        has_samples = tensor.ndim > 0 and tensor.shape[0] == samples
        return tensor[rank * each : (rank + 1) * each] if has_samples else tensor

    return [map_tensors(batch, lambda t, rank=rank: of_rank(t, rank)) for rank in range(world)]  # type: ignore[misc]


def find_rows(batch: Any, part: Any) -> list[int] | None:
    """Indices of a part's samples in the batch, found by their content; None if some are not there.

    Equal samples get the indices of the first.
    """
    whole, own = dict(_leaves(batch)), dict(_leaves(part))
    samples = count_samples(batch)
    count = next((each.shape[0] for each in own.values() if each.ndim), 0)
    shared = [
        path
        for path, tensor in whole.items()
        if tensor.ndim
        and tensor.shape[0] == samples
        and path in own
        and own[path].shape[1:] == tensor.shape[1:]
        and own[path].shape[:1] == (count,)
    ]
    if not shared:
        return None
    places: dict[bytes, int] = {}
    for row in range(samples):
        places.setdefault(_content(whole, shared, row), row)
    rows = [places.get(_content(own, shared, row)) for row in range(count)]
    return None if None in rows else [row for row in rows if row is not None]


def _content(leaves: Mapping[str, torch.Tensor], paths: list[str], row: int) -> bytes:
    picked = [leaves[path][row].contiguous() for path in paths]
    return b"".join(each.reshape(-1).view(torch.uint8).numpy().tobytes() for each in picked)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value.detach()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}")
