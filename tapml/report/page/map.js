"use strict";
// A graph as it was laid out: nodes in bands and the edges between them, searched and zoomed.

const NODE = { width: 100, height: 30, line: 14, head: 4 };
const MOST_LINES = 14; // Lines of a node's tooltip.
const NO_STATUS = { glyph: "", means: "", look: "" };
/** What the usual statuses look like: `calm`, `strong`, `dashed` and `dotted` are looks of map.css. */
const STATUSES = {
  pass: { glyph: "✓", means: "passes", look: "calm" },
  degraded: { glyph: "!", means: "degraded", look: "dashed" },
  fail: { glyph: "✕", means: "fails", look: "strong" },
  absent: { glyph: "○", means: "not run", look: "dotted" },
  starts: { glyph: "✕", means: "a deviation starts here", look: "strong" },
  carries: { glyph: "~", means: "carries a deviation on", look: "dashed" },
};

/**
 * Maps of which one is shown at a time.
 *
 * `describe(node)` is what a node looks like now: its status with glyph, meaning and look, classes
 * and glyphs of its own, and what it says of itself. `select(node)` follows a click on it, and
 * `link(node)` makes the link to it that stands beside the search.
 */
class GraphMap {
  constructor(options = {}) {
    Object.assign(this, {
      noun: "node",
      id: "find-node",
      title: "Map",
      describe: describeNode,
      select: node => this.show(node.name),
      link: node => el("strong", node.label),
      ...options,
    });
    Object.assign(this, { entry: 0, text: "", at: -1, view: null, maps: [], nodes: [], drawn: [] });
  }

  /** The elements of the map: its tools and its frame. They are drawn again in the same state. */
  draw(maps) {
    this.maps = maps;
    if (!maps.length) return null;
    this.entry = Math.min(this.entry, maps.length - 1);
    this.frame = el("div.map");
    this.status = el("p.soft.found", { role: "status" });
    this.search = el("input", {
      type: "search",
      id: this.id,
      placeholder: "Find on the map",
      "aria-label": `find a ${this.noun} on the map`,
      value: this.text,
      oninput: () => this.find(this.search.value),
      onkeydown: event => {
        if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      },
    });
    this.tabs = maps.map((each, place) =>
      el(
        "button",
        { type: "button", class: "toggle", onclick: () => this.open(place) },
        each.name,
        el("small", ` ${count(each.nodes.length)}`),
      ),
    );
    this.open(this.entry);
    const arrow = (text, label, way) =>
      el("button", { type: "button", "aria-label": label, onclick: () => this.step(way) }, text);
    return [
      el(
        "div.tools",
        maps.length > 1 ? el("span.tabs", this.tabs) : null,
        this.search,
        arrow("‹", "the match before", -1),
        arrow("›", "the next match", 1),
        this.status,
      ),
      this.frame,
    ];
  }

  /** Show one of the maps. */
  open(place) {
    this.entry = place;
    this.at = -1;
    this.tabs.forEach((tab, index) => tab.setAttribute("aria-pressed", String(index === place)));
    this.frame.replaceChildren(this.canvas(this.maps[place]), this.buttons());
    this.light(this.search.value);
    // The frame has a size once it stands in the page.
    requestAnimationFrame(() => {
      if (this.frame.isConnected) this.view.fitWidth();
    });
  }

  /** Mark what a text is found in, and go to the first. */
  find(text) {
    this.at = -1;
    this.light(text);
    this.step(1);
  }

  /** Go to a node, by its name or its label; on the map that is open if it is there. */
  show(name) {
    const has = each => each.nodes.some(node => readNode(each, node).names.includes(name));
    const place = has(this.maps[this.entry]) ? this.entry : this.maps.findIndex(has);
    if (place < 0) return;
    if (place !== this.entry) this.open(place);
    this.at = -1;
    this.search.value = name;
    this.light(name, names => names.includes(name));
    requestAnimationFrame(() => this.step(1));
  }

  /** Paint the nodes again that a test holds for: what changes of them while something runs. */
  repaint(changed) {
    this.nodes.forEach((node, index) => {
      if (changed(node)) this.paint(this.drawn[index], node);
    });
  }

  canvas(entry) {
    const edges = svg("path.edges", { d: entry.edges.map(pair => edge(entry, pair)).join("") });
    const lit = svg("path.edges.lit");
    this.nodes = entry.nodes.map(node => readNode(entry, node));
    this.largest = Math.max(...this.nodes.map(each => each.size), 0);
    this.drawn = this.nodes.map(each => this.box(each));
    const drawing = svg(
      "g",
      entry.bands.map(([title, x, y, height]) => [
        svg("rect.band", { x, y, width: entry.strip, height: height + NODE.head, rx: 6 }),
        svg("text.band", { x: x + 8, y: y + 20 }, title),
      ]),
      edges,
      lit,
      this.drawn,
    );
    const canvas = svg(
      "svg.canvas",
      {
        tabindex: "0",
        role: "application",
        "aria-label": `${this.title} of ${entry.name}, ${plural(entry.nodes.length, this.noun)}. Arrow keys move, plus and minus zoom, zero shows all of it.`,
      },
      drawing,
    );
    this.view = new MapView(canvas, drawing, entry);
    const place = event => {
      const found = event.target.closest(".node");
      return found ? this.drawn.indexOf(found) : -1;
    };
    canvas.addEventListener("click", event => {
      const index = place(event);
      if (index >= 0 && !this.view.dragged) this.select(this.nodes[index]);
    });
    canvas.addEventListener("pointerover", event => {
      const index = place(event);
      const own = index < 0 ? [] : entry.edges.filter(pair => pair.includes(index));
      lit.setAttribute("d", own.map(pair => edge(entry, pair)).join(""));
    });
    return canvas;
  }

  box(node) {
    const [one, two] = twoLines(node.label);
    const share = this.largest ? node.size / this.largest : 0;
    const drawn = svg(
      "g",
      {
        "data-label": node.label,
        "data-name": node.name,
        transform: `translate(${node.left} ${node.top + NODE.head})`,
      },
      svg("title"),
      node.members ? svg("path.stack", { d: `M4 ${NODE.height + 3}h${NODE.width - 8}` }) : null,
      svg("rect", { width: NODE.width, height: NODE.height, rx: 5 }),
      svg("text.glyph", { x: 4, y: 13 }),
      this.describe(node).marks.map(mark => svg("text.glyph.pen", { x: 4, y: 26 }, mark)),
      two
        ? [svg("text", { x: 57, y: 13 }, one), svg("text", { x: 57, y: 24 }, two)]
        : svg("text", { x: 57, y: 19 }, one),
      share ? svg("path.size", { d: `M3 ${NODE.height - 1}h${(NODE.width - 6) * share}` }) : null,
    );
    this.paint(drawn, node);
    return drawn;
  }

  paint(drawn, node) {
    const { status, glyph, look, classes, lines } = this.describe(node);
    const marks = ["lit", "current"].filter(mark => drawn.classList.contains(mark));
    drawn.setAttribute("class", ["node", status, look, ...classes, ...marks].filter(Boolean).join(" "));
    if (known(node.heat)) {
      drawn.classList.add("hot");
      drawn.style.setProperty("--heat", `${(8 + 72 * node.heat).toFixed(1)}%`);
    }
    const more = lines.length > MOST_LINES ? [`and ${lines.length - MOST_LINES} more`] : [];
    const words = [node.label, node.name, ...lines.slice(0, MOST_LINES), ...more];
    drawn.querySelector("title").textContent = words.join("\n");
    drawn.querySelector(".glyph").textContent = glyph;
  }

  buttons() {
    const { frame } = this;
    const whole = el(
      "button",
      { type: "button", "aria-pressed": "false", onclick: () => full(!frame.classList.contains("full")) },
      "Full page",
    );
    const full = on => {
      frame.classList.toggle("full", on);
      whole.setAttribute("aria-pressed", String(on));
      document.body.classList.toggle("held", on);
      this.view.fitWidth();
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
      "div.buttons",
      button("+", "zoom in", () => this.view.zoom(ZOOM.step)),
      button("−", "zoom out", () => this.view.zoom(1 / ZOOM.step)),
      button("All", "show all of the map", () => this.view.fit()),
      button("Width", "fit the width of a band", () => this.view.fitWidth()),
      whole,
    );
  }

  /** Mark the nodes that a text is found in, and dim the others. */
  light(text, found = null) {
    this.text = text;
    this.view.focus = null;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const has = names =>
      words.length > 0 && words.every(word => names.join(" ").toLowerCase().includes(word));
    let hits = 0;
    this.nodes.forEach(({ names }, index) => {
      const hit = (found || has)(names);
      this.drawn[index].classList.toggle("lit", hit);
      this.drawn[index].classList.remove("current");
      hits += hit;
    });
    this.view.canvas.classList.toggle("searching", words.length > 0);
    this.status.textContent = words.length ? plural(hits, this.noun) : "";
  }

  /** Go to the next node that is lit. */
  step(way) {
    const hits = this.nodes.filter((each, index) => this.drawn[index].classList.contains("lit"));
    if (!hits.length) return;
    for (const each of this.drawn) each.classList.remove("current");
    this.at = this.at < 0 && way > 0 ? 0 : (this.at + way + hits.length) % hits.length;
    const node = hits[this.at];
    this.drawn[this.nodes.indexOf(node)].classList.add("current");
    this.view.center(node.left + NODE.width / 2, node.top + NODE.height / 2);
    // Of a run only what the search is about.
    const about = ([name]) => !node.members || name.toLowerCase().includes(this.text.toLowerCase());
    const facts = node.facts.filter(about).map(([name, value]) => ` · ${name} ${value}`);
    this.status.replaceChildren(`${this.at + 1} of ${hits.length}: `, this.link(node), ...facts);
  }
}

/** A node of the data, by its fields. */
function readNode(entry, [name, place, left, top, more = {}]) {
  const label = entry.labels[place];
  const names = [name, label, ...(more.members || [])];
  return { status: "", size: 0, facts: [], ...more, name, label, left, top, names };
}

/** What a node of a map of data looks like. */
function describeNode(node) {
  const { glyph, means, look } = STATUSES[node.status] || NO_STATUS;
  const facts = node.facts.map(([name, value]) => (value ? `${name}: ${value}` : name));
  return {
    status: node.status,
    glyph,
    look,
    classes: [],
    marks: [],
    lines: [means, ...facts].filter(Boolean),
  };
}

/** What the glyphs of a map mean: [status, glyph, look, meaning]. */
function legend(rows) {
  return rows.length
    ? el(
        "p.legend",
        rows.map(([status, glyph, look, means]) =>
          el("span", el("i", { class: `${status} ${look}`.trim() }, glyph), means),
        ),
      )
    : null;
}

function howToMove(boxes) {
  return el(
    "p.soft",
    `${boxes} Drag to move, Ctrl and wheel (or the wheel alone once the map is selected) or two fingers to zoom, `,
    "arrow keys, + and − work, too.",
  );
}

/** A label in up to two lines, broken where its words end; what is too long is cut in its middle. */
function twoLines(label) {
  if (label.length <= NODE.line) return [label, ""];
  const cut = Math.max(label.lastIndexOf("_", NODE.line - 1), label.lastIndexOf(" ", NODE.line)) + 1;
  // A first word that is longer than a line is cut itself.
  const end = cut > 4 ? cut : label.indexOf(" ") + 1 || NODE.line;
  return [oneLine(label.slice(0, end).trimEnd()), oneLine(label.slice(end))];
}

function oneLine(words) {
  return words.length <= NODE.line ? words : `${words.slice(0, NODE.line - 5)}…${words.slice(-4)}`;
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
