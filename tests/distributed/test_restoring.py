"""What a restored checkpoint leaves behind."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from tapml.distributed import restoring


def test_a_checkpoint_that_cannot_be_written_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        assert list(tmp_path.glob("tapml-checkpoint-*"))
        raise OSError("No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(restoring, "save", full)
    model, job = torch.nn.Linear(1, 1), None
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        optimizer: Any = torch.optim.SGD(model.parameters())
        with pytest.raises(OSError, match="No space left"):
            restoring.restore(job, model, optimizer, 1, lambda *_: None)  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()
    assert not list(tmp_path.glob("tapml-checkpoint-*"))
