/** RWKV's tokenizer; tests/web/test_longest_match.py compares it with Python's. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { TapmlError } from "../src/errors";
import { LongestMatch } from "../src/runner/longest_match";
import { TextStream } from "../src/runner/text_stream";

const bytes = Array.from({ length: 256 }, (_, byte) => [byte + 1, byte.toString(16).padStart(2, "0")]);
const codec = new LongestMatch({ longest_match: [...bytes, [257, "7468"], [258, "746865"], [259, "20746865"]] });

test("the longest token is taken, also at the end of the text", () => {
  assert.deepEqual(codec.encode("the the th t"), [258, 259, 33, 257, 33, 117]);
  assert.deepEqual(codec.encode(""), []);
  assert.throws(() => codec.encode("a\ud83d"), /half of a surrogate pair/);
});

test("a character in several tokens is streamed whole, and an unknown token is no text", () => {
  const stream = new TextStream(codec, []);
  assert.deepEqual(codec.encode("🦙").map((each) => stream.push(each)), ["", "", "", "🦙"]);
  assert.equal(codec.decode([0, 65535, 98, 0xef + 1, 0xbb + 1, 0xbf + 1]), "a\ufeff");
});

test("a vocabulary that is none is refused", () => {
  const cases: [unknown, string][] = [
    [null, 'the tokens in "longest_match"'],
    [{ longest_match: {} }, 'the tokens in "longest_match"'],
    [{ longest_match: [[1, "0"]] }, '[1,"0"] is no token'],
    [{ longest_match: [["1", "00"]] }, "is no token"],
    [{ longest_match: [[-1, "00"]] }, "is no token"],
    [{ longest_match: [[1, "00"], [1, "01"]] }, "token 1 came before"],
    [{ longest_match: [[1, "00"], [2, "00"]] }, "token 2 came before"],
    [{ longest_match: bytes.slice(1) }, "no token is the byte 0"],
  ];
  for (const [data, text] of cases) {
    assert.throws(
      () => new LongestMatch(data),
      (error: unknown) => error instanceof TapmlError && error.message.includes(text),
      text,
    );
  }
});
