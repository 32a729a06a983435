"use strict";
// A page of titled sections, drawn from data alone.

/** A cell of a table: text, a number, a line of code, or a status and its text. */
function cell(value) {
  if (value === null || typeof value !== "object") return typeof value === "number" ? short(value) : value;
  if ("code" in value) return el("code", value.code);
  return el("span", { class: `chip ${value.status}` }, value.text);
}

function drawTableOf([columns, rows], title) {
  const numeric = place => rows.some(row => typeof row[place] === "number");
  return table(
    columns.map((column, place) => [column, numeric(place) ? "number" : ""]),
    rows.map(row => row.map(cell)),
    title,
  );
}

function drawMapsOf(maps, title, place) {
  if (!maps.length) return null;
  const map = new GraphMap({ title, id: `find-node-${place}` });
  graphMaps.push(map);
  const drawn = map.draw(maps);
  const used = new Set(maps.flatMap(each => each.nodes.map(node => readNode(each, node).status)));
  const rows = Object.entries(STATUSES).filter(([status]) => used.has(status));
  return [
    drawn,
    legend(rows.map(([status, { glyph, look, means }]) => [status, glyph, look, means])),
    howToMove("Select a box for what is known of it."),
  ];
}

const graphMaps = [];
document.getElementById("page").append(
  ...JSON.parse(document.getElementById("data").textContent)
    .sections.map(({ id, title, text, facts: rows, table: cells, maps, source, language }, place) =>
      section(
        id,
        title,
        (text || []).map(line => el("p", line)),
        rows ? facts(rows) : null,
        cells ? drawTableOf(cells, title) : null,
        drawMapsOf(maps, title, place),
        source ? sourceFigure(title, source, language ?? "c") : null,
      ),
    )
    .filter(Boolean),
);
