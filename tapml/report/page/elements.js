"use strict";
// Elements from data. Text becomes text nodes and nothing else: no name in a report is markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: attributes by name, handlers as `onclick: function`, `style` as an object. */
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same of SVG. */
function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [property, setting] of Object.entries(value)) element.style.setProperty(property, setting);
    } else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** A titled part of a page; nothing where there is nothing to show. */
function section(id, title, ...children) {
  const shown = children.flat(Infinity).filter(Boolean);
  return shown.length ? el("section", { id, class: "part" }, el("h2", {}, title), shown) : null;
}

/** A command to copy. */
function command(text) {
  const button = el("button", { type: "button", class: "copy", "aria-label": `copy ${text}` }, "Copy");
  const code = el("code", {}, text);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      setTimeout(() => {
        button.textContent = "Copy";
      }, 1500);
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
  return el("div", { class: "command" }, code, button);
}

/** Rows of a table; a column is [title, class]. */
function table(columns, rows, caption) {
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          columns.map(([title, kind]) => el("th", { scope: "col", class: kind }, title)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map(cells =>
          el(
            "tr",
            {},
            cells.map((cell, place) => el("td", { class: columns[place][1] }, cell)),
          ),
        ),
      ),
    ),
  );
}

/** Go to a height of the page at once: another page is no distance to travel. */
function jump(top) {
  scrollTo({ top, behavior: "instant" });
}

/** Names with values, as cards beside each other; a row without a value is left out. */
function facts(rows) {
  return el(
    "dl",
    { class: "facts" },
    rows
      .filter(row => row && row[1] !== null && row[1] !== undefined && row[1] !== "")
      .map(([name, ...value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}
