"""Carving a model's tests in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.api.device import Device
    from tapml.models.recorded_module import RecordedModule
    from tapml.suite.suite import Suite


def carve(
    model: RecordedModule | str | Path,
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
    reference: Device | None = None,
) -> Suite:
    """Run prompts on the reference and record the inputs and outputs of every call site.

    Section III-C of the paper: t = (F, I, O) from running the complete model on real inputs.

    Parameters
    ----------
    model
        Name of a model that ships with tapml, a local Hugging Face folder or ONNX file, or what
        ``tapml.from_torch(...).save(folder)`` gave.
    path
        Folder of the new suite.
    prompts, tokens
        Texts, or token ids; default: the model's own prompts.
    new_tokens
        Tokens to generate per prompt: one prefill, and a decode step for each but the first.
    operators, layers, steps, entries
        What to carve: patterns of operator names, indices of decoder layers, runs of a prompt (0
        is the prefill), ``prefill`` or ``decode``. Empty means everything.
    budget_bytes
        Maximum size of the suite's tensors, excluding weights.
    overwrite
        Whether to replace a suite at `path`.
    reference
        The device on which operators are recorded; this process's processor if None or ``cpu``.

    Returns
    -------
    Suite
        The open suite, a context manager.

    Raises
    ------
    InputError
        If the model cannot be loaded, a prompt does not fit, a filter matches nothing, or `path`
        exists.
    MismatchError
        If the reference does not agree with PyTorch.
    NoSuchDeviceError
        If there is no such device as `reference`.
    ReferenceFailedError
        If it has no kernel for an operator, or fails.
    SetupError
        If the suite cannot be written.

    Examples
    --------
    >>> one = {"operators": ["*softmax*"], "layers": [0], "steps": [0]}
    >>> with carve("pydoc-llama", "attention", tokens=[[1, 2, 3]], **one) as suite:
    ...     for test in suite.tests():
    ...         print(test.id, [array.shape for array in test.read_inputs()])
    prefill/layers.0.self_attn/softmax@p0.s0 [(1, 4, 3, 256)]
    """
    from tapml.carving.record import carve as record
    from tapml.execute.device_reference import executor_on
    from tapml.offload.rooted_reference import open_rooted_reference
    from tapml.runs.events import ignore
    from tapml.runs.phases import Phases
    from tapml.session.settings import Settings
    from tapml.suite.selection import Filters

    settings = Settings(
        model=str(model if isinstance(model, str | Path) else _folder_of(model)),
        target="cpu",
        prompts=tuple(prompts),
        tokens=tuple(" ".join(map(str, each)) for each in tokens),
        new_tokens=new_tokens,
        reference="" if reference is None or reference.name == "cpu" else reference.name,
    )
    on = None if reference is None or not settings.reference else reference.session
    rooted = open_rooted_reference(settings, Phases(ignore), on=on)
    executor = executor_on(rooted.imported.plan, rooted.imported.weights, rooted.reference)
    return record(
        rooted.model,
        executor,
        rooted.cases,
        path,
        filters=Filters(tuple(operators), tuple(layers), tuple(steps), tuple(entries)),
        max_new_tokens=new_tokens,
        budget_bytes=budget_bytes,
        overwrite=overwrite,
        durable=True,
    )


def _folder_of(model: RecordedModule) -> Path:
    if model.source == Path():
        raise InputError(
            f"{model.name} is not saved yet: call save(folder) and carve what it gives"
        )
    return model.source
