"use strict";
// Sources, with line numbers and a light tint: two regular expressions, no parser.

const LONGEST_TINTED = 300000;
const TINTS = {
  c: /(\/\/[^\n]*|\/\*[\s\S]*?\*\/)|("(?:[^"\\\n]|\\.)*")|\b(0x[\da-fA-F]+\w*|\d[\d.]*(?:[eE][+-]?\d+)?[fFuUlLhH]*)\b|\b(__kernel|__global|__local|__constant|kernel|global|local|void|const|restrict|for|while|if|else|return|inline|static|fn|let|var|struct|break|continue|barrier|workgroupBarrier)\b|\b((?:u?(?:int|char|short|long)|float|half|double|bool|size_t|u32|i32|f16|f32)(?:2|3|4|8|16)?)\b/g,
  python:
    /(#[^\n]*)|("(?:[^"\\\n]|\\.)*")|\b(\d[\d.]*(?:[eE][+-]?\d+)?)\b|\b(def|with|for|in|if|else|return|while|and|or|not|True|False|None|from|import|as|lambda)\b|(\bT\.[A-Za-z_]\w*|@[\w.]+)/g,
};
const TINT_NAMES = ["", "comment", "string", "digit", "word", "type"];

/** One source as a figure; `language` is "c" or "python", `more` are lines about what has no text. */
function sourceFigure(title, text, language, more = []) {
  const notes = more.map(line => el("p.soft", line));
  if (!text)
    return el(
      "figure.source",
      el("figcaption", title),
      notes.length ? notes : el("p.soft.none", "not known"),
    );
  const lines = el("code");
  let line = el("span.row");
  const put = (piece, kind) => {
    piece.split("\n").forEach((part, place) => {
      if (place) {
        lines.append(line, "\n");
        line = el("span.row");
      }
      if (part) line.append(kind ? el("span", { class: kind }, part) : part);
    });
  };
  const shown = text.replace(/\n+$/, "");
  let end = 0;
  if (shown.length <= LONGEST_TINTED) {
    for (const match of shown.matchAll(TINTS[language])) {
      put(shown.slice(end, match.index));
      put(match[0], TINT_NAMES[match.slice(1).findIndex(group => group !== undefined) + 1]);
      end = match.index + match[0].length;
    }
  }
  put(shown.slice(end));
  lines.append(line);
  const number = shown.split("\n").length;
  return el(
    "figure.source",
    el("figcaption", title, el("span.soft", ` ${plural(number, "line")}`)),
    el(
      "pre",
      {
        tabindex: "0",
        role: "region",
        "aria-label": `${title}, source`,
        style: { "--digits": String(number).length },
      },
      lines,
    ),
    notes,
  );
}
