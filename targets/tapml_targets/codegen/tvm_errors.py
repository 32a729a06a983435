"""One kind of error for all that TVM and its schedules raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tapml_targets.errors import TapmlError


@contextmanager
def as_runtime_errors(what: str) -> Iterator[None]:
    """What TVM raises inside is a RuntimeError, as most of its errors are.

    A check of TVM's names its kind itself, often ValueError; dlight's rules, in Python, take things
    for granted and end in assertions and in lists of another length than they unpack.

    Parameters
    ----------
    what
        What failed, for the message.

    Raises
    ------
    RuntimeError
        In place of any other exception that is none of ours.
    """
    try:
        yield
    except (RuntimeError, TapmlError):
        raise
    except Exception as error:
        raise RuntimeError(f"{what}: {type(error).__name__}: {error}") from error
