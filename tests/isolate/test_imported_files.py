"""The files that a Python file imports from its folder."""

from __future__ import annotations

from pathlib import Path

from tapml.isolate.imported_files import imported_beside


def test_files_beside_are_found_through_packages_and_dots_and_inside_functions(
    tmp_path: Path,
) -> None:
    texts = {
        "main.py": "import os\nfrom parts import left\ndef later():\n    import late, main",
        "parts/__init__.py": "",
        "parts/left.py": "from . import right\nfrom .deep.core import VALUE",
        "parts/right.py": "from ..late import VALUE",
        "parts/deep/__init__.py": "",
        "parts/deep/core.py": "from ...... import nothing",
        "late.py": "this is no Python",
        "unused.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = imported_beside(tmp_path / "main.py")
    assert found == {
        name: tmp_path / name for name in texts if name not in ("main.py", "unused.py")
    }
