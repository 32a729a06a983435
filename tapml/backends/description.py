"""What is known of a backend without loading it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Description:
    """A backend, as its folder describes it.

    Attributes
    ----------
    title
        For people: "Keras on PyTorch".
    formats
        Endings of the model files it understands, such as ``.keras``, or the name of a file by
        which a folder that it understands is told.
    packages
        What it imports: requirement (for pip) by import name. The first is the library whose
        version ``NAME@VERSION`` means.
    needs
        Requirements of an environment for another version besides: what tapml itself imports there.
    variables
        Environment variables of its process.
    without
        Modules that its process must not import.
    preload
        Modules that are imported once for all of its processes; they must start no threads.
    variants
        What may follow its name after a colon, with what each means; the first is the default.
    claims
        Whether another name stands for this backend, such as a device's; it is then the variant.
    """

    title: str
    formats: tuple[str, ...]
    packages: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    variants: Mapping[str, str] = field(default_factory=dict)
    claims: Callable[[str], bool] | None = None
    needs: tuple[str, ...] = ("numpy",)

    def reads(self, model: Path) -> bool:
        """Whether it understands a model file or folder, by its name alone."""
        if model.is_dir():
            return any((model / each).is_file() for each in self.formats if each[0] != ".")
        return model.suffix in self.formats
