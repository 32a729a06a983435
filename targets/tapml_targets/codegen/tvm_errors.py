"""One kind of error for all that TVM and its schedules raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tapml_targets.errors import TapmlError


@contextmanager
def as_runtime_errors(what: str) -> Iterator[None]:
    """Turn TVM's other exceptions into RuntimeError, as most of its errors are.

    TVM's checks raise various kinds, often ValueError; dlight's rules, in Python, end in assertions
    and failed unpacking.

    Parameters
    ----------
    what
        The operation, for the message.

    Raises
    ------
    RuntimeError
        In place of any other exception, except :class:`TapmlError`.
    """
    try:
        yield
    except (RuntimeError, TapmlError):
        raise
    except Exception as error:
        raise RuntimeError(f"{what}: {type(error).__name__}: {error}") from error
