from __future__ import annotations

import pytest

from scripts.environment.installer import clean_environment, large_download, remedy


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  Downloading intel_opencl_rt-2026.2.0-py2.py3-none-x.whl (225.0 MB)", "225 MB"),
        ("Downloading https://host/a/torch-2.13.0%2Bcpu-cp311-x.whl (191.8 MB)", "192 MB"),
        ("  Downloading nvidia_cudnn-9.1-py3-none-x.whl (1.2 GB)", "1200 MB"),
        ("  Downloading msgpack-1.2.4-cp311-x.whl (480 kB)", None),
        ("  Downloading pyzmq-27.3.0-cp311-x.whl (1.1 MB)", None),
        ("Collecting torch (from tapml==0.1.0)", None),
    ],
)
def test_only_large_downloads_are_shown(line: str, shown: str | None) -> None:
    text = large_download(line)
    assert text is None if shown is None else shown in str(text)


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("OSError: [Errno 28] No space left on device", "free about 3 GB"),
        (
            "WARNING: Retrying: Failed to establish a new connection: [Errno -2] Name or service "
            "not known\nERROR: No matching distribution found for numpy",
            "check the network",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "no build of torch==2.13.0"),
        (
            "The conflict is caused by:\n    The user requested torch\n"
            "    The user requested (constraint) torch==2.13.0",
            "no build of torch==2.13.0",
        ),
        ("error: something new", "Run again"),
    ],
)
def test_a_known_fault_of_pip_has_its_remedy(output: str, wanted: str) -> None:
    assert wanted in remedy(output)


def test_pip_sees_no_variable_that_leads_outside_the_environment() -> None:
    kept = {"PATH": "/bin", "PIP_INDEX_URL": "mirror"}
    assert clean_environment({**kept, "PYTHONPATH": "x", "PIP_USER": "1"}) == kept
