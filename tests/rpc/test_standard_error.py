"""What is said to an operator, where nobody reads it."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
from tapml_rpc.standard_error import print_fault, say
say("a line")
print_fault(ValueError("a fault"))
say("another")
print("done")
"""


def test_a_process_whose_standard_error_has_no_reader_goes_on_and_ends_as_others() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-c", CODE], check=False, stdout=subprocess.PIPE, stderr=writing
    )
    os.close(writing)
    assert (ran.returncode, ran.stdout) == (0, b"done\n")


def test_a_fault_is_printed_with_its_traceback() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert ran.stderr == "tapml: a line\nValueError: a fault\ntapml: another\n"
