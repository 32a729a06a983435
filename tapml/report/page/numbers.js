"use strict";
// Numbers as people read them. What is not known is a dash, never a zero.

const NONE = "–";

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Three significant digits, with a power of ten where it helps. */
function short(value) {
  if (!known(value)) return typeof value === "string" ? value : NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(3)));
}

function count(value) {
  return known(value) ? value.toLocaleString("en") : NONE;
}

function milliseconds(value) {
  if (!known(value)) return NONE;
  if (value >= 1000) return `${short(value / 1000)} s`;
  return value >= 0.1 ? `${short(value)} ms` : `${short(value * 1000)} µs`;
}

function seconds(value) {
  if (!known(value)) return NONE;
  if (value >= 5400) return `${short(value / 3600)} h`;
  if (value >= 90) return `${short(value / 60)} min`;
  return value >= 1 ? `${short(value)} s` : milliseconds(value * 1000);
}

function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KB", "MB", "GB", "TB"];
  let place = 0;
  while (value >= 1000 && place < units.length - 1) {
    value /= 1000;
    place += 1;
  }
  return `${Number(value.toPrecision(3))} ${units[place]}`;
}

function percent(share) {
  if (!known(share)) return NONE;
  return share > 0 && share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

/** How many times as long as the reference. */
function times(ratio) {
  return known(ratio) ? `${short(ratio)} ×` : NONE;
}

function moment(epoch) {
  return known(epoch) ? new Date(epoch * 1000).toLocaleString() : NONE;
}

function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
