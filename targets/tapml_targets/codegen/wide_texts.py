"""The text of the functions on 64-bit integers of two words: see :mod:`.wide_integers`.

WGSL and GLSL share it but for its spelling. The lower word is ``x``, the upper one ``y``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "tapml_wide_"


@dataclass(frozen=True)
class Spelling:
    """How a language spells what the functions are made of.

    Attributes
    ----------
    types
        Of two words (``P``), one (``u``), a signed one (``i``), a float (``f``), a truth (``b``).
    typed_names
        Whether a name stands before its type.
    choose
        Selects the second where the third is true.
    signed, unsigned, number, pattern
        A word as a signed one and back, a word as a float, and the float of a bit pattern.
    highest
        The place of a word's highest bit.
    """

    types: Mapping[str, str]
    typed_names: bool
    choose: str
    signed: str
    unsigned: str
    number: str
    pattern: str
    highest: str


WGSL: Final = Spelling(
    {"P": "vec2<u32>", "u": "u32", "i": "i32", "f": "f32", "b": "bool"},
    typed_names=True,
    choose="select",
    signed="bitcast<i32>",
    unsigned="bitcast<u32>",
    number="f32",
    pattern="bitcast<f32>",
    highest="firstLeadingBit",
)
GLSL: Final = Spelling(
    {"P": "uvec2", "u": "uint", "i": "int", "f": "float", "b": "bool"},
    typed_names=False,
    choose="mix",
    signed="int",
    unsigned="uint",
    number="float",
    pattern="uintBitsToFloat",
    highest="findMSB",
)

# Name, result, parameters and body of each function, in an order in which each follows what it
# calls. `$P name = ` declares a name, `@P name = ` one that changes, `P(` makes two words.
_FUNCTIONS: Final = (
    ("of_words", "P", "u low, u high", "return P(low, high);"),
    ("of_int", "P", "i x", "return P(UNSIGNED(x), UNSIGNED(x >> 31u));"),
    ("of_word", "P", "u x", "return P(x, 0u);"),
    ("low", "i", "P a", "return SIGNED(a.x);"),
    ("true", "b", "P a", "return (a.x | a.y) != 0u;"),
    ("add", "P", "P a, P b", """\
  $u low = a.x + b.x;
  return P(low, a.y + b.y + CHOOSE(0u, 1u, low < a.x));"""),
    ("sub", "P", "P a, P b", "return P(a.x - b.x, a.y - b.y - CHOOSE(0u, 1u, a.x < b.x));"),
    ("negative", "P", "P a", "return tapml_wide_sub(P(0u, 0u), a);"),
    ("mul", "P", "P a, P b", """\
  $u al = a.x & 65535u;
  $u ah = a.x >> 16u;
  $u bl = b.x & 65535u;
  $u bh = b.x >> 16u;
  $u first = ah * bl + ((al * bl) >> 16u);
  $u second = al * bh + (first & 65535u);
  $u high = ah * bh + (first >> 16u) + (second >> 16u);
  return P(a.x * b.x, high + a.x * b.y + a.y * b.x);"""),
    ("same", "b", "P a, P b", "return ((a.x ^ b.x) | (a.y ^ b.y)) == 0u;"),
    ("less", "b", "P a, P b", """\
  if (a.y != b.y) { return SIGNED(a.y) < SIGNED(b.y); }
  return a.x < b.x;"""),
    ("below", "b", "P a, P b", """\
  if (a.y != b.y) { return a.y < b.y; }
  return a.x < b.x;"""),
    ("min", "P", "P a, P b", """\
  if (tapml_wide_less(b, a)) { return b; }
  return a;"""),
    ("max", "P", "P a, P b", """\
  if (tapml_wide_less(a, b)) { return b; }
  return a;"""),
    ("size", "P", "P a", """\
  if ((a.y >> 31u) != 0u) { return tapml_wide_negative(a); }
  return a;"""),
    ("and", "P", "P a, P b", "return P(a.x & b.x, a.y & b.y);"),
    ("or", "P", "P a, P b", "return P(a.x | b.x, a.y | b.y);"),
    ("xor", "P", "P a, P b", "return P(a.x ^ b.x, a.y ^ b.y);"),
    ("not", "P", "P a", "return P(~a.x, ~a.y);"),
    ("left", "P", "P a, P by", """\
  $u n = by.x & 31u;
  if ((by.x & 32u) != 0u) { return P(0u, a.x << n); }
  if (n == 0u) { return a; }
  return P(a.x << n, (a.y << n) | (a.x >> (32u - n)));"""),
    ("right", "P", "P a, P by", """\
  $u n = by.x & 31u;
  $u sign = UNSIGNED(SIGNED(a.y) >> 31u);
  $u high = UNSIGNED(SIGNED(a.y) >> n);
  if ((by.x & 32u) != 0u) { return P(high, sign); }
  if (n == 0u) { return a; }
  return P((a.x >> n) | (a.y << (32u - n)), high);"""),
    ("quotient_of_sizes", "P", "P a, P b", """\
  @P left = a;
  @P rest = P(0u, 0u);
  @P found = P(0u, 0u);
  for (@u i = 0u; i < 64u; i++) {
    rest = P((rest.x << 1u) | (left.y >> 31u), (rest.y << 1u) | (rest.x >> 31u));
    left = P(left.x << 1u, (left.y << 1u) | (left.x >> 31u));
    found = P(found.x << 1u, (found.y << 1u) | (found.x >> 31u));
    if (!tapml_wide_below(rest, b)) {
      rest = tapml_wide_sub(rest, b);
      found.x = found.x | 1u;
    }
  }
  return found;"""),
    ("quotient", "P", "P a, P b", """\
  $P found = tapml_wide_quotient_of_sizes(tapml_wide_size(a), tapml_wide_size(b));
  if (((a.y ^ b.y) >> 31u) != 0u) { return tapml_wide_negative(found); }
  return found;"""),
    ("remainder", "P", "P a, P b",
     "return tapml_wide_sub(a, tapml_wide_mul(tapml_wide_quotient(a, b), b));"),
    ("floored_remainder", "P", "P a, P b", """\
  $P rest = tapml_wide_remainder(a, b);
  if (tapml_wide_true(rest) && ((rest.y ^ b.y) >> 31u) != 0u) { return tapml_wide_add(rest, b); }
  return rest;"""),
    ("floored_quotient", "P", "P a, P b", """\
  $P found = tapml_wide_quotient(a, b);
  $P rest = tapml_wide_sub(a, tapml_wide_mul(found, b));
  if (tapml_wide_true(rest) && ((rest.y ^ b.y) >> 31u) != 0u) {
    return tapml_wide_sub(found, P(1u, 0u));
  }
  return found;"""),
    # What lies below the 32 highest bits counts as one bit, which rounding asks for.
    ("to_float", "f", "P a", """\
  $P size = tapml_wide_size(a);
  @f found = NUMBER(size.x);
  if (size.y != 0u) {
    $u n = u(HIGHEST(size.y)) + 1u;
    @u top = size.y;
    @u rest = size.x;
    if (n < 32u) {
      top = (size.y << (32u - n)) | (size.x >> n);
      rest = size.x << (32u - n);
    }
    found = NUMBER(top | CHOOSE(0u, 1u, rest != 0u)) * PATTERN((127u + n) << 23u);
  }
  return CHOOSE(found, -found, (a.y >> 31u) != 0u);"""),
    ("of_float", "P", "f x", """\
  $f size = floor(abs(x));
  $f high = floor(size * 2.3283064365386963e-10);
  $P found = P(u(size - high * 4294967296.0), u(high));
  if (x < 0.0) { return tapml_wide_negative(found); }
  return found;"""),
)  # fmt: skip
_CALLS: Final = re.compile(rf"{PREFIX}(\w+)\(")


def wide_texts(names: Iterable[str], spelling: Spelling) -> str:
    """The text of some of these functions, and of those that they call."""
    bodies = {name: body for name, _, _, body in _FUNCTIONS}
    wanted, open_ = set[str](), [name.removeprefix(PREFIX) for name in names]
    while open_:
        name = open_.pop()
        if name not in wanted:
            wanted.add(name)
            open_ += _CALLS.findall(bodies[name])
    return "\n".join(_spelt(*each, spelling) for each in _FUNCTIONS if each[0] in wanted)


def _spelt(name: str, result: str, parameters: str, body: str, spelling: Spelling) -> str:
    types = spelling.types
    given = [each.split() for each in parameters.split(", ")]
    if spelling.typed_names:
        listed = ", ".join(f"{each} : {types[kind]}" for kind, each in given)
        head = f"fn {PREFIX}{name}({listed}) -> {types[result]}"
        body = re.sub(r"\$\w ", "let ", re.sub(r"@\w ", "var ", body))
    else:
        listed = ", ".join(f"{types[kind]} {each}" for kind, each in given)
        head = f"{types[result]} {PREFIX}{name}({listed})"
        body = re.sub(r"[$@](\w) ", lambda found: f"{types[found[1]]} ", body)
    body = re.sub(r"\b([Pu])\(", lambda found: f"{types[found[1]]}(", body)
    for word in ("choose", "signed", "unsigned", "number", "pattern", "highest"):
        body = re.sub(rf"\b{word.upper()}\(", f"{getattr(spelling, word)}(", body)
    inside = body if body.startswith("  ") else f"  {body}"
    return f"{head} {{\n{inside}\n}}"
