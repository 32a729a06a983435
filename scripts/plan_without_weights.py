"""Plans of published shapes: what a plan is depends on a model's extents and on no weight of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tapml.plan.graph_plan import GraphPlan
from tapml_targets.errors import InputError


def plan_without_weights(
    architecture: str, settings: Mapping[str, Any], *, context: int, name: str = "unweighted"
) -> GraphPlan:
    """Import a decoder whose weights are memory that is reserved and never touched.

    Parameters
    ----------
    architecture
        A class of transformers that has a family.
    settings
        Of its configuration.
    context
        Rows of the cache.

    Raises
    ------
    InputError
        If the architecture is no decoder of a known family.
    UnsupportedOperatorError
        If it cannot be imported.
    """
    import torch
    import transformers

    from tapml.importing.importer import import_model
    from tapml.models.families import architectures
    from tapml.models.loaded import LoadedModel

    family = architectures().get(architecture)
    if family is None or family.workload != "decoder":
        raise InputError(f"{architecture} is no decoder of a known family")
    model_class = getattr(transformers, architecture, None)
    if model_class is None:
        raise InputError(f"{architecture} is no class of transformers")
    config = model_class.config_class(**settings, attn_implementation="eager")
    with torch.device("meta"):
        module = model_class(config)
    module.to_empty(device="cpu")
    module.requires_grad_(False)
    model = LoadedModel(
        name=name, config=config, tokenizer=None, family=family, module=module.eval(),
        dtype="float32", context_length=context, weights_hash="0" * 64, source=Path(name),
    )  # fmt: skip
    return import_model(model).plan
