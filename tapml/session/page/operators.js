"use strict";
// The table of operators: sorted by any column, filtered by name, state and class.

const COLUMNS = [
  {
    key: "place",
    title: "#",
    kind: "number",
    value: each => each.place,
    cell: each => count(each.place + 1),
  },
  { key: "state", title: "State", value: each => Object.keys(STATES).indexOf(now(each).state), cell: chip },
  {
    key: "name",
    title: "Operator",
    value: each => each.name,
    cell: each => [linkTo(each), writtenMark(each)],
  },
  { key: "class", title: "Class", value: each => each.class, cell: each => each.class },
  {
    key: "sites",
    title: "Calls",
    kind: "number",
    value: each => each.sites,
    cell: each => count(each.sites),
  },
  {
    key: "tests",
    title: "Tests",
    kind: "number",
    value: each => each.tests.total,
    cell: each => (each.tests.total ? `${count(each.tests.passed)}/${count(each.tests.total)}` : NONE),
  },
  {
    key: "ratio",
    title: "Worst error ratio",
    value: worstRatio,
    cell: ratioBar,
    hint: "largest error over (sensitivity + one unit in the last place); the marks are the limits of its class",
  },
  {
    key: "error",
    title: "Max abs error",
    kind: "number",
    value: each => each.max_abs_error,
    cell: each => short(each.max_abs_error),
  },
  {
    key: "call",
    title: "One call",
    kind: "number",
    value: oneCall,
    cell: each => milliseconds(oneCall(each)),
    hint: "on the target",
  },
  {
    key: "slow",
    title: "÷ reference",
    kind: "number",
    value: slowness,
    cell: each => times(slowness(each)),
    hint: "time on the target over time on the reference",
  },
  {
    key: "share",
    title: "Share",
    value: each => each.share,
    cell: each => shareBar(each.share),
    hint: "of the model's time in kernels on the target",
  },
];

const MOST_ROWS = 60; // What follows the table is to be reached by scrolling.
const ONLY = {
  "every number": () => true,
  "error above half its limit": each => worstRatio(each) > each.limits.degraded / 2,
  "slower than the reference": each => slowness(each) > 1,
  "1 % of the time or more": each => each.share >= 0.01,
};
const chosen = {
  column: "place",
  down: false,
  text: "",
  states: new Set(),
  class: "",
  only: "every number",
  all: false,
};

/** What is not finite is worse than any number. */
function worstRatio(operator) {
  const { ratio, state } = now(operator);
  return known(ratio) ? ratio : state === "failed" && operator.tests.total ? Infinity : null;
}

/** The operators that the filters leave, in the order asked for. */
function chosenOperators() {
  const words = chosen.text.toLowerCase().split(/\s+/).filter(Boolean);
  const column = COLUMNS.find(each => each.key === chosen.column);
  const rows = session.operators.filter(
    each =>
      (!chosen.states.size ||
        chosen.states.has(now(each).state) ||
        (chosen.states.has("hand") && each.written)) &&
      (!chosen.class || each.class === chosen.class) &&
      ONLY[chosen.only](each) &&
      words.every(
        word =>
          each.name.toLowerCase().includes(word) ||
          each.origins.some(at => (at.module_path || "").toLowerCase().includes(word)),
      ),
  );
  const missing = value => value === null || value === undefined;
  return rows.sort((one, two) => {
    const [a, b] = [column.value(one), column.value(two)];
    // What is not known stands last, whichever way the rest is sorted.
    if (missing(a) || missing(b)) return missing(a) - missing(b) || one.place - two.place;
    const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return (chosen.down ? -order : order) || one.place - two.place;
  });
}

function drawTable() {
  const body = el("tbody");
  const found = el("p.soft", { role: "status" });
  const more = el("button", {
    type: "button",
    onclick: () => {
      chosen.all = true;
      redraw();
    },
  });
  const heads = COLUMNS.map(column =>
    el(
      "th",
      { scope: "col", class: column.kind, title: column.hint, "data-column": column.key },
      el("button", { type: "button", onclick: () => sortBy(column) }, column.title),
    ),
  );
  const redraw = () => {
    const rows = chosenOperators();
    const cut = !chosen.all && rows.length > MOST_ROWS * 1.25;
    body.replaceChildren(...(cut ? rows.slice(0, MOST_ROWS) : rows).map(operatorRow));
    more.hidden = !cut;
    more.textContent = `Show all ${count(rows.length)}`;
    found.textContent =
      rows.length === session.operators.length
        ? plural(rows.length, "operator")
        : `${count(rows.length)} of ${plural(session.operators.length, "operator")}`;
    for (const head of heads) {
      const own = head.dataset.column === chosen.column;
      head.setAttribute("aria-sort", own ? (chosen.down ? "descending" : "ascending") : "none");
    }
    order.value = chosen.column;
  };
  const sortBy = column => {
    // Names go up at first, numbers down: the largest is what one looks for.
    const first = !["place", "name", "class", "state"].includes(column.key);
    chosen.down = chosen.column === column.key ? !chosen.down : first;
    chosen.column = column.key;
    redraw();
  };
  const order = el(
    "select",
    {
      "aria-label": "sort by",
      class: "phone",
      onchange: () => sortBy(COLUMNS.find(each => each.key === order.value)),
    },
    COLUMNS.map(column => el("option", { value: column.key }, `sort: ${column.title}`)),
  );
  const filters = filterBar(redraw);
  redraw();
  return [
    el("div.tools", filters, order, found),
    el(
      "div.scroll",
      { tabindex: "0", role: "region", "aria-label": "Operators" },
      el("table.operators", el("thead", el("tr", heads)), body),
    ),
    more,
    el(
      "p.soft",
      "Error ratio: the largest error divided by what the float64 result moves when the inputs move by one ",
      "unit in the last place, plus one such unit of the output. The marks are the limits of its class of operator.",
    ),
  ];
}

function operatorRow(operator) {
  const { state } = now(operator);
  return el(
    "tr",
    {
      class: state,
      "data-operator": operator.name,
      onclick: event => {
        if (!event.target.closest("a")) location.hash = `operator-${encodeURIComponent(operator.name)}`;
      },
    },
    COLUMNS.map(column =>
      el(
        "td",
        { class: `${column.kind || ""} of-${column.key}`, "data-label": column.title },
        column.cell(operator),
      ),
    ),
  );
}

function filterBar(redraw) {
  const search = el("input", {
    type: "search",
    id: "find-operator",
    placeholder: "Operator or module",
    "aria-label": "find an operator by its name or module",
    value: chosen.text,
    oninput: () => {
      chosen.text = search.value;
      redraw();
    },
  });
  const counts = new Map();
  for (const each of session.operators) {
    for (const state of [now(each).state, each.written ? "hand" : null])
      if (state) counts.set(state, (counts.get(state) || 0) + 1);
  }
  // What was chosen can be taken back, though no operator is left in that state.
  for (const state of chosen.states) if (!counts.has(state)) counts.set(state, 0);
  const states =
    counts.size < 2
      ? []
      : [...counts].map(([state, number]) => {
          const button = el(
            "button",
            { type: "button", class: `toggle ${state}`, "aria-pressed": String(chosen.states.has(state)) },
            state === "hand" ? "✎ by hand" : `${STATES[state].glyph} ${STATES[state].word}`,
            ` ${number}`,
          );
          button.addEventListener("click", () => {
            const on = !chosen.states.delete(state);
            if (on) chosen.states.add(state);
            button.setAttribute("aria-pressed", String(on));
            redraw();
          });
          return button;
        });
  const classes = [...new Set(session.operators.map(each => each.class).filter(Boolean))].sort();
  const choice = (label, key, options) =>
    el(
      "select",
      {
        "aria-label": label,
        onchange: event => {
          chosen[key] = event.target.value;
          redraw();
        },
      },
      options.map(([value, words]) => el("option", { value, selected: value === chosen[key] }, words)),
    );
  const kinds = [["", "every class"], ...classes.map(each => [each, each])];
  return [
    search,
    states,
    classes.length > 1 ? choice("class of operator", "class", kinds) : null,
    choice(
      "numbers",
      "only",
      Object.keys(ONLY).map(words => [words, words]),
    ),
    entryChoice(),
  ];
}

/** Which entry's time is looked at; nothing where there is but one. */
function entryChoice() {
  if (session.entries.length < 2) return null;
  const choice = el(
    "select",
    {
      "aria-label": "time of",
      onchange: () => {
        session.entry = choice.value;
        measureShares();
        redrawOverview();
      },
    },
    session.entries.map(each =>
      el("option", { value: each, selected: each === session.entry }, `time of ${each}`),
    ),
  );
  return choice;
}
