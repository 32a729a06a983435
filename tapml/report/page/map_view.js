"use strict";
// A window on a drawing: moved and zoomed by mouse, finger, wheel, keyboard and buttons.

const ZOOM = { least: 0.02, most: 4, step: 1.4 };
const FAR = 0.5; // Below this scale names cannot be read, and are not drawn.

class MapView {
  /** `drawing` is the group that moves inside `canvas`; the third is its size and that of a layer. */
  constructor(canvas, drawing, { strip, width, height }) {
    Object.assign(this, {
      canvas,
      drawing,
      strip,
      width,
      height: height + 12,
      scale: 1,
      left: 0,
      top: 0,
      dragged: false,
      placed: false,
      focus: null, // A place of the drawing that keys and buttons zoom about: the match of a search.
    });
    this.pointers = new Map();
    canvas.addEventListener("pointerdown", event => this.press(event));
    canvas.addEventListener("pointermove", event => this.move(event));
    for (const kind of ["pointerup", "pointercancel"])
      canvas.addEventListener(kind, event => this.release(event));
    canvas.addEventListener("wheel", event => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", event => this.key(event));
  }

  get size() {
    return this.canvas.getBoundingClientRect();
  }

  /** A layer as wide as the window, from the top: how a map is read first. */
  fitWidth() {
    if (!this.size.width) return; // Not in sight: done when it is.
    this.scale = Math.min(1.15, this.size.width / this.strip);
    // A short map needs no tall window; what lies over its corner has room below it.
    this.canvas.style.setProperty("--drawn", `${Math.ceil(this.height * this.scale) + 48}px`);
    this.left = Math.max(0, (this.size.width - this.width * this.scale) / 2);
    this.top = 0;
    this.apply();
  }

  /** All of it at once. */
  fit() {
    if (!this.size.width) return;
    const { width, height } = this.size;
    this.scale = Math.min(1.15, width / this.width, height / this.height);
    this.left = (width - this.width * this.scale) / 2;
    this.top = Math.max(0, (height - this.height * this.scale) / 2);
    this.apply();
  }

  zoom(factor, x, y) {
    if (x === undefined) [x, y] = this.anchor();
    const scale = Math.min(ZOOM.most, Math.max(ZOOM.least, this.scale * factor));
    this.left = x - ((x - this.left) * scale) / this.scale;
    this.top = y - ((y - this.top) * scale) / this.scale;
    this.scale = scale;
    this.apply();
  }

  /** Where the window's focus is seen, else its middle. */
  anchor() {
    const { width, height } = this.size;
    if (this.focus) {
      const x = this.focus[0] * this.scale + this.left;
      const y = this.focus[1] * this.scale + this.top;
      if (x >= 0 && x <= width && y >= 0 && y <= height) return [x, y];
    }
    return [width / 2, height / 2];
  }

  /** Bring a place of the drawing to the middle, near enough to be read. */
  center(x, y) {
    this.focus = [x, y];
    this.scale = Math.max(this.scale, 0.9);
    const room = this.size.width - this.width * this.scale;
    this.left = room >= 0 ? room / 2 : this.size.width / 2 - x * this.scale;
    this.top = this.size.height / 2 - y * this.scale;
    this.apply();
  }

  pan(x, y) {
    this.left += x;
    this.top += y;
    this.apply();
  }

  apply() {
    const { width, height } = this.size;
    if (!width) return;
    this.placed = true;
    // Some of it stays in sight.
    const margin = 60;
    this.left = Math.min(width - margin, Math.max(margin - this.width * this.scale, this.left));
    this.top = Math.min(height - margin, Math.max(margin - this.height * this.scale, this.top));
    this.drawing.setAttribute(
      "transform",
      `translate(${this.left.toFixed(2)} ${this.top.toFixed(2)}) scale(${this.scale.toFixed(4)})`,
    );
    this.canvas.classList.toggle("far", this.scale < FAR);
  }

  press(event) {
    if (event.button) return;
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.dragged = this.pointers.size > 1;
    this.travelled = 0;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const at = [event.clientX, event.clientY];
    const other = [...this.pointers].find(([id]) => id !== event.pointerId);
    this.pointers.set(event.pointerId, at);
    const [x, y] = [at[0] - before[0], at[1] - before[1]];
    this.travelled += Math.hypot(x, y);
    if (this.travelled > 4 && !this.dragged) {
      this.dragged = true;
      // Only now: a captured pointer's click would never reach a node.
      this.canvas.setPointerCapture(event.pointerId);
    }
    if (!other) {
      if (this.dragged) this.pan(x, y);
      return;
    }
    const [ox, oy] = other[1];
    const ratio =
      Math.hypot(at[0] - ox, at[1] - oy) / Math.max(1, Math.hypot(before[0] - ox, before[1] - oy));
    this.zoom(ratio, (at[0] + ox) / 2 - this.size.left, (at[1] + oy) / 2 - this.size.top);
    this.pan(x / 2, y / 2);
  }

  release(event) {
    this.pointers.delete(event.pointerId);
  }

  /** The wheel zooms once the map is in hand; before that it scrolls the page. */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 24 : 1;
    this.zoom(
      Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.002)),
      event.clientX - this.size.left,
      event.clientY - this.size.top,
    );
  }

  key(event) {
    const step = 80;
    const keys = {
      ArrowLeft: () => this.pan(step, 0),
      ArrowRight: () => this.pan(-step, 0),
      ArrowUp: () => this.pan(0, step),
      ArrowDown: () => this.pan(0, -step),
      "+": () => this.zoom(ZOOM.step),
      "=": () => this.zoom(ZOOM.step),
      "-": () => this.zoom(1 / ZOOM.step),
      0: () => this.fit(),
      Home: () => this.fitWidth(),
    };
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  }
}
