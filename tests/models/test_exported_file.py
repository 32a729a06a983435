"""Files of ``torch.export.save`` as models: read without pickles, and refused by what is wrong."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tapml.models.exported_file import convert_exported
from tapml.models.recorded_module import RecordedModule, load_recorded
from tapml.rooting.own_forward import root_wrapper
from tapml_targets.errors import InputError


class Several(nn.Module):
    """A table and a head that share their weights, an argument that is None, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("ramp", torch.arange(4.0), persistent=False)

    def forward(self, ids: Tensor, mask: Tensor | None, scale: Tensor) -> dict[str, Any]:
        hidden = self.table(ids) * self.ramp * scale + torch.tensor([1.0, 2, 3, 4])
        hidden = hidden + torch.arange(4.0, device=hidden.device)
        return {"logits": self.head(hidden), "more": (hidden.mean(), None)}


def saved(module: nn.Module, inputs: tuple[Any, ...], shapes: Any = None) -> bytes:
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


@pytest.fixture(scope="module")
def file() -> bytes:
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    inputs = (torch.ones(3, 5, dtype=torch.int64), None, torch.ones(3, 1, 1))
    return saved(Several(), inputs, ({0: batch}, None, {0: batch}))


def converted(path: Path, content: bytes) -> RecordedModule:
    path.write_bytes(content)
    folder = path.with_suffix("")
    folder.mkdir()
    convert_exported(path, folder)
    return load_recorded(folder)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_saved_program_computes_what_its_module_computes(
    tmp_path: Path, file: bytes, device: str
) -> None:
    there = replaced('"type": "cpu"', f'"type": "{device}"')
    model = converted(tmp_path / "net.pt2", changed(file, ".json", there))
    (batch,) = model.stored.symbols
    assert (model.name, batch.least, batch.largest) == ("net", 2, 64)
    assert [each.name for each in model.stored.inputs] == ["ids", "scale"]
    assert [each.name for each in model.stored.outputs] == ["logits", "more.0"]
    assert model.samples[0][0][0].shape == (3, 5)
    assert root_wrapper(model) == 0
    torch.manual_seed(0)
    module = Several()
    ids, scale = torch.randint(0, 8, (7, 5)), torch.rand(7, 1, 1)
    with torch.no_grad():
        own = module(ids, None, scale)
    ours = model.module(ids, scale)
    assert torch.equal(ours[0], own["logits"])
    assert torch.equal(ours[1], own["more"][0])


def changed(
    content: bytes, part: str, change: Callable[[bytes], bytes], kind: int = zipfile.ZIP_STORED
) -> bytes:
    """The archive with another content of the part whose name ends so."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w", kind) as new:
        for each in old.namelist():
            data = old.read(each)
            new.writestr(each, change(data) if each.endswith(part) else data)
    return stream.getvalue()


def archived(*names: str) -> bytes:
    """An archive of other files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as new:
        for each in names:
            new.writestr(each, b"")
    return stream.getvalue()


def replaced(old: str, new: str) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps(json.loads(data)).replace(old, new).encode()


def repeated(data: bytes) -> bytes:
    """Weights that are their first number, many times."""
    weights = json.loads(data)
    for each in weights["config"].values():
        each["tensor_meta"] |= {"sizes": [{"as_int": 1 << 40}], "strides": [{"as_int": 0}]}
    return json.dumps(weights).encode()


def huge(data: bytes) -> bytes:
    """A program whose first input has more numbers than any memory."""
    program = json.loads(data)
    graph = program["graph_module"]["graph"]
    graph["tensor_values"]["ids"]["sizes"] = [{"as_int": 1 << 30}] * 2
    return json.dumps(program).encode()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file[: len(file) // 2], "no whole archive"),
        (lambda _: b"weights", "no whole archive"),
        (lambda _: archived("net/data.pkl"), "it is a pickle of torch.save.*build its module"),
        (lambda _: archived("net/data.pkl", "net/code/net.py"), "it is TorchScript"),
        (lambda _: archived("serialized_state_dict.pt"), "no exported program: torch.export.load"),
        (lambda file: changed(file, "weight_0", lambda data: data[:64]), "table.weight.*has 64"),
        (
            lambda file: changed(
                file, "weights_config.json", replaced('"use_pickle": false', '"use_pickle": true')
            ),
            "table.weight is a pickle",
        ),
        (
            lambda file: changed(file, "models/model.json", replaced("aten.embedding", "own.op")),
            "calls 'torch.ops.own.op",
        ),
        (
            lambda file: changed(
                file, "models/model.json", replaced("Symbol('s", "__import__('os').getenv('s")
            ),
            "an extent of ids is computed from others",
        ),
        (lambda file: changed(file, "", bytes, zipfile.ZIP_DEFLATED), "its parts are compressed"),
        (lambda file: changed(file, "weights_config.json", repeated), "weight.* repeats numbers"),
        (lambda file: changed(file, "models/model.json", huge), "expected at most 134217728"),
        (
            lambda file: changed(file, "models/model.json", lambda _: b"[]"),
            "holds no JSON object",
        ),
        (
            lambda file: changed(
                file, "model_weights_config.json", replaced('"dtype": 7', '"dtype": 8')
            ),
            "is float64: expected one of",
        ),
    ],
)
def test_a_damaged_or_unknown_file_is_refused_in_one_line(
    tmp_path: Path, file: bytes, damage: Callable[[bytes], bytes], said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        converted(tmp_path / "net.pt2", damage(file))
    assert "\n" not in str(caught.value)


class Counting(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x * self.count


class Short(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1, 4)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids.long() + 9)
        return found


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Frozen(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return y + 1


class Idle(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Counting(), "it changes count when it runs"),
        (Short(), r"does not run on numbers by seed \(IndexError: .*tapml.from_torch"),
        (Noisy(), "net draws random numbers"),
        (Frozen(), "take torch.no_grad out of the module, or save"),
        (Idle(), "output result.1 of net is an input"),
    ],
)
def test_what_cannot_move_is_refused_by_its_name(
    tmp_path: Path, module: nn.Module, said: str
) -> None:
    content = saved(module, (torch.zeros(3),))
    with pytest.raises(InputError, match=said) as caught:
        converted(tmp_path / "net.pt2", content)
    assert "\n" not in str(caught.value)
