"""Settings of a session, fixed when it is created, and options of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.replaying.pace import Pace
    from tapml.verdicts.policy import Policy


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A session's settings.

    Attributes
    ----------
    model
        Zoo name, or absolute path of a model's folder or ONNX file.
    target
        Platform to migrate the model to.
    device
        Device of that platform, such as ``opencl:1``; empty for the best-ranked one.
    dtype
        ``auto``, ``float32`` or ``float16``.
    context_length
        Rows of the cache; 0 for the model's default.
    prompts
        Prompts to carve tests from; empty for the model's own.
    tokens
        The same as token ids, for a model without a tokenizer.
    inputs
        Files with inputs of a plain module (:mod:`tapml.models.input_files`), absolute.
    prompt_count
        Number of the model's own prompts to use if none are given.
    new_tokens
        Decode steps per prompt, for carving and for the model-wise check.
    budget_bytes
        Maximum size of the suite on disk.
    quantize
        Scheme that float weights are packed by (``int4``); empty to take them as they are.
    reference
        Device on which operators are recorded, such as ``opencl:1``; empty for this process.
    mlc_llm
        Source of mlc-llm whose definition of the model is moved, absolute; empty for none.
    """

    model: str
    target: str
    device: str = ""
    dtype: str = "auto"
    context_length: int = 0
    prompts: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    prompt_count: int = 2
    new_tokens: int = 6
    budget_bytes: int = 4 << 30
    quantize: str = ""
    reference: str = ""
    mlc_llm: str = ""

    def to_json(self) -> str:
        """The settings as JSON text."""
        return json.dumps(msgspec.to_builtins(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read what :meth:`to_json` wrote; missing fields get their defaults.

        Raises
        ------
        InputError
            If the text does not have these fields and types.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the session's settings cannot be read: {error}") from error


Strategy: TypeAlias = Literal["one-by-one", "bisect"]
Order: TypeAlias = Literal["graph", "reverse", "call-sites"]


@dataclass(frozen=True)
class RunOptions:
    """Options of one run; they may differ between runs of the same session.

    Attributes
    ----------
    keep_going
        Leave a failed operator on the source and continue with the next.
    keep_on_source
        Patterns (``fnmatch``) of operators that stay on the source.
    only
        Patterns of the operators to migrate; empty for all. The others stay on the source. The
        paper migrates a single new kernel this way.
    strategy
        ``one-by-one`` checks the model after every operator, as Algorithm 1 does; ``bisect``
        migrates all operators at once and finds faulty ones by bisection.
    order
        ``graph`` as in the paper, ``reverse``, or ``call-sites``: most used first.
    kernels
        Folders of hand-written kernels, besides the session's own; None for the previous run's.
    memory_bytes
        Maximum device memory to use; 0 for all of it.
    limits
        Limit profile (name or file) that restricts the device's own limits for kernels; ``device``
        for none, None for the previous run's.
    workers
        Number of parallel compilers; 0 for one per core.
    pace
        The longest that an operator's kernels may take; None for no bound.
    policy
        Limits of verdicts for this and later runs; None for the previous run's, by default
        :class:`~tapml.verdicts.policy.Policy`. A changed policy repeats the verdicts it affects.
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
    pace: Pace | None = None
    policy: Policy | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data for the journal."""
        kernels = None if self.kernels is None else [str(folder) for folder in self.kernels]
        return asdict(self) | {"kernels": kernels}
