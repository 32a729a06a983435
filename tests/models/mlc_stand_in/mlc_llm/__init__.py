"""A stand-in for mlc-llm with the calls that tapml makes of it, written for the tests.

Like the real package's, this start does what no definition needs: tapml must not run it.
"""

raise ImportError("the package's start was run; only its definitions should be")
