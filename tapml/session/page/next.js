"use strict";
// How the session stands, in plain words, and what to do next.

const VERDICTS = {
  pass: ["✓", "The port works"],
  fail: ["✕", "Something failed"],
  degraded: ["!", "It works, less exactly than the limits ask for"],
  incomplete: ["○", "Not everything has moved yet"],
  "not run": ["○", "Not run"],
  running: ["▸", "In work"],
};

function outcomeBanner() {
  const { status = "not run", text = "" } = session.live
    ? { status: "running", text: "The session is in work; this page follows it." }
    : session.report.outcome || {};
  const [glyph, plain] = VERDICTS[status] || ["○", status];
  const words = status === "pass" && simulated() ? "The kernels are right, executed from source" : plain;
  return el(
    "div",
    { id: "outcome", class: `outcome ${status.replace(" ", "-")}` },
    el("span.seal", { "aria-hidden": "true" }, glyph),
    el("div", el("strong", words), el("p", sentence(text)), stateBar(), session.live ? failedSoFar() : null),
  );
}

/** Whether the target executes kernel text on a processor. */
function simulated() {
  return (session.report.target || {}).device_type === "simulated";
}

function failedSoFar() {
  const failed = session.operators.filter(each => now(each).state === "failed");
  return failed.length
    ? el(
        "ul",
        failed.slice(0, 5).map(each => el("li", linkTo(each), ": ", firstLine(now(each).reason))),
      )
    : null;
}

function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "";
}

/** How many operators are in which state, as one bar. */
function stateBar() {
  const total = session.operators.length;
  if (!total) return null;
  const counts = Object.keys(STATES)
    .map(state => [state, session.operators.filter(each => now(each).state === state).length])
    .filter(([, number]) => number);
  const words = counts.map(([state, number]) => `${number} ${STATES[state].word}`).join(", ");
  return el(
    "div.states",
    { role: "img", "aria-label": words },
    el(
      "div.stack",
      counts.map(([state, number]) => el("i", { class: state, style: { "flex-grow": number } })),
    ),
    el(
      "p",
      counts.map(([state, number]) =>
        el("span", { class: state }, `${STATES[state].glyph} ${count(number)} ${STATES[state].means}`),
      ),
    ),
  );
}

function sessionFolder() {
  return quoted(session.report.session || "SESSION");
}

/** An argument as a shell takes it. */
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function nextSteps() {
  const { status } = session.report.outcome || {};
  const failed = session.operators.filter(each => now(each).state === "failed");
  if (session.live) return null;
  if (failed.length) {
    return section(
      "next",
      "What to do next",
      failed.slice(0, 5).map(failedCard),
      failed.length > 5
        ? el("p", `${failed.length - 5} more failed; the table below can show them alone.`)
        : null,
      el(
        "p",
        "Then run the same ",
        el("code", "tapml offload"),
        " again: what has not changed is not run again.",
      ),
    );
  }
  if (status === "pass" && (session.report.summary || {}).moved === session.operators.length) {
    return section(
      "next",
      "What to do next",
      el("p", "Try it: "),
      command(`tapml run ${sessionFolder()} ${input()}`),
      el("p", "Write a package to ship; it needs neither PyTorch nor a compiler: "),
      command(`tapml package ${sessionFolder()}`),
      simulated()
        ? [
            el(
              "p",
              "The target executes the kernels' text on a processor, which says nothing of a GPU's compiler, ",
              "rounding or speed. Where there is one, ",
              el("code", `tapml rpc serve --device ${session.report.target.platform}`),
              " makes it a device, and the session goes on there: ",
            ),
            command(`tapml offload --session ${sessionFolder()} --device tcp://HOST:PORT`),
          ]
        : null,
    );
  }
  if (status === "pass") return null;
  return section(
    "next",
    "What to do next",
    el(
      "p",
      "Run the same ",
      el("code", "tapml offload"),
      " again to go on where it stopped: ",
      count(waiting()),
      " operators still wait.",
    ),
  );
}

function waiting() {
  return session.operators.filter(each => ["waiting", "validated", "running"].includes(now(each).state))
    .length;
}

function failedCard(operator) {
  return el(
    "article.card.failed",
    el("h3", linkTo(operator), " ", writtenMark(operator)),
    el("p.reason", firstLine(now(operator).reason)),
    findings(operator, false),
    remedies(operator),
  );
}

function firstLine(text) {
  return (text || "").split("\n")[0];
}

/** The commands that go on from a failure. */
function remedies(operator) {
  if (operator.state !== "failed") return null;
  const replay = operator.repro_script
    ? `python ${quoted(`${operator.repro}/${operator.repro_script}`)}`
    : `tapml replay ${quoted(operator.repro || "")}`;
  const again = operator.repro && (operator.repro_script || operator.replayable) ? replay : "";
  return [
    again ? [el("p.soft", "See it fail again, without the session:"), command(again)] : null,
    operator.repro && !again
      ? el("p.soft", "What is known of it lies in ", el("code", operator.repro))
      : null,
    tooSmall(operator) ? lackAdvice(operator) : kernelAdvice(operator),
    el(
      "p.soft",
      "Or go on without it: ",
      el("code", `tapml offload … --keep-on-source ${quoted(operator.name)}`),
    ),
  ];
}

/** Whether the device itself is too small for an operator: no kernel changes that. */
function tooSmall(operator) {
  return (operator.lacks || []).some(each => each.device);
}

/** Limit and need, and what helps. */
function lackAdvice(operator) {
  const lacks = operator.lacks.filter(each => each.device);
  const shorter = lacks.some(each => each.symbols);
  return [
    el("p", "The device is too small for this operator; no other kernel changes that:"),
    el(
      "ul",
      lacks.map(({ where, limit, need, has, symbols }) =>
        el("li", `${where}: ${limit} is ${has}, needed are ${need}${symbols ? ` at ${symbols}` : ""}`),
      ),
    ),
    el(
      "p.soft",
      `What helps is a larger device${shorter ? ", or a shorter context (--context) in a new session" : ""}. What there is:`,
    ),
    command("tapml devices"),
  ];
}

function kernelAdvice(operator) {
  return [
    el(
      "p.soft",
      operator.written
        ? `Edit the kernel in ${operator.written}; every save is tried at once:`
        : "Write a kernel by hand, starting from the compiled one:",
    ),
    operator.written
      ? command(`tapml kernel check ${sessionFolder()} ${quoted(operator.name)} --watch`)
      : command(`tapml kernel new ${sessionFolder()} ${quoted(operator.name)}`),
  ];
}

/** What localization found; evidence is indented under what it supports. */
function findings(operator, evidence = true) {
  const items = operator.diagnosis.flatMap(each => {
    // Reports of format 2 and before hold lines.
    if (typeof each === "string") return [el("li", each)];
    const found = el("li", el("strong", `${each.kind}:`), ` ${each.text}`);
    const lines = evidence ? each.evidence : [];
    return [found, ...lines.map(line => el("li.evidence", line))];
  });
  return items.length ? el("ul.findings", items) : null;
}

/** What a reader must know before believing the outcome. */
function warnings() {
  const suspects = session.operators.flatMap(each =>
    each.suspects.map(line => el("li", linkTo(each), `: ${line}`)),
  );
  const loosened = (session.report.loosened || []).map(text => el("li", text));
  const culprits = ((session.report.strategy || {}).culprits || []).map(group =>
    el(
      "li",
      group.map((name, place) => [place ? ", " : "", linkTo({ name })]),
      group.length > 1 ? " fail together" : " passes its tests and fails the model",
    ),
  );
  return [
    loosened.length
      ? el("section.card.warning", { id: "loosened" }, el("h2", "Loosened tolerances"), el("ul", loosened))
      : null,
    culprits.length
      ? el(
          "section.card.warning",
          { id: "together" },
          el("h2", "Right alone, wrong in the model"),
          el("ul", culprits),
        )
      : null,
    suspects.length
      ? el("section.card.warning", { id: "suspect" }, el("h2", "Suspect"), el("ul", suspects))
      : null,
  ];
}

/** How `tapml run` is given what the model was tried on: text, or token ids. */
function input() {
  const prompts = ((session.report.final || {}).prompts || []).map(each => each.prompt);
  return prompts.length && prompts.every(each => /^\d+( \d+)*$/.test(each))
    ? `--tokens "${prompts[0].split(" ").slice(0, 8).join(" ")}"`
    : '--prompt "…"';
}
