"use strict";
// A running session: asked for over HTTP where the server that sent this page says that there is one.

const POLL = { running: 1000, ended: 5000, lost: 3000 };
const banner = document.getElementById("live");
let version = null;
let reportVersion = null;

async function poll() {
  let wait = POLL.lost;
  try {
    const live = await (await fetch("live.json", { cache: "no-store" })).json();
    wait = live.running ? POLL.running : POLL.ended;
    const was = session.live;
    const newReport = live.report_version !== reportVersion && Boolean(live.report_version);
    if (newReport) await fetchReport();
    if (newReport || live.version !== version || Boolean(was) !== live.running) {
      [version, reportVersion] = [live.version, live.report_version];
      session.live = live.running ? live : null;
      const first = !session.operators.length && Object.keys(live.operators || {}).length > 0;
      // Before there is a report the operators' names are all that is known.
      if (first)
        takeReport({
          ...session.report,
          operators: Object.keys(live.operators).map(name => ({ name, state: "waiting" })),
        });
      // A page of thousands of boxes is drawn once; then only what changed on it.
      if (first || newReport || Boolean(was) !== live.running) redraw();
      else repaint(was.operators || {}, live.operators || {});
    }
    drawBanner(live);
  } catch {
    drawBanner(null);
  }
  setTimeout(poll, wait);
}

async function fetchReport() {
  const answer = await fetch("report.json", { cache: "no-store" });
  if (answer.ok) takeReport(await answer.json());
}

/** Draw what is looked at again, and leave the reader where he is. */
function redraw() {
  const open = operatorInAddress();
  const top = scrollY;
  const place = map.view && map.view.placed && [map.view.scale, map.view.left, map.view.top];
  drawOverview();
  if (place)
    requestAnimationFrame(() => {
      [map.view.scale, map.view.left, map.view.top] = place;
      map.view.apply();
    });
  if (open !== null) drawOperator(open);
  jump(top);
}

/** Draw the operators again whose state is another. */
function repaint(before, after) {
  const differs = (one, two) =>
    !one ||
    !two ||
    one.state !== two.state ||
    one.worst_ratio !== two.worst_ratio ||
    one.reason !== two.reason;
  const changed = new Set(
    session.operators.filter(each => differs(before[each.name], after[each.name])).map(each => each.name),
  );
  if (!changed.size) return;
  document.getElementById("outcome").replaceWith(outcomeBanner());
  for (const row of document.querySelectorAll(".operators tr[data-operator]")) {
    if (changed.has(row.dataset.operator))
      row.replaceWith(operatorRow(session.byName.get(row.dataset.operator)));
  }
  map.repaint(site => changed.has(site.label));
  const open = operatorInAddress();
  if (changed.has(open)) {
    const top = scrollY;
    drawOperator(open);
    jump(top);
  }
}

function drawBanner(live) {
  banner.hidden = false;
  banner.className = live ? (live.running ? "running" : "ended") : "lost";
  if (!live) {
    banner.replaceChildren("The server does not answer; what is shown is what it last said.");
    return;
  }
  if (!live.running) {
    banner.replaceChildren("The session is not running.");
    return;
  }
  const part = live.total ? live.done / live.total : null;
  banner.replaceChildren(
    el("strong", live.phase || "starting"),
    el("span.detail", live.detail || ""),
    part === null
      ? ""
      : el(
          "span.bar.plain",
          {
            role: "progressbar",
            "aria-valuemin": "0",
            "aria-valuemax": String(live.total),
            "aria-valuenow": String(live.done),
          },
          el("b", { style: { width: `${(part * 100).toFixed(1)}%` } }),
        ),
    el(
      "span.value",
      part === null ? "" : `${count(live.done)} of ${count(live.total)}`,
      known(live.seconds_left) ? ` · about ${seconds(Math.max(1, Math.round(live.seconds_left)))} left` : "",
    ),
  );
}

if (location.protocol.startsWith("http") && document.documentElement.dataset.live !== undefined) poll();
