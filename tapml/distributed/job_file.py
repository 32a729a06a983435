"""Jobs of users: Python files that define what to train. Loaded in child processes only."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from torch import nn

MODULE: Final = "tapml_job"
REQUIRED: Final = ("model", "batch", "step")
OPTIONAL: Final = ("optimizer", "part", "predict", "distribute", "inputs", "loss")
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

        with self.calling("model()"):
            built = self.module.model()
        if not isinstance(built, nn.Module):
            raise InputError(
                f"{self.path.name}: model() must return a torch.nn.Module, got {_kind(built)}"
            )
        return built

    def optimizer(self, model: nn.Module) -> Any:
        """Make the optimizer; the default is SGD."""
        import torch

        if self.has("optimizer"):
            return self.module.optimizer(model)
        trained = [each for each in model.parameters() if each.requires_grad]
        if not trained:
            raise InputError(f"{self.path.name}: no parameter of the model needs a gradient")
        return torch.optim.SGD(trained, lr=LEARNING_RATE)

    def distribute(self, model: nn.Module, rank: int, world: int) -> nn.Module:
        """Wrap the model as the file does."""
        from torch import nn

        wrapped = self.module.distribute(model, rank, world)
        if not isinstance(wrapped, nn.Module):
            raise InputError(
                f"{self.path.name}: distribute() must return a torch.nn.Module, got "
                f"{_kind(wrapped)}"
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


def load_job(path: Path, required: tuple[str, ...] = REQUIRED) -> Job:
    """Load a job's file; its folder can be imported from, as if Python ran the file.

    Raises
    ------
    InputError
        If the file fails, or lacks a required function.
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
    missing = [name for name in required if not job.has(name)]
    if missing:
        whole = "a job defines model(), batch() and step(model, batch, optimizer)"
        if required != REQUIRED:
            whole = f"a job of this engine defines {', '.join(f'{each}()' for each in required)}"
        raise InputError(f"{path} lacks {', '.join(f'{each}()' for each in missing)}; {whole}")
    return job


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


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
