"""Command-line arguments that commands share, and the types of their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.session.settings import Settings

N = TypeVar("N", int, float)

DEFAULT_MODEL: Final = "pydoc-llama"


@cache
def _defaults() -> Settings:
    from tapml.session.settings import Settings

    return Settings(model=DEFAULT_MODEL, target="")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--model``, ``--dtype``, ``--prompt``, ...; each is None if not given."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="a model that ships with tapml, a local Hugging Face folder of a known family, also "
        "quantized, a GGUF file, a recorded torch module, a .pt2 or an .onnx file "
        f"(default: {DEFAULT_MODEL})",
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "float16"),
        help="auto: float16 for a float16 checkpoint if the device has it, else float32",
    )
    group.add_argument(
        "--quantize",
        choices=("int8", "int4", "fp16", "bf16"),
        help="pack float weights; they stay packed on the device and in the package",
    )
    group.add_argument(
        "--mlc-llm",
        metavar="PATH",
        type=Path,
        help="move the definition that this source of mlc-llm has for the folder, with the "
        "weights that its loader makes; its modules are imported and run here",
    )
    group.add_argument(
        "--context",
        type=positive,
        metavar="N",
        help="rows of the cache (default: the model's limit, at most 256)",
    )
    group.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a prompt; may be given several times"
    )
    group.add_argument(
        "--tokens",
        action="append",
        metavar="IDS",
        help='token ids in place of a prompt, "1 2 3"',
    )
    group.add_argument(
        "--input",
        action="append",
        type=Path,
        metavar="FILE",
        help="arrays for a plain module or an ONNX file, .npy, or .npz by name; may be given "
        "several times",
    )
    group.add_argument(
        "--prompts",
        type=positive,
        metavar="N",
        help="number of the model's own prompts to use if none is given "
        f"(default: {_defaults().prompt_count})",
    )
    group.add_argument(
        "--new-tokens",
        type=positive,
        metavar="N",
        help=f"decode steps per prompt (default: {_defaults().new_tokens})",
    )


def add_reference_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--reference``."""
    parser.add_argument_group("reference").add_argument(
        "--reference",
        metavar="DEVICE",
        help="the mature platform on which operators are recorded, compared with PyTorch first: a "
        "platform or a device of it, as for --device (default: the processor of this machine)",
    )


def _reference_of(name: str) -> str:
    """The setting for a ``--reference``: the processor is in this process, without a device.

    Raises
    ------
    InputError
        If it is no device's name.
    """
    from tapml.devices.reach import check_spec, is_remote
    from tapml_targets.platforms import check_platform

    check_spec(name)
    if not is_remote(name):
        check_platform(name.partition(":")[0])
    return "" if name == "cpu" else name


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings given on the command line, by their names in `Settings`."""
    reference: str | None = getattr(arguments, "reference", None)
    given: dict[str, Any] = {
        "model": None if arguments.model is None else model_reference(arguments.model),
        "dtype": arguments.dtype,
        "context_length": arguments.context,
        "quantize": arguments.quantize,
        "mlc_llm": arguments.mlc_llm and str(arguments.mlc_llm.expanduser().resolve()),
        "prompts": arguments.prompt and tuple(arguments.prompt),
        "tokens": arguments.tokens and tuple(arguments.tokens),
        "inputs": arguments.input and tuple(str(each.resolve()) for each in arguments.input),
        "prompt_count": arguments.prompts,
        "new_tokens": arguments.new_tokens,
        "reference": None if reference is None else _reference_of(reference),
    }
    return {name: value for name, value in given.items() if value is not None}


def number(expected: str, kind: type[N], low: float, high: float) -> Callable[[str], N]:
    """An argument type for numbers from `low` to `high`; `expected` describes them in the error."""

    def read(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            value = kind(-1)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return read


positive = number("a whole number of at least 1", int, 1, 1 << 31)
times = number("a number above 0", float, 1e-9, 1e9)
seconds = number("seconds above 0", float, 1e-6, 1e6)


def byte_size(text: str) -> int:
    """An argument such as ``512M`` or ``4G``, in bytes."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in units else (text, "")
    try:
        size = int(float(number) * units.get(unit, 1))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"expected a size like 512M or 4G, got {text!r}") from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected a size of at least 1 byte, got {text!r}")
    return size


def model_reference(text: str) -> str:
    """The model's name in the zoo, or its absolute path: a folder or a GGUF file.

    Raises
    ------
    InputError
        If it is neither.
    """
    from tapml.models import resolve_model, zoo_names

    if text in zoo_names():
        return text
    folder = resolve_model(text)
    path = Path(text).expanduser()
    return str(path.resolve() if path.exists() else folder)


def writable_folder(path: Path) -> Path:
    """Create the folder a command writes into.

    Raises
    ------
    InputError
        If it cannot be created or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".write-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to {path}: {error.strerror}; choose another folder"
        ) from error
    return path
