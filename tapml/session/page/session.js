"use strict";
// The report in hand: read once, completed where an older tapml wrote less, and what is live of it.

const STATES = {
  moved: { glyph: "✓", word: "moved", means: "on the target", look: "calm" },
  validated: {
    glyph: "◐",
    word: "validated",
    means: "its tests pass; the model was not run with it",
    look: "",
  },
  failed: { glyph: "✕", word: "failed", means: "failed", look: "strong" },
  kept: { glyph: "‖", word: "kept", means: "kept on the source", look: "dashed" },
  running: { glyph: "▸", word: "in work", means: "in work", look: "" },
  waiting: { glyph: "○", word: "waiting", means: "waiting, on the source", look: "dotted" },
};

const session = {
  report: {},
  operators: [],
  maps: [],
  byName: new Map(),
  entries: [],
  entry: "",
  texts: null,
  live: null,
};

/** Take a report's data; its fields may be fewer than this version's. */
function takeReport(data) {
  session.report = data;
  // Format 2 and before named the parts of a map after a session's.
  session.maps = (data.maps || []).map(each => ({ name: each.entry, labels: each.operators, ...each }));
  session.operators = (data.operators || []).map((operator, place) => ({
    suspects: [],
    diagnosis: [],
    origins: [],
    attempts: [],
    parameters: [],
    binaries: [],
    again: [],
    entries: {},
    limits: {},
    tests: { total: 0, passed: 0 },
    replay: {},
    model_check: {},
    class: "",
    written: "",
    reason: "",
    ...operator,
    place,
  }));
  for (const each of session.operators) each.times = each.times || {};
  session.byName = new Map(session.operators.map(operator => [operator.name, operator]));
  const timed = new Set(session.operators.flatMap(each => Object.keys(each.times.entries || {})));
  session.entries = [...timed];
  if (!timed.has(session.entry)) session.entry = timed.has("decode") ? "decode" : session.entries[0] || "";
  measureShares();
}

/** Each operator's part of the time of the entry that is looked at. */
function measureShares() {
  const total = session.operators.reduce((sum, each) => sum + (spent(each).target || 0), 0);
  for (const each of session.operators)
    each.share = total > 0 && known(spent(each).target) ? spent(each).target / total : null;
}

/** Milliseconds of one run of an entry in this operator, on both sides. */
function spent(operator, entry = session.entry) {
  const found = (operator.times.entries || {})[entry];
  if (found) return { calls: found.calls, target: found.target_ms, reference: found.reference_ms };
  // A report without times of its own knows one call's mean on the target.
  if (session.entries.length || !known(operator.target_ms))
    return { calls: null, target: null, reference: null };
  return { calls: operator.sites, target: operator.target_ms * (operator.sites || 1), reference: null };
}

/** How many times as long as the reference, in the entry that is looked at. */
function slowness(operator) {
  const { target, reference } = spent(operator);
  if (known(target) && known(reference) && reference > 0) return target / reference;
  return known(operator.times.ratio) ? operator.times.ratio : null;
}

/** Milliseconds of one call on the target. */
function oneCall(operator) {
  return known(operator.times.target_ms) ? operator.times.target_ms : operator.target_ms;
}

/** State, ratio and reason as they are now: those of the running session before the report's. */
function now(operator) {
  const live = session.live && session.live.operators && session.live.operators[operator.name];
  const state = live ? live.state : operator.state;
  return {
    state: state in STATES ? state : "running",
    word: STATES[state] ? STATES[state].word : state,
    ratio: live && known(live.worst_ratio) ? live.worst_ratio : operator.worst_ratio,
    reason: live && live.reason ? live.reason : operator.reason,
  };
}

function chip(operator) {
  const { state, word } = now(operator);
  return el(
    "span",
    { class: `chip ${state}` },
    el("span", { "aria-hidden": "true" }, STATES[state].glyph),
    ` ${word}`,
  );
}

function writtenMark(operator) {
  return operator.written
    ? el("span.hand", { title: `a kernel written by hand: ${operator.written}` }, " ✎ by hand")
    : null;
}

function linkTo(operator, ...children) {
  const shown = children.length ? children : breakable(operator.name);
  return el("a.name", { href: `#operator-${encodeURIComponent(operator.name)}` }, shown);
}

/** A name that may be broken where its words end. */
function breakable(name) {
  return name
    .split(/(?<=_)/)
    .flatMap(word => [el("wbr"), word])
    .slice(1);
}

/** Kernel and reference source; they stand behind the scripts in the file and may not be there yet. */
function textsOf(operator) {
  if (operator.source !== undefined) return operator;
  if (!session.texts) {
    const block = document.getElementById("texts");
    session.texts = block ? JSON.parse(block.textContent) : null;
  }
  return (session.texts && session.texts[operator.name]) || {};
}

/** The worst ratio on a logarithmic scale from 0.1 to 1e6, with the limits of its class marked. */
function ratioBar(operator) {
  const { ratio, state } = now(operator);
  if (!known(ratio)) {
    const none = operator.tests.total ? "not finite" : NONE;
    return el("span", { class: `none ${state}` }, none);
  }
  const place = value => `${(((Math.log10(Math.min(Math.max(value, 0.1), 1e6)) + 1) / 7) * 100).toFixed(1)}%`;
  const beyond = known(operator.limits.degraded) && ratio > operator.limits.degraded;
  const marks = Object.entries(operator.limits).map(([name, limit]) =>
    el("i", { class: name, style: { left: place(limit) }, title: `${name} above ${short(limit)}` }),
  );
  return el(
    "span.measure",
    el(
      "span",
      { class: `bar ${beyond || state === "failed" ? "bad" : ""}`, "aria-hidden": "true" },
      el("b", { style: { width: place(ratio) } }),
      marks,
    ),
    el("span.value", short(ratio)),
  );
}

function shareBar(share) {
  if (!known(share)) return el("span.none", NONE);
  return el(
    "span.measure",
    el(
      "span.bar.plain",
      { "aria-hidden": "true" },
      el("b", { style: { width: `${(share * 100).toFixed(1)}%` } }),
    ),
    el("span.value", percent(share)),
  );
}
