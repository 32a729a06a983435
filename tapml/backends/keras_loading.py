"""A ``.keras`` file as a model that declares its inputs and its layers."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final
from zipfile import is_zipfile

from tapml_targets.errors import InputError, UnsupportedOperatorError

CODE: Final = "TAPML_MODEL_CODE"
"""The environment variable with the user's Python file that defines the model's own classes.

It may import files beside it.
"""
_MODULE: Final = "tapml_model_code"
_MESSAGE_CHARACTERS: Final = 200
_UNKNOWN: Final = re.compile(r"Could not locate (?P<what>\w+ '[^']+')")
"""Keras says it behind the class of the whole model."""
_CALLED: Final = re.compile(r"(?:when calling |`)(?P<call>\w+\.call)\(\)")
_UNINFERRED: Final = "Could not automatically infer"
_COLOUR: Final = re.compile(r"\x1b\[\d*m")


def load_keras(model: Path) -> Any:
    """Load a ``.keras`` file; a subclassed model becomes a functional one of the same layers.

    Its ``call`` is run once on symbols, so that its layers are the nodes. Where it takes none, the
    model is one node.

    Raises
    ------
    InputError
        If the file is no archive, or that of :data:`CODE` cannot be run.
    UnsupportedOperatorError
        If the model holds code, custom classes that no file defines, or no shapes of its inputs.
    """
    # Keras says that such a file is not found.
    if not is_zipfile(model):
        raise InputError(
            f"{model.name} is no .keras file, or the first part of one; save the model again"
        )
    import keras

    # Else an exception's first line says only which layer was called.
    keras.config.disable_traceback_filtering()
    file = os.environ.get(CODE)
    custom = _defined_in(Path(file)) if file else None
    try:
        loaded = keras.saving.load_model(
            model, custom_objects=custom, compile=False, safe_mode=True
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        said = str(error)
        if "safe_mode" in said:
            raise UnsupportedOperatorError(
                f"{model.name} holds the code of a Lambda layer, which is not run; give the layer "
                "a class, in a file for --code"
            ) from error
        if "custom" in said or "Could not locate" in said:
            named = _UNKNOWN.search(said)
            what = named["what"] if named else said[:_MESSAGE_CHARACTERS]
            raise UnsupportedOperatorError(
                f"{model.name} has classes that are not known here; --code FILE names the Python "
                f"file that defines them: {what}"
            ) from error
        if behind := _behind(error):
            raise behind from error
        raise
    return loaded if getattr(loaded, "inputs", None) else _functional(keras, loaded, model.name)


def _behind(error: Exception) -> Exception | None:
    """What a layer raised, and where, if Keras says only that it makes no model of the file."""
    text, _, _ = _COLOUR.sub("", str(error)).partition("Arguments received")
    _, told, behind = text.rpartition("encountered:")
    lines = [each.strip() for each in behind.splitlines() if each.strip()]
    if not lines or not (told or _UNINFERRED in text):
        return None
    layer, line = _CALLED.search(text), lines[0 if told else -1]
    said = f"{layer['call']}: {line}" if layer else line
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    lacks = any(isinstance(each, NotImplementedError) for each in causes)
    found = UnsupportedOperatorError(said) if lacks else type(error)(said)
    return found.with_traceback(causes[-1].__traceback__)


def _defined_in(file: Path) -> dict[str, Any]:
    """The classes and functions of a file, by name."""
    spec = spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is no Python file")
    module = module_from_spec(spec)
    sys.modules[_MODULE] = module
    beside = str(file.parent)
    sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        # Last, for what a function imports when it is called.
        sys.path.remove(beside)
        sys.path.append(beside)
    return {name: each for name, each in vars(module).items()
            if inspect.isclass(each) or inspect.isfunction(each)}  # fmt: skip


def _functional(keras: Any, model: Any, file: str) -> Any:
    """A model of another class as a functional one, of the shapes that it was built with."""
    shapes: dict[str, Any] = model.get_build_config() or {}
    shapes = shapes.get("shapes_dict") or shapes
    if not shapes:
        raise UnsupportedOperatorError(
            f"{file} does not declare its inputs; call the model on data before it is saved"
        )
    restored = len(model.variables)
    if len(shapes) == 1:
        symbols = _symbols(keras, next(iter(shapes.values())), "x")
        outputs = _traced(model, symbols)
    else:
        # By the arguments' names: `left_shape` is that of `left`.
        names = [each.removesuffix("_shape") for each in shapes]
        symbols = {name: _symbols(keras, shape, name)
                   for name, shape in zip(names, shapes.values(), strict=True)}  # fmt: skip
        outputs = _traced(model, **symbols)
    if len(model.variables) > restored:
        # Made by that call: Keras restores no weights of layers that it cannot build.
        raise UnsupportedOperatorError(
            f"the weights of {file} are not restored, as its layers are not built before a call; "
            "give the model a build or a build_from_config that builds them"
        )
    return keras.Model(symbols, outputs, name=model.name)


def _symbols(keras: Any, shape: Any, name: str) -> Any:
    if isinstance(shape, dict):
        return {key: _symbols(keras, each, key) for key, each in shape.items()}
    if shape and isinstance(shape[0], list | tuple):
        return [_symbols(keras, each, f"{name}_{at}") for at, each in enumerate(shape)]
    return keras.Input(batch_shape=(None, *shape[1:]), name=name)


def _traced(model: Callable[..., Any], *given: Any, **named: Any) -> Any:
    call: Callable[..., Any] = model.call  # type: ignore[attr-defined]
    # Errors are of any class, from code that does not take symbols.
    with suppress(Exception):
        return call(*given, **named)
    try:
        return model(*given, **named)
    except Exception as error:
        line = str(error).strip().partition("\n")[0][:_MESSAGE_CHARACTERS]
        raise UnsupportedOperatorError(
            "the model cannot be called on the inputs whose shapes are in its file; have "
            f"get_build_config return those of all, or take them as one dict: {line}"
        ) from error
