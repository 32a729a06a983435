"use strict";
// The page of one operator.

const page = document.getElementById("page");

function drawOperator(name) {
  const operator = session.byName.get(name);
  if (!operator) {
    page.replaceChildren(
      el("header.top", el("a", { href: "#" }, "← All operators")),
      el("p", "This session has no operator ", el("code", name), "."),
    );
    return;
  }
  page.replaceChildren(
    ...[
      operatorHeader(operator),
      operatorState(operator),
      section("numbers", "Errors", operatorNumbers(operator), drawPicture(operator)),
      section("timing", "Time", operatorTimes(operator)),
      section("source", "Kernel and reference", operatorSources(operator)),
      section("parameters", "Parameters", operatorParameters(operator)),
      section("origins", "Where it comes from", operatorOrigins(operator)),
      section("history", "History", operatorHistory(operator)),
    ]
      .flat()
      .filter(Boolean),
  );
}

function operatorHeader(operator) {
  const at = operator.place;
  const near = (place, words, key) => {
    const other = session.operators[place];
    return other
      ? el(
          "a.step",
          { href: `#operator-${encodeURIComponent(other.name)}`, title: `${other.name} (key ${key})` },
          words,
        )
      : el("span.step.soft", { "aria-disabled": "true" }, words);
  };
  const inMap = session.maps.some(entry => entry.labels.includes(operator.name));
  return el(
    "header.top",
    el(
      "nav",
      { "aria-label": "operators" },
      el("a", { href: "#", title: "key Escape" }, "← All operators"),
      near(at - 1, "‹ Previous", "k"),
      el("span.soft", `${count(at + 1)} of ${count(session.operators.length)}`),
      near(at + 1, "Next ›", "j"),
      inMap
        ? el("button", { type: "button", onclick: () => showOnMap(operator.name) }, "Show on the map")
        : null,
    ),
    el("h1.name", breakable(operator.name)),
    el(
      "p",
      chip(operator),
      " ",
      operator.class ? el("span.tag", operator.class) : null,
      " ",
      el(
        "span.tag",
        operator.written
          ? "✎ kernel written by hand"
          : operator.source !== undefined || operator.binaries.length || textsOf(operator).source
            ? "kernel compiled by TVM"
            : "no kernel yet",
      ),
      " ",
      el("span.soft", `${plural(operator.sites, "call site")}${callsByEntry(operator)}`),
    ),
  );
}

function callsByEntry(operator) {
  const rows = Object.entries(operator.entries);
  if (rows.length === 1) return ` in ${rows[0][0]}`;
  return rows.length ? `: ${rows.map(([entry, number]) => `${number} in ${entry}`).join(", ")}` : "";
}

function operatorState(operator) {
  const { state, reason } = now(operator);
  const again = operator.again.length
    ? el("p", "Judged again in the last run because of ", el("strong", operator.again.join("; ")))
    : null;
  const kept = operator.replay.reused
    ? el("p.soft", "Nothing it depends on has changed: the verdict of an earlier run holds.")
    : null;
  const failed = state === "failed";
  return el(
    "section",
    { class: `card ${state}` },
    operator.suspects.map(line => el("p", el("strong", line))),
    reason ? el("p.reason", reason) : null,
    (operator.device_effects || []).map(line => el("p.soft", sentence(line))),
    operator.written ? el("p", "The kernel is from ", el("code", operator.written)) : null,
    operator.placement ? el("p", sentence(operator.placement)) : null,
    again,
    kept,
    operator.diagnosis.length ? [el("h3", "Diagnosis"), findings(operator)] : null,
    failed ? remedies(operator) : null,
  );
}

function operatorNumbers(operator) {
  const { replay } = operator;
  const outputs = (replay.worst || {}).outputs || [];
  const check = operator.model_check;
  const model = check.status
    ? facts([
        ["On the whole model", el("strong", check.status)],
        [
          "Largest logit error",
          short(check.max_absolute),
          check.allowed ? ` · ${short(check.allowed.value)} allowed` : "",
        ],
        known(check.positions)
          ? [
              "Positions",
              `${count(check.decided)} of ${count(check.positions)} decided, ${count(check.parted)} part`,
            ]
          : null,
      ])
    : null;
  if (!outputs.length)
    return [
      operator.tests.total
        ? el("p", `${plural(operator.tests.total, "carved test")}; there are no numbers of the worst.`)
        : el("p.soft", "Not tried yet."),
      model,
    ];
  return [
    facts([
      [
        "Carved tests",
        el("strong", `${count(operator.tests.passed)} of ${count(operator.tests.total)} pass`),
        operator.probes ? `, ${plural(operator.probes, "probe")}` : "",
      ],
      ["Worst error ratio", ratioBar(operator)],
      ["Max abs error", el("strong", short(operator.max_abs_error))],
      ["Worst test", el("code", replay.worst_test || NONE)],
    ]),
    table(
      [
        ["Output", ""],
        ["Verdict", ""],
        ["Ratio", "number"],
        ["Limits", "number"],
        ["RMS ratio", "number"],
        ["Reference's own", "number"],
        ["Over", "number"],
        ["Worst at", ""],
        ["Expected", "number"],
        ["Target", "number"],
      ],
      outputs.map(each => [
        el("code", `${each.name} ${each.dtype}`),
        each.status,
        short(each.ratio),
        each.passing ? `${short(each.passing)} / ${short(each.degraded)}` : "exact",
        short(each.rms_ratio),
        short(each.reference_ratio),
        `${count(each.over)} of ${count(each.elements)}`,
        el("code", `[${each.index.join(", ")}]`),
        digits(each.expected),
        digits(each.actual),
      ]),
      "Numbers per output",
    ),
    model,
  ];
}

function digits(value) {
  return known(value) ? String(Number(value.toPrecision(9))) : String(value);
}

function operatorTimes(operator) {
  const { times: measured } = operator;
  const entries = Object.entries(measured.entries || {});
  if (!entries.length)
    return known(operator.target_ms)
      ? el(
          "p",
          `One call takes ${milliseconds(operator.target_ms)} on the target; the reference was not measured.`,
        )
      : null;
  const most = Math.max(
    ...entries.flatMap(([, each]) => [each.target_ms || 0, each.reference_ms || 0]),
    1e-9,
  );
  const totals = entry => session.operators.reduce((sum, each) => sum + (spent(each, entry).target || 0), 0);
  return [
    el(
      "p",
      "One call: ",
      el("strong", milliseconds(measured.target_ms)),
      ` on the target (${measured.clock === "host" ? "host clock" : "device events"}), ${milliseconds(measured.reference_ms)} on the reference`,
      known(measured.ratio)
        ? [
            ": ",
            el("strong", { class: measured.ratio > 1 ? "slower" : "faster" }, times(measured.ratio)),
            " as long",
          ]
        : null,
      ".",
    ),
    el(
      "ul.duel",
      entries.map(([entry, each]) =>
        el(
          "li",
          el("strong", entry),
          el(
            "span.soft",
            `${plural(each.calls, "call")} · ${known(each.reference_ms) && each.reference_ms > 0 ? times(each.target_ms / each.reference_ms) : NONE} · ${totals(entry) > 0 ? percent(each.target_ms / totals(entry)) : NONE} of the model`,
          ),
          duelBars(each.target_ms, each.reference_ms, most),
        ),
      ),
    ),
  ];
}

function operatorSources(operator) {
  const texts = textsOf(operator);
  const binaries = operator.binaries.map(each => `${each}: a binary, which has no text`);
  if (!texts.source && !texts.reference_source && !binaries.length) return null;
  const made = operator.written ? "Kernel, written by hand" : "Kernel on the target";
  return el(
    "div.sources",
    sourceFigure(made, texts.source, "c", binaries),
    sourceFigure("The operator, as the reference compiles it", texts.reference_source, "python"),
  );
}

function operatorParameters(operator) {
  if (!operator.parameters.length) return null;
  return table(
    [
      ["Name", ""],
      ["Role", ""],
      ["dtype", ""],
      ["Shape", ""],
    ],
    operator.parameters.map(each => [
      el("code", each.name),
      each.role,
      each.dtype,
      el("code", `[${each.shape.join(", ")}]`),
    ]),
    "Parameters",
  );
}

function operatorOrigins(operator) {
  if (!operator.origins.length) return null;
  return [
    table(
      [
        ["Module", ""],
        ["Operation", ""],
        ["Source line", ""],
      ],
      operator.origins.map(each => [
        [
          each.module_path || "(model)",
          each.alike ? el("span.soft", ` and ${count(each.alike)} alike`) : null,
        ],
        el("code", each.operation),
        el("code", each.source),
      ]),
      "Origins",
    ),
    operator.more_origins ? el("p.soft", `and ${plural(operator.more_origins, "more place")}`) : null,
  ];
}

const STAGES = { operator: "its tests", model: "the whole model", failure: "before a verdict" };

function operatorHistory(operator) {
  if (!operator.attempts.length) return null;
  return el(
    "ol.history",
    operator.attempts
      .toReversed()
      .map(each =>
        el(
          "li",
          { class: each.status.replace(" ", "-") },
          el(
            "p",
            el("strong", `${{ pass: "✓", fail: "✕" }[each.status] || "!"} ${each.status}`),
            ` ${STAGES[each.stage] || each.stage}`,
            known(each.worst_ratio) ? ` · ratio ${short(each.worst_ratio)}` : "",
            el(
              "time.soft",
              { datetime: known(each.time) ? new Date(each.time * 1000).toISOString() : null },
              moment(each.time),
            ),
          ),
          (each.changed || []).length ? el("p", "Changed: ", each.changed.join("; ")) : null,
          each.kernel ? el("p.soft", "kernel ", el("code", each.kernel.slice(0, 16))) : null,
          each.reason ? el("p.reason.soft", firstLine(each.reason)) : null,
        ),
      ),
  );
}
