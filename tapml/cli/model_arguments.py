"""Arguments that every command about a model shares."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from tapml.offload.settings import Settings
from tapml_targets.errors import InputError

DEFAULT_MODEL: Final = "pydoc-llama"


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """``--model``, ``--dtype``, ``--context``, ``--prompt``, ``--tokens``, ...

    What is not given is None, so that a resumed session can tell "not said" from "said".
    """
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="a model that ships with tapml, or a local Hugging Face folder of the Llama family "
        f"(default: {DEFAULT_MODEL})",
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "float16"),
        help="auto: float16 for a float16 checkpoint if the device has it, else float32",
    )
    group.add_argument(
        "--context",
        type=positive,
        metavar="N",
        help="rows of the cache (default: the model's limit, at most 256)",
    )
    group.add_argument(
        "--prompt", action="append", metavar="TEXT", help="may be given several times"
    )
    group.add_argument(
        "--tokens",
        action="append",
        metavar="IDS",
        help='token ids in place of a prompt, "1 2 3"',
    )
    group.add_argument(
        "--prompts",
        type=positive,
        metavar="N",
        help="how many of the model's own prompts to use where none is given "
        f"(default: {Settings.prompt_count})",
    )
    group.add_argument(
        "--new-tokens",
        type=positive,
        metavar="N",
        help=f"decode steps per prompt (default: {Settings.new_tokens})",
    )


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given on the command line, by their names in `Settings`."""
    given: dict[str, Any] = {
        "model": None if arguments.model is None else model_reference(arguments.model),
        "dtype": arguments.dtype,
        "context_length": arguments.context,
        "prompts": arguments.prompt and tuple(arguments.prompt),
        "tokens": arguments.tokens and tuple(arguments.tokens),
        "prompt_count": arguments.prompts,
        "new_tokens": arguments.new_tokens,
    }
    return {name: value for name, value in given.items() if value is not None}


def positive(text: str) -> int:
    """An argument that counts something."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def byte_size(text: str) -> int:
    """An argument like ``512M`` or ``4G``, in bytes."""
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
    """What to store for a model: a zoo name stays, a path becomes absolute.

    Raises
    ------
    InputError
        If it is neither.
    """
    from tapml.models import resolve_model, zoo_names

    if text in zoo_names():
        return text
    return str(resolve_model(text))


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
