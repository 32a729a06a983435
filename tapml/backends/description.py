"""What is known of a backend without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Description:
    """A backend, as its folder describes it.

    Attributes
    ----------
    title
        For people: "Keras on PyTorch".
    formats
        Endings of the model files it understands, such as ``.keras``.
    packages
        What it imports: requirement (for pip) by import name.
    variables
        Environment variables of its process.
    without
        Modules that its process must not import.
    variants
        What may follow its name after a colon, with what each means; the first is the default.
    """

    title: str
    formats: tuple[str, ...]
    packages: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    variants: Mapping[str, str] = field(default_factory=dict)
