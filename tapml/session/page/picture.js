"use strict";
// The errors of an operator's worst test: how large they are, and where they lie.

/** How grave a ratio is, from its limits: what colours mean on both pictures. */
function gravity(ratio, limits) {
  if (!known(limits.degraded)) return ratio > 0 ? "over" : "exact";
  if (ratio > limits.degraded) return ratio > limits.fail ? "beyond" : "over";
  return "within";
}

function drawPicture(operator) {
  const { picture } = operator;
  if (!picture || !picture.histogram) return null;
  return [
    el(
      "p.soft",
      "Output ",
      el("code", picture.output),
      ` (${picture.dtype}[${picture.shape.join(", ")}]) of test `,
      el("code", picture.test),
    ),
    el("div.pictures", histogram(picture), errorMap(picture, operator)),
  ];
}

function histogram(picture) {
  const { zero, decades, not_finite: wild, over } = picture.histogram;
  const found = decades.map(([decade]) => decade);
  const first = Math.min(-3, ...found);
  const last = Math.max(2, ...found);
  const byDecade = new Map(decades.map(([decade, number, beyond]) => [decade, [number, beyond]]));
  const discrete = !known(picture.limits.degraded);
  const columns = [
    { name: discrete ? "right" : "0", number: zero, kind: "exact", words: discrete ? "right" : "no error" },
  ];
  for (let decade = first; !discrete && decade <= last; decade += 1) {
    const [number, beyond] = byDecade.get(decade) || [0, 0];
    columns.push({
      name: power(decade),
      number,
      beyond,
      kind: "within",
      words: `ratio from 1e${decade} to 1e${decade + 1}`,
    });
  }
  columns.push({
    name: discrete ? "wrong" : "∞",
    number: wild,
    kind: "beyond",
    words: discrete ? "wrong" : "not finite",
  });
  const most = Math.max(...columns.map(each => each.number), 1);
  // Few wrong among millions must show: heights are logarithmic.
  const height = number => (number ? 8 + (92 * Math.log10(1 + number)) / Math.log10(1 + most) : 0);
  const [step, left] = [34, 6];
  const width = left * 2 + columns.length * step;
  const bars = columns.map((each, place) => {
    const [x, tall] = [left + place * step + 4, height(each.number)];
    const part = each.beyond ? Math.max(3, (tall * each.beyond) / each.number) : 0;
    return svg(
      "g",
      svg(
        "title",
        `${each.words}: ${plural(each.number, "element")}${each.beyond ? `, ${count(each.beyond)} above the limit` : ""}`,
      ),
      svg("rect", { class: each.kind, x, y: 122 - tall, width: step - 8, height: tall, rx: 2 }),
      part ? svg("rect.over", { x, y: 122 - tall, width: step - 8, height: part, rx: 2 }) : null,
      each.number ? svg("text.count", { x: x + 13, y: 117 - tall }, compact(each.number)) : null,
      svg("text.axis", { x: x + 13, y: 138 }, each.name),
    );
  });
  return el(
    "figure.picture.histogram",
    el(
      "figcaption",
      discrete ? "Elements" : "Elements by error ratio",
      el("span.soft", ` ${count(over)} above the limit`),
    ),
    svg(
      "svg",
      {
        viewBox: `0 0 ${width} 146`,
        style: { "max-width": `${width * 1.5}px` },
        role: "img",
        "aria-label": columns
          .filter(each => each.number)
          .map(each => `${each.words}: ${each.number}`)
          .join("; "),
      },
      svg("line.floor", { x1: 0, x2: width, y1: 122.5, y2: 122.5 }),
      bars,
    ),
    discrete
      ? null
      : el("p.soft", "A column is a decade of error / (sensitivity + ulp); heights are logarithmic."),
  );
}

function power(decade) {
  return `10${String(decade)
    .replace("-", "⁻")
    .replace(/\d/g, digit => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])}`;
}

function compact(number) {
  return Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(number);
}

function errorMap(picture, operator) {
  const { rows, levels, first, per_decade: perDecade, axes, extent } = picture.map;
  const columns = Math.max(...rows.map(row => row.length), 1);
  const cell = Math.max(
    4,
    Math.min(24, Math.floor(560 / Math.max(columns, 1)), Math.floor(480 / Math.max(rows.length, 1))),
  );
  const ratioOf = level => first * 10 ** (level / perDecade);
  const shape = operator.parameters.filter(each => each.name === picture.output).flatMap(each => each.shape);
  const axisName = axis =>
    `axis ${axis}${shape[axis] && Number.isNaN(Number(shape[axis])) ? ` (${shape[axis]})` : ""}`;
  const cells = rows.flatMap((row, y) =>
    [...row].map((mark, x) => {
      const level = levels.indexOf(mark);
      const kind =
        mark === "." ? "exact" : mark === "!" ? "beyond" : gravity(ratioOf(level + 0.5), picture.limits);
      const words =
        mark === "."
          ? "no error"
          : mark === "!"
            ? known(picture.limits.degraded)
              ? "not finite"
              : "wrong"
            : `ratio about ${short(ratioOf(level + 0.5))}`;
      // Within the limit the strength of the colour says how near it is.
      const near =
        kind === "within"
          ? Math.min(1, Math.max(0.1, 1 + Math.log10(ratioOf(level + 0.5) / picture.limits.degraded) / 4))
          : null;
      return svg(
        "rect",
        {
          class: kind,
          x: x * cell,
          y: y * cell,
          width: cell - (cell > 5 ? 1 : 0),
          height: cell - (cell > 5 ? 1 : 0),
          "fill-opacity": near === null ? null : near.toFixed(2),
        },
        svg("title", `${place(x, y)}: ${words}`),
      );
    }),
  );
  function place(x, y) {
    const range = (index, number, total) => {
      const [low, high] = [
        Math.floor((index * total) / number),
        Math.ceil(((index + 1) * total) / number) - 1,
      ];
      return low >= high ? String(low) : `${low}–${high}`;
    };
    if (!axes.length)
      return `element ${range(
        y * columns + x,
        rows.reduce((sum, row) => sum + row.length, 0),
        extent[1],
      )}`;
    return `${axisName(axes[0])} ${range(y, rows.length, extent[0])}, ${axisName(axes[1])} ${range(x, columns, extent[1])}`;
  }
  const words = axes.length
    ? `rows: ${axisName(axes[0])}, ${count(extent[0])} · columns: ${axisName(axes[1])}, ${count(extent[1])}`
    : `${plural(extent[1], "element")}, in reading order`;
  const legend = ["exact", ...(known(picture.limits.degraded) ? ["within", "over"] : []), "beyond"].map(
    kind =>
      el(
        "span",
        el("i", { class: kind }),
        {
          exact: "no error",
          within: "within the limit",
          over: "above it",
          beyond: known(picture.limits.degraded) ? "fails" : "wrong",
        }[kind],
      ),
  );
  return el(
    "figure.picture.errors",
    el("figcaption", "Where they are", el("span.soft", ` ${words}`)),
    svg(
      "svg",
      {
        viewBox: `0 0 ${columns * cell} ${rows.length * cell}`,
        style: { "max-width": `${columns * cell}px` },
        role: "img",
        "aria-label": `Map of errors, ${words}; ${count(picture.histogram.over)} elements above the limit`,
      },
      cells,
    ),
    el("p.legend", legend),
  );
}
