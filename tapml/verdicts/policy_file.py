"""Reads and writes policies as TOML files.

Reading is strict: a misspelt limit that is silently ignored would be worse than none. Errors name
the line and the nearest known name.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, get_args

from tapml.verdicts.limits import DEFAULT_LIMITS, RatioLimits
from tapml.verdicts.operator_class import OperatorClass
from tapml.verdicts.policy import POLICY_VERSION, Override, Policy
from tapml_targets.errors import InputError

_MAX_BYTES: Final = 1 << 20
_TOP: Final = (
    "version",
    "reason",
    "repeats",
    "appeal_repeats",
    "seed",
    "flushes_subnormals",
    "limits",
    "override",
)
_LIMITS: Final = ("passing", "degraded", "terms_without_growth")
_OVERRIDE: Final = ("operator", "output", "dtype", "class", *_LIMITS, "reason")
_CLASSES: Final[tuple[OperatorClass, ...]] = tuple(
    name for name in get_args(OperatorClass) if name != "discrete"
)


def policy_of(path: Path | None) -> Policy:
    """The policy of ``--policy FILE``; the calibrated one without a file."""
    return Policy() if path is None else read_policy(path)


def read_policy(path: Path) -> Policy:
    """The policy that a TOML file holds (docs/verdicts.md shows one).

    Raises
    ------
    InputError
        If the file cannot be read, is not TOML, has an unknown key or name, a value of the wrong
        type, or an override or loosened limit without a reason. The message names the file, the
        line if possible, and the nearest known name.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path}: a policy has at most {_MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the policy {path} cannot be read ({error}); give a TOML file, such as "
            "`tapml policy` prints"
        ) from None
    return parse_policy(text, str(path))


def parse_policy(text: str, name: str = "policy") -> Policy:
    """The policy in `text`; `name` is what messages call it. Raises as :func:`read_policy`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not TOML: {error}") from None
    reader = _Reader(name, text)
    reader.check_keys(document, _TOP, "")
    version = reader.integer(document, "version", "", POLICY_VERSION)
    if version != POLICY_VERSION:
        reader.refuse(
            f"version {version}: this tapml knows version {POLICY_VERSION}; the operator classes "
            "and limits of docs/verdicts.md are what it has changed to",
            "version",
        )
    given: dict[str, Any] = {
        "limits": tuple(reader.rows(document.get("limits", {}))),
        "overrides": tuple(reader.overrides(document.get("override", []))),
        "reason": reader.text(document, "reason", "", ""),
    }
    for key in ("repeats", "appeal_repeats", "seed"):
        if key in document:
            given[key] = reader.integer(document, key, "", 0)
    if "flushes_subnormals" in document:
        given["flushes_subnormals"] = reader.dtypes(document["flushes_subnormals"])
    try:
        return Policy(**given)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


@dataclass(frozen=True)
class _Reader:
    """Typed access to a parsed file; every error names the place."""

    name: str
    source: str

    def refuse(self, message: str, *words: str) -> NoReturn:
        """Raise InputError, with the first line of the file that has all `words`."""
        for number, line in enumerate(self.source.splitlines(), 1):
            if all(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", line) for word in words):
                raise InputError(f"{self.name}, line {number}: {message}")
        raise InputError(f"{self.name}: {message}")

    def check_keys(self, table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        for key in table:
            if key not in known:
                self._unknown("key", key, known, where)

    def _unknown(self, what: str, name: str, known: Iterable[str], where: str) -> NoReturn:
        names = list(known)
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
        self.refuse(f"unknown {what} {name!r}{where and f' in {where}'}; {hint}", name)

    def table(self, value: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.refuse(f"{where} should be a table, got {value!r:.80}", where.rpartition(".")[2])
        return value

    def rows(self, limits: Any) -> Iterator[tuple[str, OperatorClass, RatioLimits]]:
        for dtype, row in self.table(limits, "limits").items():
            if dtype not in DEFAULT_LIMITS:
                self._unknown("dtype", dtype, DEFAULT_LIMITS, "limits")
            for name, table in self.table(row, f"limits.{dtype}").items():
                where = f"limits.{dtype}.{name}"
                if name in _LIMITS:
                    self.refuse(
                        f"limits are given by class: write [limits.{dtype}.product] or another of "
                        f"{', '.join(_CLASSES)}",
                        name,
                    )
                operator_class = self.operator_class(name, f"limits.{dtype}")
                self.check_keys(self.table(table, where), _LIMITS, where)
                yield dtype, operator_class, self.limits(table, where)

    def overrides(self, overrides: Any) -> Iterator[Override]:
        if not isinstance(overrides, list):
            self.refuse("override should be written [[override]], once for each", "override")
        for number, table in enumerate(overrides, 1):
            where = f"override {number}"
            self.check_keys(self.table(table, where), _OVERRIDE, where)
            dtype = self.text(table, "dtype", where, "")
            if dtype and dtype not in DEFAULT_LIMITS:
                self._unknown("dtype", dtype, DEFAULT_LIMITS, where)
            given = self.text(table, "class", where, "")
            reason = self.text(table, "reason", where, "")
            pattern = self.text(table, "operator", where, None)
            if not reason.strip():
                self.refuse(
                    f"{where} (of {pattern!r}) has no reason: add reason = \"why\", it is printed "
                    "on the first page of the report",
                    "operator",
                    pattern,
                )  # fmt: skip
            yield Override(
                pattern=pattern,
                limits=self.limits(table, where),
                reason=reason,
                dtype=dtype,
                operator_class=self.operator_class(given, where) if given else None,
                output=self.text(table, "output", where, "*"),
            )

    def operator_class(self, name: str, where: str) -> OperatorClass:
        for known in _CLASSES:
            if name == known:
                return known
        self._unknown("operator class", name, _CLASSES, where)

    def limits(self, table: Mapping[str, Any], where: str) -> RatioLimits:
        terms = self.integer(
            table, "terms_without_growth", where, RatioLimits(1, 1).terms_without_growth
        )
        return RatioLimits(
            self.number(table, "passing", where), self.number(table, "degraded", where), terms
        )  # fmt: skip

    def number(self, table: Mapping[str, Any], key: str, where: str) -> float:
        if key not in table:
            self.refuse(
                f"{where} has no {key!r}: passing and degraded go together", *where.split()[:1]
            )
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(f"{key} in {where} should be a number, got {value!r:.80}", key)
        return float(value)

    def integer(self, table: Mapping[str, Any], key: str, where: str, default: int) -> int:
        value = table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(
                f"{key}{where and f' in {where}'} should be an integer, got {value!r:.80}", key
            )
        return value

    def text(self, table: Mapping[str, Any], key: str, where: str, default: str | None) -> str:
        value = self._required(table, key, where, default)
        if not isinstance(value, str):
            self.refuse(f"{key}{where and f' in {where}'} should be a text, got {value!r:.80}", key)
        return value

    def dtypes(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            self.refuse(
                f"flushes_subnormals should be a list of dtypes, got {value!r:.80}",
                "flushes_subnormals",
            )
        for dtype in value:
            if dtype not in DEFAULT_LIMITS:
                self._unknown("dtype", str(dtype), DEFAULT_LIMITS, "flushes_subnormals")
        return tuple(value)

    def _required(self, table: Mapping[str, Any], key: str, where: str, default: Any) -> Any:
        if key not in table and default is None:
            self.refuse(f"{where} has no {key!r}", *where.split()[:1])
        return table.get(key, default)


def write_policy(policy: Policy) -> str:
    """`policy` as TOML that :func:`parse_policy` reads back, with the defaults in comments."""
    lines = [
        "# A policy of tapml: docs/verdicts.md says what the numbers mean.",
        f"version = {policy.version}",
        "",
        "# Why limits below are looser than the defaults; mandatory where one is.",
        f"reason = {_text(policy.reason)}",
        "",
        "# How often inputs are perturbed to measure the sensitivity, how often before any verdict",
        "# other than a pass, and the seed of the perturbations.",
        f"repeats = {policy.repeats}",
        f"appeal_repeats = {policy.appeal_repeats}",
        f"seed = {policy.seed}",
        "",
        "# Dtypes whose subnormal numbers a device may lose.",
        f"flushes_subnormals = [{', '.join(map(_text, policy.flushes_subnormals))}]",
    ]
    for dtype, operator_class, limits in policy.limits:
        lines += ["", f"[limits.{dtype}.{operator_class}]", *_limit_lines(limits)]
    for override in policy.overrides:
        lines += ["", "[[override]]", f"operator = {_text(override.pattern)}"]
        if override.output != "*":
            lines.append(f"output = {_text(override.output)}")
        if override.dtype:
            lines.append(f"dtype = {_text(override.dtype)}")
        if override.operator_class is not None:
            lines.append(f"class = {_text(override.operator_class)}")
        lines += [*_limit_lines(override.limits), f"reason = {_text(override.reason)}"]
    lines += ["", "# The calibrated defaults. Uncomment what should differ.", *_default_lines()]
    return "\n".join(lines) + "\n"


def _default_lines() -> Iterator[str]:
    for dtype, row in DEFAULT_LIMITS.items():
        for operator_class, limits in row.items():
            yield ""
            yield f"# [limits.{dtype}.{operator_class}]"
            yield from (f"# {line}" for line in _limit_lines(limits))


def _limit_lines(limits: RatioLimits) -> list[str]:
    return [
        f"passing = {limits.passing!r}",
        f"degraded = {limits.degraded!r}",
        f"terms_without_growth = {limits.terms_without_growth}",
    ]


def _text(value: str) -> str:
    """A TOML string: JSON's escapes, and the one control character that JSON leaves alone."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
