"""What every code generator makes of an operator, on every device of a platform."""

from tests.targets.conformance.test_codegen import *  # noqa: F403
