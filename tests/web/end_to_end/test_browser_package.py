"""A folder made by ``tapml package --browser`` generates in a browser what ``tapml run`` generates.

A real session on a WebGPU driver of this machine, a plain file server, a real browser.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tapml.package.load import load_package
from tapml.package.manifest import LIBRARY, TOKENIZER
from tapml.package.sample_lines import sample_lines
from tests.models.tokenizers import FAMILIES, TEXT, family
from tests.report.browser import open_browser
from tests.web.pages import WEBGPU_FLAGS
from tests.web.runner_page import PART_BYTES, RunnerPage, edit_manifest, exchange, served

pytestmark = pytest.mark.run_first

PROMPT = "So it goes"
NEW_TOKENS = 6
FIRST_PART = "weights.safetensors.0000"
# A name that is not localhost: what comes from there by http is no secure context.
ELSEWHERE = "elsewhere.test"


@pytest.fixture(scope="module")
def root(browser_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is served: the folder ``good``, and beside it what tests make of it."""
    served_root = tmp_path_factory.mktemp("served")
    shutil.copytree(browser_model, served_root / "good")
    return served_root


@pytest.fixture(scope="module")
def runner(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerPage]:
    """A browser for the pages of the folders."""
    resolver = f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"
    with (
        served(root) as port,
        open_browser(tmp_path_factory.mktemp("browser"), *WEBGPU_FLAGS, resolver) as page,
    ):
        page.resize(1200, 900)
        yield RunnerPage(page, port)


def test_the_page_writes_what_tapml_run_writes(webgpu_package: Path, runner: RunnerPage) -> None:
    runner.show("good")
    with load_package(webgpu_package) as model:
        ids = model.encode(PROMPT)
        tokens = list(model.generate_tokens(ids, max_new_tokens=NEW_TOKENS))
        text = model.generate(PROMPT, max_new_tokens=NEW_TOKENS)
        single = list(model.generate_tokens((5,), max_new_tokens=3))
        long = [7] * (model.context_length - 2)
        last = list(model.generate_tokens(long, max_new_tokens=9))
    assert runner.generate(PROMPT, NEW_TOKENS) == text
    assert f"{len(tokens)} token" in runner.text("#speed")
    assert runner.generate(PROMPT, NEW_TOKENS) == text, "a text begins on an empty state"
    found = runner.module(f"""
        const model = await tapml.load("./");
        const all = async (prompt, maxNewTokens) => {{
            const pieces = [];
            for await (const piece of model.generateTokens(prompt, {{ maxNewTokens }})) {{
                pieces.push(piece);
            }}
            return pieces.filter(({{ token }}) => token >= 0).map(({{ token }}) => token);
        }};
        const result = [await model.encode({PROMPT!r}), await all({PROMPT!r}, {NEW_TOKENS}),
            await all([5], 3), await all({long}, 9)];
        model.close();
        return result;
    """)
    assert found == [list(ids), tokens, single, last]
    assert 1 <= len(last) <= 3, "the context is the end"
    assert runner.page.complaints == []


def test_a_text_can_be_stopped(runner: RunnerPage) -> None:
    runner.show("good")
    runner.begin(PROMPT, 100_000)
    runner.page.evaluate("document.querySelector('#stop').click()")
    runner.wait_state("ready")
    assert runner.text("#speed").endswith("stopped")


def test_three_lines_are_enough(runner: RunnerPage) -> None:
    """The lines of docs/packages.md; a second text ends the first, and a closed model says so."""
    runner.show("good")
    said = runner.module("""
        const model = await tapml.load("./");
        let text = "";
        for await (const piece of model.generate("So", { maxNewTokens: 5 })) text += piece;
        const first = model.generateTokens("So", { maxNewTokens: 9 });
        await first.next();
        for await (const _ of model.generateTokens("it", { maxNewTokens: 2 }));
        const heard = [];
        try { for await (const _ of first); } catch (error) { heard.push(error.message); }
        for (const wrong of ["", [999999], "\\ud800"]) {
            try { for await (const _ of model.generate(wrong)); }
            catch (error) { heard.push(error.message); }
        }
        model.close();
        try { await model.encode("So"); } catch (error) { heard.push(error.message); }
        return heard;
    """)
    expected = [
        "another text was begun",
        "no token",
        "not in the vocabulary",
        "surrogate",
        "closed",
    ]
    assert len(said) == len(expected), said
    assert all(part in line for part, line in zip(expected, said, strict=True)), said


def test_tokenizers_of_every_family_give_the_librarys_tokens(runner: RunnerPage) -> None:
    """Lines in many languages, random texts and random tokens, against the `tokenizers` library."""
    generator = random.Random(7)
    words = [*TEXT.split(" "), "  ", "\r\n", "\x85", "\u200d", "\ufeff", "<s>", "[INST]", "<mask>"]
    texts = ["".join(generator.choices(words, k=9)) for _ in range(40)]
    added = ["wörd", "normal find", "normal ﬁnd", "<mask>", "AB", "aBc", "a", "_", "-", " ", "1"]
    beside = ["".join(generator.choices(added, k=9)) for _ in range(40)]
    lines = [*sample_lines(), *texts, *beside]
    cases = {}
    for name in FAMILIES:
        own = family(name)
        ids = [own.encode(line).ids for line in lines]
        # What a model may write: also halves of characters.
        size = own.get_vocab_size(with_added_tokens=False)
        written = [generator.choices(range(size), k=12) for _ in range(100)]
        decoded = [(each, own.decode(each)) for each in (*ids, *written)]
        cases[name] = [json.loads(own.to_str()), list(zip(lines, ids, strict=True)), decoded]
    runner.show("good")
    runner.page.evaluate(f"window.cases = {json.dumps(cases)}; 0")
    wrong = runner.module("""
        const wrong = [];
        for (const [name, [data, encoded, decoded]] of Object.entries(window.cases)) {
            const tokenizer = new tapml.Tokenizer(data);
            for (const [line, ids] of encoded) {
                if (tokenizer.encode(line).join() !== ids.join()) wrong.push([name, line]);
            }
            for (const [ids, text] of decoded) {
                if (tokenizer.decode(ids) !== text) wrong.push([name, ids]);
            }
        }
        return wrong;
    """)
    assert wrong == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_and_is_named_for_screen_readers(
    width: int, dark: bool, runner: RunnerPage
) -> None:
    runner.page.resize(width, 900, dark=dark)
    runner.show("good")
    assert runner.page.evaluate("document.documentElement.scrollWidth") <= width
    unnamed = runner.page.evaluate("""
        [...document.querySelectorAll("input, textarea, button, progress, [role=log]")]
            .filter((each) => !each.labels?.length && !each.ariaLabel && !each.textContent.trim())
            .map((each) => each.outerHTML)
    """)
    assert unnamed == []
    csp = runner.page.evaluate("document.querySelector('meta[http-equiv]').content")
    assert "default-src 'none'" in csp and "unsafe" not in csp


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def other_library(folder: Path) -> None:
    content = bytearray((folder / LIBRARY).read_bytes())
    content[8] = 99
    exchange(folder, LIBRARY, bytes(content))


def other_tokens(folder: Path) -> None:
    """A tokenizer that is not the one whose tokens were written down."""
    data = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    exchange(folder, TOKENIZER, json.dumps(data).encode())


def other_weights(folder: Path) -> None:
    part = (folder / FIRST_PART).read_bytes()
    exchange(folder, FIRST_PART, part.replace(b'"F32"', b'"I32"', 1))


def longer_input(folder: Path) -> None:
    """A prompt whose tensors no adapter binds, though each of their sizes is still a number."""
    plan = json.loads((folder / "model.json").read_text(encoding="utf-8"))["plan"]
    for entry in plan["entries"].values():
        entry["bounds"] = {symbol: [2, 1 << 22] for symbol in entry["bounds"]}
    edit_manifest(folder, plan=plan)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a part is missing": (
        lambda folder: (folder / FIRST_PART).unlink(),
        f"{FIRST_PART} is missing: the server answers 404",
    ),
    "a part is damaged": (lambda folder: flip(folder / FIRST_PART), f"{FIRST_PART} has SHA-256"),
    "a part is cut short": (
        lambda folder: (folder / FIRST_PART).write_bytes(b"short"),
        f"{FIRST_PART} has 5 bytes, expected {PART_BYTES}",
    ),
    "a part is too long": (
        lambda folder: (folder / FIRST_PART).write_bytes(bytes(PART_BYTES + 1)),
        f"{FIRST_PART} has more than the {PART_BYTES} bytes",
    ),
    "a plan of another version": (
        lambda folder: edit_manifest(folder, plan={"version": 7}),
        "version 7 of the plan, and its page reads version 1",
    ),
    "a folder of another version": (
        lambda folder: edit_manifest(folder, version=2),
        "version 2 of the format",
    ),
    "kernels of another version": (
        other_library,
        "a Library of version 99, and this tapml reads version",
    ),
    "a name that leads out": (
        lambda folder: edit_manifest(folder, files={"../x": {"bytes": 1, "sha256": "0" * 64}}),
        'the file "../x" is invalid',
    ),
    "no manifest": (lambda folder: (folder / "model.json").unlink(), "model.json is missing"),
    "no JSON": (
        lambda folder: (folder / "model.json").write_bytes(b"{"),
        "model.json is not valid JSON",
    ),
    "too large for this adapter": (longer_input, "(largest binding), the adapter has"),
    "another tokenizer": (other_tokens, "as other tokens than the model's own"),
    "other weights": (other_weights, "as float32"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_folder_is_shown_on_its_page(
    fault: str, root: Path, runner: RunnerPage
) -> None:
    damage, said = FAULTS[fault]
    folder = shutil.copytree(root / "good", root / fault.replace(" ", "-"))
    damage(folder)
    assert runner.open(folder.name) == "failed"
    assert said in runner.problem
    assert runner.page.evaluate("document.querySelector('#generate').disabled")


def test_without_a_secure_context_the_page_says_what_makes_one(runner: RunnerPage) -> None:
    assert runner.open("good", ELSEWHERE) == "failed"
    assert "SetupError: this page is not a secure context" in runner.problem
