"""A decoder as mlc-llm defines it, with the weights of a Hugging Face folder by mlc-llm's loader.

It is the same model to everything but the importer: same entries, same cache, same tokens. The
class of ``transformers`` for the same folder is what its plan is rooted in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from tapml.models.checkpoint import Checkpoint
from tapml.models.loaded import Loaded, LoadedModel
from tapml.models.mlc_source import MlcSource, names_of_older_tvm, open_mlc_source
from tapml.models.packed.build import stored_tensors
from tapml_targets.errors import InputError, UnsupportedOperatorError

_QUANTIZATION: Final = {"float32": "q0f32", "float16": "q0f16"}
_SOURCE: Final = "huggingface-safetensor"
# Names in `rope_parameters`, and what older files call them.
_ROPE_NAMES: Final = (
    ("rope_theta", "rope_theta"),
    ("rope_theta", "rotary_emb_base"),
    ("partial_rotary_factor", "partial_rotary_factor"),
    ("partial_rotary_factor", "rotary_pct"),
)


@dataclass(frozen=True)
class MlcModel(LoadedModel):
    """A decoder of mlc-llm.

    Attributes
    ----------
    mlc
        The source.
    model_type
        Its name in the source's registry.
    checkpoint
        The folder with the weights.
    """

    mlc: MlcSource = field(kw_only=True)
    model_type: str = field(kw_only=True)
    checkpoint: Checkpoint = field(kw_only=True)

    @property
    def identity(self) -> str:
        """Everything but weights that the entries depend on; the source's text as well."""
        return f"{super().identity} mlc-llm {self.model_type} {self.mlc.digest}"

    def definition(self) -> tuple[Any, Any]:
        """The module of mlc-llm, new, in the model's dtype, and its configuration.

        Raises
        ------
        InputError
            If the source refuses the configuration.
        """
        known = self.mlc.definition(self.model_type)
        try:
            configuration = known.config.from_dict(_configuration(self.checkpoint.config))
            module = known.model(configuration)
            module.to(self.dtype)
        except Exception as error:  # assertions and errors of any class
            raise InputError(
                f"mlc-llm's {self.model_type} refuses {self.checkpoint.folder / 'config.json'}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not hasattr(module, "create_paged_kv_cache"):
            raise InputError(
                f"mlc-llm's {self.model_type} keeps no paged cache of keys and values, and only "
                "that is replaced by plain operators: leave --mlc-llm out"
            )
        return module, configuration

    def tensors(self) -> dict[str, Tensor]:
        """mlc-llm's parameters by its names, as its loader makes them of the folder's."""
        return dict(self._tensors)

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        import numpy as np

        module, configuration = self.definition()
        mapping = self._mapping(configuration)
        stored = _reader(self.checkpoint, getattr(torch, self.dtype))
        found = {}
        for name, parameter in module.named_parameters():
            if name not in mapping.param_map:
                raise InputError(f"mlc-llm's loader of {self.model_type} gives no {name}")
            arrays = [stored(each) for each in mapping.param_map[name]]
            made = np.ascontiguousarray(mapping.map_func[name](*arrays))
            expected = self.shape_of(parameter)
            if made.shape != expected:
                raise InputError(
                    f"mlc-llm's {name} has the shape {expected}, and its loader makes "
                    f"{made.shape} of {', '.join(mapping.param_map[name])}"
                )
            found[name] = torch.from_numpy(made)
        return found

    def _mapping(self, configuration: Any) -> Any:
        """Which weights of the folder each parameter is made of, and how."""
        known = self.mlc.definition(self.model_type)
        try:
            with names_of_older_tvm():
                return known.source[_SOURCE](configuration, self._quantization())
        except Exception as error:  # it builds the definition: errors of any class
            reason = " ".join(str(error).split())
            raise UnsupportedOperatorError(
                f"mlc-llm's loader of {self.model_type} fails with this TVM: "
                f"{type(error).__name__}: {reason[-300:]}"
            ) from error

    def _quantization(self) -> Any:
        import importlib

        return importlib.import_module("mlc_llm.quantization").QUANTIZATION[
            _QUANTIZATION[self.dtype]
        ]

    def shape_of(self, parameter: Any) -> tuple[int, ...]:
        """A parameter's shape; the one free extent of a definition is the vocabulary."""
        return tuple(
            int(extent) if isinstance(extent, int) or hasattr(extent, "value") else self.vocabulary
            for extent in parameter.shape
        )


def as_mlc(model: Loaded, checkpoint: Checkpoint, path: str) -> MlcModel:
    """The same model by mlc-llm's definition.

    Raises
    ------
    InputError
        If it is no decoder with float weights, or the source does not know it.
    """
    # Recurrent models are another workload: their state is not a cache of rows.
    if type(model) is not LoadedModel:
        raise InputError(f"--mlc-llm: {model.name} is no decoder with a cache: leave it out")
    if checkpoint.form is not None:
        raise InputError(
            f"--mlc-llm: {model.name} is quantized ({checkpoint.form.methods[0]}); take its "
            "float weights, or leave --mlc-llm out"
        )
    source = open_mlc_source(path)
    model_type = str(checkpoint.config.get("model_type", ""))
    source.definition(model_type)
    given = {each.name: getattr(model, each.name) for each in fields(LoadedModel)}
    given["notes"] = (
        *model.notes,
        f"the definition and the loader are mlc-llm's {model_type} ({source.version}); PyTorch "
        f"runs {type(model.module).__name__}",
    )
    made = MlcModel(**given, mlc=source, model_type=model_type, checkpoint=checkpoint)
    made.definition()
    return made


def _configuration(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the names that files had before transformers 5."""
    found = {"use_cache": True, **config}
    rope = found.pop("rope_parameters", None)
    if isinstance(rope, Mapping):
        for name, older in _ROPE_NAMES:
            if name in rope:
                found.setdefault(older, rope[name])
        if rope.get("rope_type", "default") != "default":
            found.setdefault("rope_scaling", dict(rope))
    if found.get("rope_scaling") is None:
        found.pop("rope_scaling", None)
    return {name: value for name, value in found.items() if value is not None}


def _reader(checkpoint: Checkpoint, dtype: torch.dtype) -> Callable[[str], Any]:
    """Arrays of the folder's tensors by the names that published files have."""
    stored = checkpoint.tensors
    tensor = stored_tensors(stored)
    prefix = checkpoint.family.prefix

    def read(name: str) -> Any:
        for spelling in (name, f"{prefix}{name}", name.removeprefix(prefix)):
            if spelling in stored:
                return tensor(spelling).to(dtype).numpy()
        raise InputError(
            f"mlc-llm's loader asks for {name}, which {checkpoint.folder} does not have"
        )

    return read
