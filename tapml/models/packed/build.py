"""Builds a torch module whose linear layers and embeddings are packed, from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tapml.models.mapped_weights import are_large, return_pages_of, tensor_of
from tapml.models.packed.experts import ExpertLayers
from tapml.models.packed.formats.format import Format, Layer
from tapml.models.packed.quantizers import packed_part, replace_part
from tapml.models.packed.weight import PackedWeight
from tapml.models.tensor_file import open_tensors
from tapml_targets.errors import InputError


def build_packed(
    model_class: Any,
    config: Any,
    dtype: torch.dtype,
    stored: Mapping[str, Any],
    form: Format,
    loading: Mapping[str, Any],
) -> nn.Module:
    """A module of `model_class` with the weights of a checkpoint.

    Float weights of packed layers are never in memory.

    Parameters
    ----------
    config
        The ``transformers`` configuration, without its ``quantization_config``.
    stored
        The checkpoint's tensors by name: file, dtype and shape.
    form
        The format of its packed layers.
    loading
        Further arguments of the class's own constructor, as a family has them.

    Raises
    ------
    InputError
        If a tensor is missing, unexpected or of another shape; the message has name and shapes.
    """
    from transformers.initialization import no_init_weights

    packing = config.quantization_config
    del config.quantization_config
    # Memory that is never written takes none.
    with no_init_weights():
        module: nn.Module = model_class._from_config(
            config, dtype=dtype, attn_implementation="eager", **loading
        )
    tensor = stored_tensors(stored, in_place=form.in_place)
    paths = {name[: -len(form.codes) - 1] for name in stored if name.endswith(f".{form.codes}")}
    experts = ExpertLayers(module)
    taken = _pack_layers(module, paths, stored, tensor, form, packing, experts)
    experts.put()
    _share_head(module, config, paths)
    floats = [name for name in stored if name not in taken]
    load_floats(module, {experts.name_here(name): tensor(name) for name in floats})
    return module


def stored_tensors(stored: Mapping[str, Any], *, in_place: bool = False) -> Callable[[str], Tensor]:
    """Gives tensors of a checkpoint by name, mapped from their files.

    They may be changed, unless they are used `in_place`: pages of large files are then returned.
    """
    files = {each.file: open_tensors(each.file, writable=not in_place) for each in stored.values()}
    if in_place and are_large(sum(each.nbytes for each in files.values())):
        for file in files.values():
            return_pages_of(file)

    def tensor(name: str) -> Tensor:
        raw = tensor_of(files[stored[name].file][name])
        return raw.view(torch.bfloat16) if stored[name].dtype == "bfloat16" else raw

    return tensor


def _pack_layers(
    module: nn.Module,
    paths: set[str],
    stored: Mapping[str, Any],
    tensor: Any,
    form: Format,
    packing: Any,
    experts: ExpertLayers,
) -> set[str]:
    """Put packed layers into a module; the names of the tensors that they took."""
    taken: set[str] = set()
    parts = dict(module.named_modules(remove_duplicate=False))
    for path in sorted(paths):
        part: Any = parts.get(path)
        shape = experts.shape(path) if part is None else None
        if shape is None and not isinstance(part, nn.Linear | nn.Embedding):
            raise InputError(
                f"{path} is packed, but the model has no linear layer or embedding of that name: "
                "config.json and the weights belong to different models"
            )
        names = {each: f"{path}.{each}" for each in form.suffixes if f"{path}.{each}" in stored}
        tensors = {end: tensor(name) for end, name in names.items()}
        if shape is not None:
            experts.add(path, form.read(Layer(path, tensors, shape, packing)))
        else:
            rows, columns = (int(each) for each in part.weight.shape)
            classes = tuple(each.__name__ for each in type(part).__mro__)
            layer = Layer(path, tensors, (rows, columns), packing, classes)
            replace_part(module, path, packed_part(part, form.read(layer)))
        taken |= set(names.values())
    if not taken:
        raise InputError(
            f"config.json says that the weights are quantized, but no tensor is named "
            f"*.{form.codes}: take the quantization_config out of it, or fetch the weights again"
        )
    return taken


def _share_head(module: Any, config: Any, paths: set[str]) -> None:
    """A head that shares the packed table of the embedding."""
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    if not config.tie_word_embeddings or head is None or not hasattr(embedding, "packed"):
        return
    for path, part in module.named_modules():
        if part is head and path not in paths:
            weight: PackedWeight = embedding.packed
            replace_part(module, path, packed_part(head, weight))
            return


def load_floats(module: Any, floats: dict[str, Tensor]) -> None:
    """Copy all float weights of a module, by their names.

    Raises
    ------
    InputError
        If a tensor is missing, unexpected or of another shape.
    """
    expected = dict(module.named_parameters())
    packed = {
        f"{path}.{name}"
        for path, part in module.named_modules()
        if hasattr(part, "packed")
        for name in part.held
    }
    floats = {n: t for n, t in floats.items() if not n.endswith("rotary_emb.inv_freq")}
    tied = {n for n in getattr(module, "all_tied_weights_keys", ()) if n not in floats}
    wanted = expected.keys() - packed
    for name in sorted((wanted - tied) | floats.keys()):
        want = tuple(expected[name].shape) if name in wanted else None
        got = tuple(floats[name].shape) if name in floats else None
        if want != got:
            raise InputError(
                f"{name} has shape {got or 'none'}, but the model has {want or 'none'}: "
                "config.json and the weights belong to different models"
            )
    with torch.no_grad():
        for name, value in floats.items():
            expected[name].copy_(value)
