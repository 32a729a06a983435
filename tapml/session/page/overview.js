"use strict";
// The first page.

const overview = document.getElementById("overview");

function drawOverview() {
  const { report } = session;
  overview.replaceChildren(
    el(
      "header.top",
      el("h1", title()),
      el(
        "nav",
        { "aria-label": "parts of this page" },
        [
          ["map", "Map"],
          ["operators", "Operators"],
          ["slow", "Speed"],
          ["model", "Model"],
          ["time", "Session"],
        ].map(([id, name]) => el("a", { href: `#${id}` }, name)),
      ),
    ),
    ...[
      outcomeBanner(),
      warnings(),
      nextSteps(),
      section("facts", "What was run", drawFacts(report)),
      section("map", "Migration map", drawMap()),
      section("operators", "Operators", drawTable()),
      section("slow", "Where the port loses time", drawSlow()),
      section("model", "The whole model on the target", drawFinal(report.final)),
      section("time", "Where the session's time went", drawPhases(report.phases || [])),
    ]
      .flat()
      .filter(Boolean),
  );
}

/** Draw what numbers changed on, and leave the reader where he was. */
function redrawOverview() {
  const top = scrollY;
  const focused = document.activeElement && document.activeElement.id;
  drawOverview();
  jump(top);
  const again = focused && document.getElementById(focused);
  if (again) {
    again.focus({ preventScroll: true });
    if (again.value) again.setSelectionRange(again.value.length, again.value.length);
  }
}

function title() {
  const { model = {}, target = {} } = session.report;
  return `${model.name || "a model"} → ${target.platform || "a device"}`;
}

function drawFacts(report) {
  const {
    model = {},
    target = {},
    summary = {},
    strategy = {},
    moved_bytes: moved = {},
    verdicts = {},
    policy = {},
    quantization = {},
    growth = "",
    final,
  } = report;
  const probes = summary.probes ? `, and ${plural(summary.probes, "exact probe")}` : "";
  const worst = session.byName.get(summary.worst_operator);
  return [
    facts([
      ["Model", el("strong", model.name), ` · ${model.dtype} · ${count(model.parameters)} parameters`],
      // The name of a simulated device ends in it.
      [
        "Target",
        el("strong", target.name),
        target.name && !target.name.endsWith(target.vendor_platform) ? ` · ${target.vendor_platform}` : null,
      ],
      ["Driver", target.driver_version],
      target.self_test
        ? ["The device", (target.self_test.traits || []).join(", ") || "as one expects of IEEE arithmetic"]
        : null,
      ["Reference", report.reference],
      // What the scheme cost, and what the target adds to it: only the second can fail.
      quantization.text ? ["Quantization error", quantization.text] : null,
      quantization.text && final ? ["Backend error", final.text || NONE] : null,
      // While the session runs the report is some seconds old; the outcome above counts along.
      ...(session.live
        ? []
        : [
            ["Operators moved", el("strong", `${count(summary.moved)} of ${count(summary.operators)}`)],
            ["Carved tests", `${count(summary.tests_passed)} of ${count(summary.tests)} pass${probes}`],
            worst
              ? ["Worst error ratio", el("strong", short(summary.worst_ratio)), " ", linkTo(worst)]
              : null,
          ]),
      strategy.name
        ? ["Strategy", el("strong", strategy.name), strategy.order ? ` · ${strategy.order} order` : ""]
        : null,
      known(strategy.model_runs)
        ? [
            "Runs of the whole model",
            el("strong", count(strategy.model_runs)),
            known(strategy.promised)
              ? ` · at most ${count(strategy.promised)} expected ${strategy.model_runs <= strategy.promised ? "✓" : "✕ more than expected"}`
              : "",
            strategy.from_journal ? ` · ${count(strategy.from_journal)} reused from earlier runs` : "",
            strategy.promise ? el("small.soft", strategy.promise) : null,
          ]
        : null,
      strategy.memory && strategy.memory.peak
        ? [
            "Device memory",
            el("strong", bytes(strategy.memory.peak)),
            strategy.memory.limit ? ` of ${bytes(strategy.memory.limit)}` : "",
          ]
        : null,
      ...Object.entries(moved)
        .filter(([, each]) => each && known(each.moved))
        .map(([entry, each]) => [
          `Transferred between devices, ${entry}`,
          el("strong", bytes(each.moved)),
          known(each.minimum)
            ? each.moved <= each.minimum
              ? " · the least possible ✓"
              : ` · ${bytes(each.minimum)} would do`
            : "",
        ]),
      known(verdicts.kept)
        ? [
            "Verdicts",
            [
              ["made", verdicts.first],
              ["kept", verdicts.kept],
              ["made again", verdicts.again],
            ]
              .filter(([, number]) => number)
              .map(([word, number]) => `${count(number)} ${word}`)
              .join(", "),
            why(verdicts.why),
          ]
        : null,
      growth ? ["How error grows", `${growth}; each call site of the map has its deviation`] : null,
    ]),
    measured(target.self_test),
    el(
      "details.soft",
      el("summary", "Policy"),
      el("p", policy.text || NONE),
      el("p", el("code", policy.hash || "")),
    ),
  ];
}

/** What the device's self-test found, fact by fact. */
function measured(found) {
  if (!found) return null;
  const state = fact => (fact.sound === null ? "·" : fact.sound ? "✓" : "✕");
  return el(
    "details.soft",
    el("summary", "What the device does, measured"),
    el("p", "It explains verdicts and moves no limit."),
    (found.problems || []).map(line => el("p", el("strong", line))),
    table(
      [
        ["", ""],
        ["Fact", ""],
        ["Found", ""],
        ["What it means", "wide"],
      ],
      (found.facts || []).map(fact => [
        state(fact),
        el("code", fact.name),
        known(fact.value) ? `${fact.value} ${fact.unit}`.trim() : NONE,
        fact.meaning,
      ]),
      "What the device does, measured",
    ),
  );
}

/** Why verdicts were made again: [reason, how many]. */
function why(reasons) {
  const rows = Object.entries(reasons || {});
  return rows.length
    ? el(
        "ul",
        rows.map(([reason, number]) =>
          el("li", known(number) ? `${count(number)}: ${reason}` : `${reason}: ${number}`),
        ),
      )
    : null;
}

/** The operators that cost most beside the reference. */
function drawSlow() {
  const rows = session.operators
    .map(each => ({ each, ...spent(each) }))
    .filter(row => known(row.target) && known(row.reference));
  if (!rows.length) return null;
  const all = key => rows.reduce((sum, row) => sum + row[key], 0);
  const [target, reference] = [all("target"), all("reference")];
  const losing = rows
    .filter(row => row.target > row.reference)
    .sort((a, b) => b.target - b.reference - (a.target - a.reference))
    .slice(0, 10);
  // What was not timed yet would look as if it took none.
  const untimed = session.operators.filter(each => (each.entries || {})[session.entry]).length - rows.length;
  const most = Math.max(...losing.flatMap(row => [row.target, row.reference]), 1e-9);
  return [
    el("div.tools", entryChoice()),
    el(
      "p",
      `One ${session.entry} spends `,
      el("strong", milliseconds(target)),
      ` in kernels on the target and ${milliseconds(reference)} on the reference: `,
      el("strong", times(target / reference)),
      ` as long${untimed > 0 ? `, ${plural(untimed, "operator")} without a time left out` : ""}. ${losing.length ? "Most is lost here:" : "No operator is slower than on the reference."}`,
    ),
    losing.length
      ? el(
          "ul.duel",
          losing.map(row =>
            el(
              "li",
              linkTo(row.each),
              el(
                "span.soft",
                `${times(row.target / row.reference)} · loses ${milliseconds(row.target - row.reference)} · ${percent(row.each.share)} of the model`,
              ),
              duelBars(row.target, row.reference, most),
            ),
          ),
        )
      : null,
  ];
}

/** Target above reference, on one scale. */
function duelBars(target, reference, most) {
  const bar = (kind, value, words) =>
    el(
      "div",
      { class: `line ${kind}` },
      el("span.side", words),
      el("span.track", el("b", { style: { width: `${Math.max(0.5, (value / most) * 100).toFixed(1)}%` } })),
      el("span.value", milliseconds(value)),
    );
  return el(
    "div.bars",
    known(target) ? bar("target", target, "target") : null,
    known(reference) ? bar("reference", reference, "reference") : null,
  );
}

function drawFinal(final) {
  if (!final) return el("p", "Not run: not every operator has moved.");
  const prompts = final.prompts || [];
  return [
    el("p", sentence(final.text)),
    prompts.map(row =>
      el(
        "blockquote",
        { class: row.equal ? "moved" : "failed" },
        el("p", el("span.soft", row.prompt), el("mark", row.text)),
        el("footer", `${row.equal ? "✓" : "✕"} ${row.verdict}`),
      ),
    ),
  ];
}

function drawPhases(phases) {
  if (!phases.length) return null;
  const total = phases.reduce((sum, each) => sum + each.seconds, 0) || 1;
  const number = value => [value, "number"];
  return table(
    [["Step", ""], ["Where", ""], number("Time"), ["", "wide"], ["Needed", ""], ["", "wide"]],
    phases.map(each => [
      each.name,
      each.platform,
      seconds(each.seconds),
      shareBar(each.seconds / total),
      el(
        "span",
        { title: each.once ? "however many operators there are" : "grows with the operators" },
        each.once ? "once" : "per operator",
      ),
      el("span.soft", each.detail),
    ]),
    "Where the session's time went",
  );
}
