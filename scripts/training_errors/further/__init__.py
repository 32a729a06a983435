"""Training programs of many kinds with silent errors that no paper lists, each with a clean twin.

``run(seed, buggy)`` as of :class:`~scripts.training_errors.case.Case`; the third seed, that of the
twin and the error, also changes the number of rows.
"""

from scripts.training_errors.further import (  # noqa: F401 - they register programs
    adversarial,
    everyday,
    kept_weights,
    objectives,
    precision,
    reinforcement,
    sequences,
    trained_parts,
    transforms,
    updates,
)
from scripts.training_errors.further.program import FURTHER

__all__ = ["FURTHER"]
