"""RWKV's tokenizer in the page's TypeScript gives the tokens and the texts of Python's."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tapml.models.longest_match import LongestMatch
from tapml.package.browser_folder import PAGE
from tapml.package.sample_lines import sample_lines
from tapml_rpc.tracker.web_page import page_files
from tests.models.test_longest_match import vocabulary

TEXTS = 2000
_SCRIPT = """
import { readFileSync } from "node:fs";
const { LongestMatch } = await import(process.argv[1]);
const [vocabulary, texts, ids] = JSON.parse(readFileSync(0, "utf-8"));
const codec = new LongestMatch(vocabulary);
console.log(JSON.stringify([
  texts.map((each) => codec.encode(each)),
  ids.map((each) => codec.decode(each)),
]));
"""


def test_it_equals_pythons_on_many_texts_and_on_tokens_that_are_no_text(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    codec = LongestMatch(vocabulary())
    random_ = random.Random(20260601)
    alphabet = [*"the réé日本\n'\"x🦙\0\ufeff\u2028", " there", "th", "\U0010ffff"]
    made = ["".join(random_.choices(alphabet, k=random_.randrange(40))) for _ in range(TEXTS)]
    anything = [
        "".join(map(chr, random_.choices([*range(0xD800), *range(0xE000, 0x110000, 97)], k=30)))
        for _ in range(TEXTS // 4)
    ]
    texts = [*sample_lines(), *made, *anything]
    # Cut characters and bytes that begin none: both replace the same.
    ids = [random_.choices(range(300), k=random_.randrange(20)) for _ in range(TEXTS)]
    # The built script, with a name that node takes for a module.
    module = tmp_path / "tapml.mjs"
    module.write_bytes(page_files(PAGE)["tapml.js"])
    given = json.dumps([json.loads(codec.to_json_text()), texts, ids])
    ran = subprocess.run(
        [node, "--input-type=module", "-e", _SCRIPT, str(module)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    encoded, decoded = json.loads(ran.stdout)
    assert encoded == [list(codec.encode(text)) for text in texts]
    assert decoded == [codec.decode(each) for each in ids]
