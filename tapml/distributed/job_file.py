"""Jobs of users: Python files that define what to train. Loaded in child processes only."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from tapml.distributed.optimizers import optimizers_in
from tapml_targets.errors import InputError, WrongJobError

if TYPE_CHECKING:
    from torch import nn

MODULE: Final = "tapml_job"
REQUIRED: Final = {"model": "", "batch": "", "step": "model, batch, optimizer"}
"""Functions of a job of PyTorch, with what they take."""
OPTIONAL: Final = {
    "optimizer": "model",
    "part": "batch, rank, world",
    "predict": "model, batch",
    "distribute": "model, rank, world",
}
OF_ENGINES: Final = ("inputs", "loss")
"""Only some engines call these; for the others these names are the file's own."""
LEARNING_RATE: Final = 0.1
"""Of the optimizer of jobs that define none, plain SGD."""


@dataclass(frozen=True)
class Job:
    """A job: its file and what the file defines.

    Its methods call the file's functions and raise InputError if one fails in a way that is not
    about distribution, with the line of the file.
    """

    path: Path
    module: ModuleType

    def has(self, name: str) -> bool:
        """Whether the file defines a function."""
        return callable(getattr(self.module, name, None))

    def constant(self, name: str, default: Any) -> Any:
        """A constant of the file."""
        return getattr(self.module, name, default)

    def model(self) -> nn.Module:
        """Build the model."""
        from torch import nn

        if isinstance(self.module.model, nn.Module):
            raise InputError(
                f"{self.path.name}: model must be a function that builds the model, got "
                f"{kind_of(self.module.model)}"
            )
        with self.calling("model()"):
            built = self.module.model()
        if not isinstance(built, nn.Module):
            raise InputError(
                f"{self.path.name}: model() must return a torch.nn.Module, got {kind_of(built)}"
            )
        return built

    def optimizer(self, model: nn.Module) -> Any:
        """Make the optimizer, or a tree of several; the default is SGD."""
        import torch

        if self.has("optimizer"):
            made = self.module.optimizer(model)
            if not optimizers_in(made):
                raise WrongJobError(
                    f"{self.path.name}: optimizer() must return an optimizer, or a list, tuple or "
                    f"dictionary of optimizers, got {kind_of(made)}"
                )
            return made
        trained = [each for each in model.parameters() if each.requires_grad]
        if not trained:
            raise InputError(f"{self.path.name}: no parameter of the model needs a gradient")
        return torch.optim.SGD(trained, lr=LEARNING_RATE)

    def distribute(self, model: nn.Module, rank: int, world: int) -> nn.Module:
        """Wrap the model as the file does."""
        from torch import nn

        wrapped = self.module.distribute(model, rank, world)
        if not isinstance(wrapped, nn.Module):
            raise WrongJobError(
                f"{self.path.name}: distribute() must return a torch.nn.Module, got "
                f"{kind_of(wrapped)}"
            )
        return wrapped

    @property
    def step(self) -> Callable[[nn.Module, Any, Any], Any]:
        """The training step."""
        found: Callable[[nn.Module, Any, Any], Any] = self.module.step
        return found

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Turn errors of the file's code into InputError."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.path.name}: {what} raised {describe(error, self.path)}"
            ) from error


class _Source(SourceFileLoader):
    """Compiles the file each time: bytecode knows it by its size and second of change alone."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file as it is now."""
        del fullname
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def load_job(
    path: Path,
    required: Mapping[str, str] = REQUIRED,
    optional: Mapping[str, str] = OPTIONAL,
) -> Job:
    """Load a job's file; its folder can be imported from, as if Python ran the file.

    `required` and `optional` are names of functions with what they take, such as
    ``{"predict": "model, batch"}``.

    Raises
    ------
    InputError
        If the file fails, lacks a required function, or has something else under such a name.
    """
    sys.path.insert(0, str(path.parent))
    source = _Source(MODULE, str(path)) if path.suffix == ".py" else None
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=source)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise InputError(
            f"{path} ended the process when it was loaded (code {error.code}); guard its script "
            'with `if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        raise InputError(f"{path} cannot be loaded: {describe(error, path)}") from error
    job = Job(path, module)
    missing = [name for name in required if getattr(module, name, None) is None]
    if missing:
        of = "a job" if required is REQUIRED else "a job of this engine"
        functions = ", ".join(f"{name}({takes})" for name, takes in required.items())
        whole = f"{of} defines {functions}"
        raise InputError(f"{path} lacks {', '.join(f'{each}()' for each in missing)}; {whole}")
    for name, takes in (*required.items(), *optional.items()):
        _check_function(job, name, takes)
    return job


def _check_function(job: Job, name: str, takes: str) -> None:
    """Raise InputError if what the file has under a name cannot be called with what it gets."""
    value = getattr(job.module, name, None)
    if value is None:
        return
    wanted = f"{job.path.name}: {name} must be a function {name}({takes})"
    if not callable(value):
        raise InputError(f"{wanted}, got {kind_of(value)}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return  # Python does not know what some functions of libraries take.
    try:
        signature.bind(*filter(None, takes.split(", ")))
    except TypeError:
        raise InputError(f"{wanted}, got {name}{signature}") from None


def describe(error: BaseException, path: Path) -> str:
    """An error in one line, with the last line of the job's file that led to it."""
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{text} ({path.name}:{error.lineno})"
    return f"{text} ({path.name}:{frames[-1].lineno} in {frames[-1].name})" if frames else text


def kind_of(value: object) -> str:
    """What a value is, for a message."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
