"""Carving a model's tests in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tapml.carving.suite import Suite


def carve(
    model: str | Path,
    path: str | Path,
    *,
    prompts: Sequence[str] = (),
    tokens: Sequence[Sequence[int]] = (),
    new_tokens: int = 6,
    operators: Sequence[str] = (),
    layers: Sequence[int] = (),
    steps: Sequence[int] = (),
    entries: Sequence[str] = (),
    budget_bytes: int | None = None,
    overwrite: bool = False,
) -> Suite:
    """Run prompts on the reference and record what every call site reads and writes.

    Section III-C of the paper: t = (F, I, O) from the execution of the whole model on real inputs.

    Parameters
    ----------
    model
        Name of a model that ships with tapml, or a local Hugging Face folder.
    path
        Folder of the new suite.
    prompts, tokens
        Texts, or token ids; the model's own prompts where neither is given.
    new_tokens
        Tokens generated per prompt: one prefill, and a decode step for each but the first.
    operators, layers, steps, entries
        What is carved: patterns of operator names, indices of decoder layers, runs of a prompt (0
        is the prefill), ``prefill`` or ``decode``. Empty means everything.
    budget_bytes
        Most the suite's tensors may take, weights apart.
    overwrite
        Whether a suite at `path` is replaced.

    Returns
    -------
    Suite
        Open; a context manager.

    Raises
    ------
    InputError
        If the model cannot be loaded, a prompt does not fit, a filter matches nothing, or `path`
        exists.
    MismatchError
        If the reference does not agree with PyTorch.
    SetupError
        If the suite cannot be written.

    Examples
    --------
    >>> with carve("pydoc-llama", "attention", operators=["*softmax*"]) as suite:  # doctest: +SKIP
    ...     for test in suite.tests():
    ...         print(test.id, [array.shape for array in test.read_inputs()])
    """
    from tapml.carving.record import carve as record
    from tapml.carving.selection import Filters
    from tapml.execute.executor import Executor
    from tapml.offload.events import ignore
    from tapml.offload.phases import Phases
    from tapml.offload.rooted_reference import open_rooted_reference
    from tapml.offload.settings import Settings

    settings = Settings(
        model=str(model),
        target="cpu",
        prompts=tuple(prompts),
        tokens=tuple(" ".join(map(str, each)) for each in tokens),
        new_tokens=new_tokens,
    )
    rooted = open_rooted_reference(settings, Phases(ignore))
    executor = Executor(rooted.imported.plan, rooted.imported.weights, rooted.reference)
    return record(
        rooted.model,
        executor,
        rooted.prompts,
        path,
        filters=Filters(tuple(operators), tuple(layers), tuple(steps), tuple(entries)),
        max_new_tokens=new_tokens,
        budget_bytes=budget_bytes,
        overwrite=overwrite,
        durable=True,
    )
