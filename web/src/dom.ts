/** Elements of the pages by id. */

import type { Facts } from "./messages";

export function element(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (found === null) {
    throw new Error(`the page has no element ${id}`);
  }
  return found;
}

export const input = (id: string): HTMLInputElement => element(id) as HTMLInputElement;

/** Set an element's text if it differs, so that selections survive updates. */
export const show = (id: string, text: string): void => {
  const target = element(id);
  if (target.textContent !== text) {
    target.textContent = text;
  }
};

/** Fill a definition list. */
export function showFacts(id: string, facts: Facts): void {
  const rows = facts.map((fact) => {
    const row = document.createElement("div");
    for (const [index, text] of fact.entries()) {
      row.append(Object.assign(document.createElement(index === 0 ? "dt" : "dd"), { textContent: text }));
    }
    return row;
  });
  element(id).replaceChildren(...rows);
}
