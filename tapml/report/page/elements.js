"use strict";
// Elements from data. Text becomes text nodes and nothing else: no name in a report is markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element: its tag with classes, `p.soft`, then attributes by name, if any, then children.
 * Handlers are `onclick: function`, `style` is an object; what is null, undefined or false is left out.
 */
function el(name, ...parts) {
  return fill(document.createElement(name.split(".")[0]), name, parts);
}

/** The same for SVG. */
function svg(name, ...parts) {
  return fill(document.createElementNS(SVG, name.split(".")[0]), name, parts);
}

const isGiven = value => value !== null && value !== undefined && value !== false;

function fill(element, name, parts) {
  const attributes = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [key, value] of Object.entries(attributes).filter(([, value]) => isGiven(value))) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") {
      for (const [property, setting] of Object.entries(value)) element.style.setProperty(property, setting);
    } else element.setAttribute(key, value === true ? "" : value);
  }
  const [, ...classes] = name.split(".");
  if (classes.length) element.classList.add(...classes);
  element.append(...parts.flat(Infinity).filter(isGiven));
  return element;
}

/** A titled part of a page; nothing where there is nothing to show. */
function section(id, title, ...children) {
  const shown = children.flat(Infinity).filter(Boolean);
  return shown.length ? el("section", { id, class: "part" }, el("h2", title), shown) : null;
}

/** A command to copy. */
function command(text) {
  const button = el("button.copy", { type: "button", "aria-label": `copy ${text}` }, "Copy");
  const code = el("code", text);
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
  return el("div.command", code, button);
}

/** Rows of a table; a column is [title, class]. */
function table(columns, rows, caption) {
  return el(
    "div.scroll",
    { tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      el(
        "thead",
        el(
          "tr",
          columns.map(([title, kind]) => el("th", { scope: "col", class: kind }, title)),
        ),
      ),
      el(
        "tbody",
        rows.map(cells =>
          el(
            "tr",
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
    "dl.facts",
    rows
      .filter(row => row && row[1] !== null && row[1] !== undefined && row[1] !== "")
      .map(([name, ...value]) => el(isLong(value) ? "div.wide" : "div", el("dt", name), el("dd", value))),
  );
}

/** Whether a value is a sentence or two, for which a column is too narrow. */
function isLong(value) {
  return value.some(each => typeof each === "string" && each.length > 100);
}
