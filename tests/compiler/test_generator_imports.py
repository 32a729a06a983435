"""All that a file imports is found, however it is written."""

from __future__ import annotations

from pathlib import Path

from tapml.compiler.generator_imports import imported_sources

BEGIN = """
from pack.first import (
    Name,  # it (too) is of this package
)
from pack import (
    second,  # (a module)
    third,
)
import pack.fourth as other, os

def later():
    from pack.inner import Deep  # and (this) one
    return "from pack import unread"
"""


def test_every_file_of_the_package_that_is_imported_is_found_and_no_other(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    (package / "inner").mkdir(parents=True)
    files = {
        "begin.py": BEGIN,
        "first.py": "import pack.fifth\n",
        "inner/__init__.py": "from pack.begin import later\n",
        **dict.fromkeys(("second.py", "third.py", "fourth.py", "fifth.py", "unread.py"), ""),
    }
    for name, text in files.items():
        (package / name).write_text(text)
    found = imported_sources([package / "begin.py"], {"pack": package})
    read = ("fifth.py", "first.py", "fourth.py", "inner/__init__.py", "second.py", "third.py")
    assert found == [package / name for name in read]
