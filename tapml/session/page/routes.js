"use strict";
// Which page is shown: the part of the address behind the # says it, so that every page has a link.

const OPERATOR = "operator-";
const left = new Map(); // How far down each page was when it was left.
let shown = "";

function route() {
  const wanted = operatorInAddress();
  if (shown !== "" && shown !== wanted) left.set(shown, scrollY);
  if (wanted !== null) {
    overview.hidden = true;
    page.hidden = false;
    drawOperator(wanted);
    document.title = `${wanted} · tapml: ${title()}`;
    if (shown !== wanted) {
      jump(0);
      page.focus({ preventScroll: true });
    }
  } else {
    const back = page.hidden === false;
    page.hidden = true;
    overview.hidden = false;
    // A map drawn while another page was open has had no size until now.
    if (map.view && !map.view.placed) map.view.fitWidth();
    document.title = `tapml: ${title()}`;
    const part = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (part) part.scrollIntoView();
    else if (back) jump(left.get(null) || 0);
  }
  shown = wanted;
}

/** The operator that the address names; null for the first page. */
function operatorInAddress() {
  const text = location.hash.slice(1);
  if (!text.startsWith(OPERATOR)) return null;
  try {
    return decodeURIComponent(text.slice(OPERATOR.length));
  } catch {
    return text.slice(OPERATOR.length);
  }
}

function showOnMap(name) {
  location.hash = "map";
  route();
  map.show(name);
}

function go(place) {
  const operator = session.operators[place];
  if (operator) location.hash = OPERATOR + encodeURIComponent(operator.name);
}

addEventListener("hashchange", route);
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea"))
    return;
  const operator = session.byName.get(operatorInAddress());
  if (event.key === "/" && !operator) {
    event.preventDefault();
    document.getElementById("find-operator").focus();
  }
  if (!operator) return;
  if (event.key === "j") go(operator.place + 1);
  if (event.key === "k") go(operator.place - 1);
  if (event.key === "Escape") location.hash = "";
});

if ("scrollRestoration" in history) history.scrollRestoration = "manual";
takeReport(JSON.parse(document.getElementById("data").textContent));
drawOverview();
route();
// Sources stand behind the scripts: an operator's page drawn before they came is drawn again.
addEventListener("DOMContentLoaded", () => {
  if (operatorInAddress() !== null) drawOperator(operatorInAddress());
});
