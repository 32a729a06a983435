"""Reads the fields of untrusted JSON: every type checked, every size bounded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tapml_targets.errors import InputError

MAX_TEXT: Final = 64 << 10
MAX_ITEMS: Final = 256


class PlainFields:
    """One JSON object of a file that anyone may have written.

    Parameters
    ----------
    data
        What the JSON parser gave.
    what
        What the object should be, for messages.

    Raises
    ------
    InputError
        If `data` is no object. The methods raise it for a field that is missing, of another type or
        larger than any that tapml writes.
    """

    def __init__(self, data: object, what: str) -> None:
        if not isinstance(data, Mapping):
            raise InputError(f"expected {what} as a JSON object, got {type(data).__name__}")
        self._data: Mapping[str, Any] = data
        self._what = what

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._data.get(name) is not None

    def value(self, name: str) -> Any:
        """The field as it is."""
        try:
            return self._data[name]
        except KeyError:
            raise InputError(f"{self._what} has no field {name!r}") from None

    def text(self, name: str) -> str:
        """A string of at most ``MAX_TEXT`` characters."""
        return self._text(name, self.value(name))

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of `choices`."""
        text = self.text(name)
        if text not in choices:
            raise self._refused(name, f"one of {', '.join(map(repr, choices))}", text)
        return text

    def integer(self, name: str, lower: int = 0) -> int:
        """An integer from `lower` on that 64 bits hold."""
        return self._integer(name, self.value(name), lower)

    def number(self, name: str) -> float:
        """A number; NaN and Inf travel as text."""
        value = self.value(name)
        if isinstance(value, str) and value in ("nan", "inf", "-inf"):
            return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refused(name, "a number", value)
        try:
            return float(value)
        except OverflowError:
            raise self._refused(name, "a number that float64 holds", "a larger one") from None

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(self._text(name, item) for item in self.items(name))

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers from 0 on."""
        return tuple(self._integer(name, item, 0) for item in self.items(name))

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """A list of pairs of strings."""
        pairs = []
        for item in self.items(name):
            if not isinstance(item, list | tuple) or len(item) != 2:
                raise self._refused(name, "pairs", item)
            pairs.append((self._text(name, item[0]), self._text(name, item[1])))
        return tuple(pairs)

    def items(self, name: str) -> list[Any]:
        """A list of at most ``MAX_ITEMS`` items."""
        items = self.value(name)
        if not isinstance(items, list | tuple) or len(items) > MAX_ITEMS:
            raise self._refused(name, f"a list of at most {MAX_ITEMS}", items)
        return list(items)

    def _text(self, name: str, value: object) -> str:
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self._refused(name, f"text of at most {MAX_TEXT} characters", value)
        return value

    def _integer(self, name: str, value: object, lower: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._refused(name, "an integer", value)
        if not lower <= value < 1 << 63:
            raise self._refused(name, f"an integer from {lower} on", value)
        return value

    def _refused(self, name: str, expected: str, value: object) -> InputError:
        return InputError(f"{self._what}: {name} should be {expected}, got {str(value)[:100]}")


def plain_number(number: float) -> float | str:
    """A number as strict JSON holds it."""
    return number if math.isfinite(number) else str(number)
