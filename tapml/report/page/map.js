"use strict";
// The migration map: every call site, where it stands, what it reads, and whether it has moved.

const NODE = { width: 100, height: 30, line: 14, head: 4 };
const map = { entry: 0, text: "", at: -1, view: null, nodes: [], sites: [], show: null };

function drawMap() {
  const entries = session.report.maps || [];
  if (!entries.length) return null;
  map.entry = Math.min(map.entry, entries.length - 1);
  const frame = el("div", { class: "map" });
  const status = el("p", { class: "soft found", role: "status" });
  const search = el("input", {
    type: "search",
    id: "find-site",
    placeholder: "Find on the map",
    "aria-label": "find a call site, operator or module on the map",
    value: map.text,
  });
  const tabs = entries.map((entry, place) =>
    el(
      "button",
      { type: "button", class: "toggle", "aria-pressed": "false", onclick: () => open(place) },
      entry.entry,
      el("small", {}, ` ${count(entry.nodes.length)}`),
    ),
  );
  const open = place => {
    map.entry = place;
    map.at = -1;
    tabs.forEach((tab, index) => tab.setAttribute("aria-pressed", String(index === place)));
    frame.replaceChildren(mapCanvas(entries[place]), mapButtons(frame));
    light(search.value, status);
    // The frame has a size once it stands in the page.
    requestAnimationFrame(() => {
      if (frame.isConnected) map.view.fitWidth();
    });
  };
  search.addEventListener("input", () => {
    map.at = -1;
    light(search.value, status);
    step(1, status);
  });
  search.addEventListener("keydown", event => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1, status);
  });
  map.show = name => {
    const place = entries.findIndex(entry => entry.operators.includes(name));
    if (place < 0) return;
    open(place);
    search.value = name;
    light(name, status);
    requestAnimationFrame(() => step(1, status));
  };
  open(map.entry);
  const arrow = (text, label, way) =>
    el("button", { type: "button", "aria-label": label, onclick: () => step(way, status) }, text);
  return [
    el(
      "div",
      { class: "tools" },
      entries.length > 1 ? el("span", { class: "tabs" }, tabs) : null,
      search,
      arrow("‹", "the match before", -1),
      arrow("›", "the next match", 1),
      status,
    ),
    frame,
    el(
      "p",
      { class: "legend" },
      Object.keys(STATES)
        .filter(state => session.operators.some(each => now(each).state === state))
        .map(state => el("span", {}, el("i", { class: state }, STATES[state].glyph), STATES[state].means)),
      session.operators.some(each => each.written)
        ? el("span", {}, el("i", { class: "hand" }, "✎"), "kernel written by hand")
        : null,
    ),
    el(
      "p",
      { class: "soft" },
      "Each box is a call site; select one to open its operator. Drag to move, Ctrl and wheel (or the wheel alone once the map is selected) or two fingers to zoom, ",
      "arrow keys, + and − work, too.",
    ),
  ];
}

function mapCanvas(entry) {
  const edges = svg("path", { class: "edges", d: entry.edges.map(pair => edge(entry, pair)).join("") });
  const lit = svg("path", { class: "edges lit" });
  map.sites = entry.nodes;
  map.nodes = entry.nodes.map(([site, place, left, top]) =>
    node(session.byName.get(entry.operators[place]), entry.operators[place], site, left, top),
  );
  const drawing = svg(
    "g",
    {},
    entry.bands.map(([title, x, y, height]) => [
      svg("rect", { class: "band", x, y, width: entry.strip, height: height + NODE.head, rx: 6 }),
      svg("text", { class: "band", x: x + 8, y: y + 20 }, title),
    ]),
    edges,
    lit,
    map.nodes,
  );
  const canvas = svg(
    "svg",
    {
      class: "canvas",
      tabindex: "0",
      role: "application",
      "aria-label": `Migration map of ${entry.entry}, ${plural(entry.nodes.length, "call site")}. Arrow keys move, plus and minus zoom, zero shows all of it.`,
    },
    drawing,
  );
  map.view = new MapView(canvas, drawing, entry);
  const place = event => {
    const found = event.target.closest(".node");
    return found ? map.nodes.indexOf(found) : -1;
  };
  canvas.addEventListener("click", event => {
    const index = place(event);
    if (index >= 0 && !map.view.dragged)
      location.hash = `operator-${encodeURIComponent(map.nodes[index].dataset.operator)}`;
  });
  canvas.addEventListener("pointerover", event => {
    const index = place(event);
    lit.setAttribute(
      "d",
      index < 0
        ? ""
        : entry.edges
            .filter(pair => pair.includes(index))
            .map(pair => edge(entry, pair))
            .join(""),
    );
  });
  return canvas;
}

function node(operator, name, site, left, top) {
  const [one, two] = twoLines(name);
  const drawn = svg(
    "g",
    { "data-operator": name, "data-site": site, transform: `translate(${left} ${top + NODE.head})` },
    svg("title"),
    svg("rect", { width: NODE.width, height: NODE.height, rx: 5 }),
    svg("text", { class: "glyph", x: 4, y: 13 }),
    operator && operator.written ? svg("text", { class: "glyph pen", x: 4, y: 26 }, "✎") : null,
    two
      ? [svg("text", { x: 57, y: 13 }, one), svg("text", { x: 57, y: 24 }, two)]
      : svg("text", { x: 57, y: 19 }, one),
  );
  paintNode(drawn, operator);
  return drawn;
}

/** What changes of a node while a session runs. */
function paintNode(drawn, operator) {
  const state = operator ? now(operator).state : "waiting";
  const hand = Boolean(operator && operator.written);
  const marks = ["lit", "current"].filter(mark => drawn.classList.contains(mark));
  drawn.setAttribute("class", ["node", state, hand ? "hand" : "", ...marks].join(" "));
  const { operator: name, site } = drawn.dataset;
  drawn.querySelector("title").textContent =
    `${name}\n${site}\n${STATES[state].means}${hand ? ", kernel written by hand" : ""}`;
  drawn.querySelector(".glyph").textContent = STATES[state].glyph;
}

/** A name in up to two lines, broken where its words end; what is too long is cut in its middle. */
function twoLines(name) {
  if (name.length <= NODE.line) return [name, ""];
  const cut = name.lastIndexOf("_", NODE.line - 1) + 1;
  const end = cut > 4 ? cut : NODE.line;
  const rest = name.slice(end);
  return [
    name.slice(0, end),
    rest.length <= NODE.line ? rest : `${rest.slice(0, NODE.line - 5)}…${rest.slice(-4)}`,
  ];
}

function edge(entry, [source, target]) {
  const [, , fromLeft, fromTop] = entry.nodes[source];
  const [, , left, top] = entry.nodes[target];
  const half = NODE.height / 2 + NODE.head;
  // Across a gap between rows or bands from edge to edge, along a row from side to side.
  if (left > fromLeft && Math.abs(top - fromTop) < 200) {
    const [x0, y0, x1, y1] = [fromLeft + NODE.width, fromTop + half, left, top + half];
    const bend = Math.max(6, (x1 - x0) / 2);
    return `M${x0} ${y0}C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`;
  }
  const [x0, y0, x1, y1] = [
    fromLeft + NODE.width / 2,
    fromTop + NODE.height + NODE.head,
    left + NODE.width / 2,
    top + NODE.head,
  ];
  const bend = Math.max(12, Math.abs(y1 - y0) / 2);
  return `M${x0} ${y0}C${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}`;
}

function mapButtons(frame) {
  const whole = el(
    "button",
    { type: "button", "aria-pressed": "false", onclick: () => full(!frame.classList.contains("full")) },
    "Full page",
  );
  const full = on => {
    frame.classList.toggle("full", on);
    whole.setAttribute("aria-pressed", String(on));
    document.body.classList.toggle("held", on);
    map.view.fitWidth();
  };
  frame.onkeydown = event => {
    if (event.key === "Escape" && frame.classList.contains("full")) {
      full(false);
      event.stopPropagation();
    }
  };
  const button = (text, label, act) =>
    el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  return el(
    "div",
    { class: "buttons" },
    button("+", "zoom in", () => map.view.zoom(ZOOM.step)),
    button("−", "zoom out", () => map.view.zoom(1 / ZOOM.step)),
    button("All", "show all of the map", () => map.view.fit()),
    button("Width", "fit the width of a layer", () => map.view.fitWidth()),
    whole,
  );
}

/** Mark the sites that a text is found in, and dim the others. */
function light(text, status) {
  map.text = text;
  map.view.focus = null;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  map.nodes.forEach((each, index) => {
    const hay = `${map.sites[index][0]} ${each.dataset.operator}`.toLowerCase();
    const hit = words.length > 0 && words.every(word => hay.includes(word));
    each.classList.toggle("lit", hit);
    each.classList.remove("current");
    found += hit;
  });
  map.view.canvas.classList.toggle("searching", words.length > 0);
  status.textContent = words.length ? plural(found, "call site") : "";
}

/** Go to the next site that is lit. */
function step(way, status) {
  const hits = map.nodes
    .map((each, index) => index)
    .filter(index => map.nodes[index].classList.contains("lit"));
  if (!hits.length) return;
  for (const each of map.nodes) each.classList.remove("current");
  map.at = map.at < 0 && way > 0 ? 0 : (map.at + way + hits.length) % hits.length;
  const index = hits[map.at];
  const [site, , left, top] = map.sites[index];
  map.nodes[index].classList.add("current");
  map.view.center(left + NODE.width / 2, top + NODE.height / 2);
  status.replaceChildren(
    `${map.at + 1} of ${hits.length}: `,
    linkTo({ name: map.nodes[index].dataset.operator }, site),
  );
}
