"""The wrapper compared with the model it wraps: its entries against the class's own ``forward``.

Rooting a plan compares it with the exported wrapper, so a wrapper that is wrong would be moved as
it is. Here the entries run in PyTorch, a decoder's step by step on the cache, and every output is
compared with the class's ``forward``, without a cache and with its own masks and positions. A
decoder's tokens are more than any attention window that fits the context; an encoder's batch has
padding; a recorded module is compared with what it gave before, a folded ONNX model with its file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tapml_targets.errors import InputError, MismatchError

if TYPE_CHECKING:
    from tapml.models.loaded import Loaded

OWN_FORWARD_TOLERANCE: Final = {"float32": 1e-4, "float16": 2e-2}
"""The largest difference, relative to the largest output, by the model's dtype."""
_STEPS_OF_ONE: Final = 2.0**-22
"""Two steps of float32 at 1."""
_MOST_OF_STEPS: Final = 0.1
"""What those may be of an output's largest number: outputs that are all smaller say something."""


def root_wrapper(model: Loaded) -> float:
    """Compare a model's entries with its own forward; returns the largest relative difference.

    Raises
    ------
    InputError
        If the model's own forward gives NaN.
    MismatchError
        Naming the entry and the first step that differ.
    """
    steps = list(model.own_steps())
    largest = max((_largest(step.own) for step in steps if not step.alone), default=0.0)
    worst, position = 0.0, 0
    for number, step in enumerate(steps):
        if np.isnan(step.own).any() and step.alone:
            raise InputError(
                f"{model.name}: its own run gives NaN in output {number}: expected numbers; give "
                "inputs that it takes (--input)"
            )
        if np.isnan(step.own).any():
            raise InputError(
                f"{model.name}: the forward of {type(model.module).__name__} itself gives NaN at "
                f"step {number}: expected numbers; check config.json, or load it as float32 "
                "(--dtype float32) if it is float16"
            )
        allowed = step.allowed or OWN_FORWARD_TOLERANCE[model.dtype]
        scale = (_largest(step.own) if step.alone else largest) or 1.0
        with np.errstate(invalid="ignore"):
            error = np.abs(step.ours.astype(np.float64) - step.own) / scale
            small = np.abs(step.ours - step.own) <= _STEPS_OF_ONE
        if step.alone:
            # A sigmoid or softmax has this error however small it is.
            error[small & (error <= _MOST_OF_STEPS)] = 0.0
        error[step.ours == step.own] = 0.0
        by_position = error.max(axis=1, initial=0.0)
        # NaN is no agreement.
        wrong = np.flatnonzero(~(by_position <= allowed))
        usual = float(np.sqrt(np.mean(np.square(error)))) if error.size else 0.0
        if step.usual is not None and usual > step.usual:
            raise MismatchError(
                f"{model.name}: {step.entry} differs from the model's own in output {number} by "
                f"{usual:.3g} of its largest number at the usual place, allowed {step.usual:g}: an "
                "operator means something else here, or the weights are not those of the run"
            )
        if len(wrong) and step.alone:
            raise MismatchError(
                f"{model.name}: {step.entry} differs from the model's own in output {number} by "
                f"{by_position[wrong[0]]:.3g} of its largest number, allowed {allowed:g}: an "
                "operator means something else here, or the weights are not those of the run"
            )
        if len(wrong):
            raise MismatchError(
                f"{model.name}: the wrapper's {step.entry} differs from the forward of "
                f"{type(model.module).__name__} at step {number} (position {position + wrong[0]}) "
                f"by {by_position[wrong[0]]:.3g} of the largest output, allowed {allowed:g}: its "
                "cache, masks or positions are wrong in tapml/models or in the model's family "
                "(tapml/models/families)"
            )
        worst = max(worst, float(by_position.max()))
        position += len(step.own)
    return worst


def _largest(rows: npt.NDArray[Any]) -> float:
    return float(np.abs(rows[np.isfinite(rows)]).max(initial=0.0))
