"""The simulator's checked mode; see :mod:`tapml_targets.checker`."""

from tapml_targets.simulator.checker import *  # noqa: F403 - all that it names is taken over
