"""What a session was asked to do: fixed when it is created, read back when it is resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.compare.policy import Policy


@dataclass(frozen=True)
class Settings:
    """A session's settings.

    Attributes
    ----------
    model
        Zoo name, or absolute path of a Hugging Face folder.
    target
        Platform the model moves to.
    device
        Device of that platform, ``opencl:1``; empty for the best-ranked one.
    dtype
        ``auto``, ``float32`` or ``float16``.
    context_length
        Rows of the cache; 0 for the model's default.
    prompts
        Texts the tests are carved from; empty for the model's own.
    tokens
        The same as token ids, for a model without a tokenizer.
    prompt_count
        How many of the model's own prompts are used where none are given.
    new_tokens
        Decode steps per prompt: carved, and checked on the whole model.
    budget_bytes
        Most the suite may take on disk.
    """

    model: str
    target: str
    device: str = ""
    dtype: str = "auto"
    context_length: int = 0
    prompts: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    prompt_count: int = 2
    new_tokens: int = 6
    budget_bytes: int = 4 << 30

    def to_json(self) -> str:
        """The settings as JSON text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read back what :meth:`to_json` wrote.

        Raises
        ------
        InputError
            If the text is something else.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            known = {field.name for field in fields(cls)}
            for name in ("prompts", "tokens"):
                data[name] = tuple(data[name]) if isinstance(data[name], list) else data[name]
            if set(data) != known:
                raise InputError(f"unexpected settings {sorted(set(data) ^ known)}")
            settings = cls(**data)
            settings._check_types()
            return settings
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the session's settings cannot be read: {error}") from error

    def _check_types(self) -> None:
        """Raise TypeError where a value is not of its field's type."""
        for field in fields(self):
            value = getattr(self, field.name)
            kind = str(field.type)
            texts = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
            right = texts if kind.startswith("tuple") else type(value).__name__ == kind
            if not right:
                raise TypeError(f"{field.name} is {value!r}, expected {kind}")


Strategy: TypeAlias = Literal["one-by-one", "bisect"]
Order: TypeAlias = Literal["graph", "reverse", "call-sites"]


@dataclass(frozen=True)
class RunOptions:
    """How one run goes about it; may differ from run to run of the same session.

    Attributes
    ----------
    keep_going
        Leave a failed operator on the source and go on with the next.
    keep_on_source
        Patterns (``fnmatch``) of operators that stay on the source; a legitimate end state.
    only
        Patterns of the operators to move; empty for all. The others stay on the source, which is
        the paper's way with a single new kernel: it moves alone.
    strategy
        ``one-by-one`` checks the whole model after every operator, as Algorithm 1; ``bisect``
        places all at once and looks for those at fault in halves.
    order
        ``graph`` as the paper, ``reverse``, or ``call-sites``: most used first.
    kernels
        Folders of hand-written kernels, besides the session's own; None for those of the run
        before.
    memory_bytes
        Most of the device's memory to use; 0 for what the device states.
    limits
        Limit profile, by name or as a file, that kernels are made for and held against beside the
        device's own limits; ``device`` for those alone, None for what the run before had.
    workers
        Compilers at the same time; 0 for one per core.
    policy
        Limits of the verdicts from this run on; None for those of the run before, at first the
        defaults. Verdicts under another policy are made anew.
    merge
        Whether launches of the finished model that are independent of each other become one.
    """

    keep_going: bool = False
    keep_on_source: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    strategy: Strategy = "one-by-one"
    order: Order = "graph"
    kernels: tuple[Path, ...] | None = None
    memory_bytes: int = 0
    limits: str | None = None
    workers: int = 0
    policy: Policy | None = None
    merge: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain data for the journal."""
        kernels = None if self.kernels is None else [str(folder) for folder in self.kernels]
        return asdict(self) | {"kernels": kernels}
