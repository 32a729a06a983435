"""SettingKept: flags, words and axes that a program gives to functions in training are the same.

Such are the reduction of a loss, whether attention is causal, the axis of a softmax, and whether a
norm or dropout is in training mode. Sizes and other numbers are no rule; of a loss's arguments, one
with a fraction, such as the smoothing of labels, does not become zero. A mask that is given, or the
weights of a loss's classes, are given in each call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tapml.invariants.record import ACTIVATION, CALL, ON_LOGITS, Record, Value, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name, topic

_FUNCTIONS: Final = "torch.nn.functional."
_OTHERS: Final = ("torch.softmax", "torch.log_softmax", "torch.einsum")
_BY_MODE: Final = ("torch.nn.modules.batchnorm.", "torch.nn.modules.dropout.")
_MODE: Final = "module.training"
_AXES: Final = ("arg.dim", "arg.axis", "arg.ignore_index")
# The first follows the mode of the model, the second is no number of the run.
_NO_RULES: Final = ("arg.training", "arg.inplace")
_WORD: Final = re.compile(r"[\w ,>.-]{1,24}")


class SettingKept(Relation):
    """The value of an argument; new beside the paper's relations."""

    name = "SettingKept"
    structural = True
    own = True
    least = 3
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Each setting that a call in training has."""
        seen: dict[tuple[str, str], set[str]] = {}
        for record in (each for window in windows for each in window.records):
            for argument, value in _settings(record):
                seen.setdefault((record.name, argument), set()).add(value)
        return [
            {"api": api, "argument": argument, "value": value}
            for (api, argument), (value, *others) in sorted(seen.items())
            if not others and value not in (_ZERO, _NOT_GIVEN)
        ]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each call in training that has the argument."""
        wanted = params["value"]
        for record in window.calls(params["api"]):
            for argument, value in _settings(record):
                if argument == params["argument"]:
                    yield Example(value == wanted, (record,), record.name, f"it was {value}")

    def sentence(self, params: Params) -> str:
        """The setting."""
        api, value = short_name(params["api"]), params["value"]
        if params["argument"] == _MODE:
            mode = "training" if value == "True" else "evaluation"
            return f"While the model trains, {api} is in {mode} mode."
        if params["argument"] == ACTIVATION:
            activation = "no activation" if value == "none" else value
            return f"In training, {activation} comes directly before {api}."
        argument = params["argument"].removeprefix("arg.")
        return f"In training, argument {argument} of {api} is {value}."

    def concerns(self, params: Params) -> frozenset[str]:
        """The API."""
        return frozenset({topic(params["api"])})


_ZERO: Final = "zero"
_NOT_GIVEN: Final = "not given"


def _settings(record: Record) -> Iterator[tuple[str, str]]:
    context = record.context
    if record.kind != CALL or not (context.get("training") and context.get("grad")):
        return
    if record.name.startswith(_BY_MODE):
        if _MODE in record.fields:
            yield _MODE, str(record.fields[_MODE])
        return
    if not record.name.startswith(_FUNCTIONS) and record.name not in _OTHERS:
        return
    loss = "loss" in record.name or "entropy" in record.name
    for name, given in record.fields.items():
        if name.startswith("arg.") and name not in _NO_RULES:
            argument = name.removesuffix(".shape")
            if argument.endswith("_mask") or (loss and argument.endswith("weight")):
                if given is None or argument != name:
                    yield argument, _NOT_GIVEN if given is None else "given"
            elif value := _value(name, given, loss=loss):
                yield name, value
    if record.name in ON_LOGITS and ACTIVATION not in record.fields:
        yield ACTIVATION, "none"


def _value(name: str, given: Value, *, loss: bool) -> str:
    """The value as the rule has it; empty if it makes no rule."""
    if isinstance(given, bool):
        return str(given)
    if isinstance(given, str):
        known = not name.endswith((".dtype", ".type")) and _WORD.fullmatch(given)
        return given if known else ""
    if isinstance(given, int):
        return str(given) if name in _AXES or given < 0 else ""
    if isinstance(given, float) and loss:
        return "nonzero" if given else _ZERO
    return ""


RELATION = SettingKept()
