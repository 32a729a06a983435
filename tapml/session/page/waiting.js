"use strict";
// The page before the first report: it follows the run and becomes the report by itself.

const at = (id) => document.getElementById(id);
const waiting = at("detail").textContent;
function show(live) {
  if (live.report_version) { location.reload(); return; }
  at("phase").textContent = live.running ? live.phase || "Between two steps" : "Waiting for a report";
  at("detail").textContent = live.running ? [live.device, live.detail].filter(Boolean).join(" · ") : waiting;
  at("bar").hidden = !live.running;
  if (live.total) { at("bar").max = live.total; at("bar").value = live.done; }
  else at("bar").removeAttribute("value");
  at("left").textContent = live.running && live.total ? live.done + " of " + live.total : "";
}
async function poll() {
  try { show(await (await fetch("live.json", { cache: "no-store" })).json()); }
  catch (error) { at("left").textContent = "The server does not answer: " + error.message; }
  setTimeout(poll, 1000);
}
poll();
