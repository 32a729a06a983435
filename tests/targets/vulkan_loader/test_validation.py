"""Where the Khronos validation layer is found, and what its log becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_targets.check_messages import Message, Place
from tapml_targets.errors import SetupError
from tapml_targets.vulkan_loader import validation
from tapml_targets.vulkan_loader.validation import VARIABLE, environment, find_checker
from tapml_targets.vulkan_loader.validation_log import read_messages

# As the layer of Chromium 142 wrote them, on lavapipe.
RACE_ENTRY = {
    "Severity": "Error",
    "VUID": "SharedMemoryDataRace-RaceOnLoad",
    "Objects": [
        {"type": "VkQueue", "handle": "0x564951cec0d8", "name": ""},
        {"type": "VkPipeline", "handle": "0xd000000000d", "name": "planted"},
    ],
    "MainMessage": 'A data race was detected on the shared memory variable "s" in local invocation '
    "index 0 while performing a load operation. (Likely against local invocation index 1)\n"
    "The other access in this race was at:\nShader validation error occurred at <source>:9\n\n"
    "  s[i] = a[i];\n\nStage = Compute.  Global invocation ID (x, y, z) = (0, 0, 0)\n"
    "Command buffer (0x564951b09a50)\n\tCompute Dispatch Index 0\nShader Module (0x90000000009) "
    "(internal ID 1)\nShader validation error occurred at <source>:11\n\n  float x = s[i ^ 1];\n",
}
RACE = json.dumps(RACE_ENTRY, indent="\t") + "\n"
STRAY = {
    "Severity": "Error",
    "VUID": "VUID-vkCmdDispatch-storageBuffers-06936",
    "Objects": [{"type": "VkPipeline", "handle": "0xd", "name": "planted"}],
    "MainMessage": "(set = 0, binding = 1, index 0)  access out of bounds. The descriptor buffer "
    "(VkBuffer 0x2330000000233[buffer 3]) size is 208 bytes, 200 bytes were bound, and the highest "
    "out of bounds access was at [203] bytes\nStage = Compute.  Global invocation ID (x, y, z) = "
    "(47, 0, 0)\nShader Module (0x9) (internal ID 1)\nShader validation error occurred at "
    "<source>:12\n\n  o[i] = a[i+3] + amount;\n",
}
OFF = {
    "Severity": "Error",
    "VUID": "UNASSIGNED-GPU-Assisted-Validation",
    "MainMessage": "vkCreateDevice(): Internal Error, GPU-AV is being disabled. Details:\nGPU "
    "Shader Instrumentation requires bufferDeviceAddress to manage writing out of the shader.",
}
PARTS = [RACE, json.dumps(STRAY), "{", "}", "[1]"]
WARNING = {"Severity": "Warning", "VUID": "VALIDATION-SETTINGS", "MainMessage": "slow"}


def messages(*entries: Any) -> list[Message]:
    return list(read_messages("\n".join(json.dumps(each) for each in entries)))


def test_a_race_names_both_accesses() -> None:
    (race,) = read_messages(RACE)
    assert (race.kind, race.kernel, race.address_space) == ("data race", "planted", "local")
    assert race.places == (Place(9, 0, "write"), Place(11, 0, "read", "(0,0,0)"))
    assert race.headline.startswith('A data race was detected on the shared memory variable "s"')


def test_an_access_out_of_bounds_names_buffer_byte_and_line() -> None:
    (stray,) = messages(STRAY)
    assert (stray.kind, stray.kernel) == ("out-of-bounds access", "planted")
    assert stray.address == (3 << 48) + 203
    assert stray.places == (Place(12, 0, "", "(47,0,0)"),)


def test_a_layer_that_cannot_check_is_no_pass_and_its_warnings_are_no_findings() -> None:
    assert [each.kind for each in messages(WARNING, OFF)] == ["simulator error"]


@given(st.text() | st.lists(st.sampled_from(PARTS)).map("".join))
def test_no_log_raises_and_a_cut_message_is_left_out(text: str) -> None:
    assert len(list(read_messages(text))) <= text.count("Severity")
    whole = list(read_messages(RACE))
    assert list(read_messages(RACE + RACE[: len(RACE) // 2])) == whole


def test_what_is_no_recent_layer_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "libVkLayer_khronos_validation.so"
    old.write_bytes(b"\x7fELF, of 2023")
    monkeypatch.setenv(VARIABLE, str(old))
    with pytest.raises(SetupError, match="not the Khronos validation layer of 2025 or later"):
        find_checker()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere.so"))
    with pytest.raises(SetupError, match=r"nowhere\.so, which is no file"):
        find_checker()
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(validation, "browser_file", lambda name: None)
    monkeypatch.setattr(validation, "_from_system", lambda: [old])
    with pytest.raises(SetupError, match=r"is too old: .*install Debian's chromium"):
        find_checker()


def test_the_manifest_is_written_beside_the_log(tmp_path: Path) -> None:
    library = tmp_path / "layer.so"
    variables = environment(library, tmp_path / "log.txt")
    manifest = json.loads((Path(variables["VK_LAYER_PATH"]) / "validation.json").read_text())
    assert manifest["layer"]["library_path"] == str(library)
    assert manifest["layer"]["name"] == variables["VK_INSTANCE_LAYERS"]
