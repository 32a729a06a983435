"""Runs a loaded model's entries in torch, as the executor runs them on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tapml.models import LoadedModel, entry_for
from tapml.models.inputs import Array


class EagerRunner:
    """A model's entries in eager torch, with the cache kept between the calls."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._entries = {entry.name: entry for entry in model.entry_modules()}
        self._state = model.empty_state()
        self.position = 0

    def run(self, token_ids: Sequence[int]) -> Array:
        """Logits ``[1, S, vocabulary]`` of the next tokens."""
        entry = self._entries[entry_for(len(token_ids))]
        if len(token_ids) == 1:
            inputs = self._model.prepare_decode(token_ids[0], self.position)
        else:
            inputs = self._model.prepare_prefill(token_ids, self.position)
        named = {**inputs, **self._state}
        with torch.no_grad():
            outputs = entry.module(*(torch.from_numpy(named[name]) for name in entry.input_names))
        for state in entry.state:
            self._state[state.name] = outputs[state.output_index].numpy()
        self.position += len(token_ids)
        return np.asarray(outputs[0])
