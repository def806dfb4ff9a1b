// The range of the axis that all charts share, the selection, and the colours.
"use strict";

/** The visible range of the axis: in events, or in the unit of the recording's times. */
class View {
  constructor(run) {
    this.run = run;
    this.charts = [];
    this.listeners = { instant: [], filter: [], between: [], block: [], axis: [], rest: [] };
    this.isSettled = true;
    this.instant = run.peak;
    // Before the first event, and after the last one.
    this.between = [-1, run.snap(run.events - 1)];
    this.setAxis("events");
  }

  /**
   * Calls a function when the chosen instant, the filter, the two marks, the chosen block or the axis change,
   * or when nothing has changed for a moment.
   */
  on(what, act) {
    this.listeners[what].push(act);
  }

  tell(what) {
    for (const act of this.listeners[what]) act();
    this.changed();
  }

  /** Chooses an event; of a long file, the nearest event whose sums are exact. */
  choose(event) {
    this.instant = this.run.snap(event);
    this.tell("instant");
  }

  /** Chooses a block, or none. */
  chooseBlock(block) {
    this.block = block;
    this.tell("block");
  }

  /** Sets the first or the second mark. */
  setMark(at, event) {
    this.between[at] = event < 0 ? -1 : this.run.snap(event);
    this.tell("between");
  }

  /** Shows only the origins that pass in all charts and tables. */
  filter(passes) {
    this.run.filter(passes);
    this.tell("filter");
  }

  setAxis(axis) {
    // The same events stay visible.
    const was = this.axis && [this.eventAt(this.from), this.eventAt(this.to)];
    const wasWhole = !this.axis || (this.from <= 0 && this.to >= this.end);
    this.axis = axis;
    this.end = Math.max(axis === "time" ? this.run.timeOf(this.run.events - 1) : this.run.events, 1);
    if (wasWhole) this.show(0, this.end);
    else this.show(this.position(was[0]), this.position(was[1]));
    this.tell("axis");
  }

  /** Returns the position of an event on the axis. */
  position(event) {
    if (this.axis === "events") return event;
    return this.run.timeOf(event);
  }

  /** Returns the last event at or before a position on the axis. */
  eventAt(position) {
    const last = this.run.events - 1;
    if (this.axis === "events") return Math.max(0, Math.min(last, Math.floor(position)));
    return this.run.eventAtTime(position);
  }

  /** Returns the events at the edges of `columns` equal columns. */
  edges(columns) {
    const edges = new Uint32Array(columns + 1);
    const step = (this.to - this.from) / columns;
    for (let at = 0; at <= columns; at++) edges[at] = this.eventAt(this.from + at * step);
    return edges;
  }

  label(position) {
    if (this.axis === "events") return inDigits(Math.round(position));
    return timeText(this.run, position);
  }

  /** Shows a range, cut to the axis. */
  show(from, to) {
    const least = Math.min(this.axis === "events" ? 8 : this.end / 1e7, this.end);
    const width = Math.min(Math.max(to - from, least), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - width);
    this.to = this.from + width;
    this.changed();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  /** Draws soon, and draws in full when the view has not moved for a moment. */
  changed() {
    this.isSettled = false;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.isSettled = true;
      this.drawAll();
      for (const act of this.listeners.rest) act();
    }, 120);
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.drawAll();
    });
  }

  drawAll() {
    for (const chart of this.charts) {
      const box = chart.canvas.getBoundingClientRect();
      const isVisible = box.bottom > 0 && box.top < innerHeight && box.width > 0;
      // Charts out of sight wait until the view stops moving.
      if (isVisible || this.isSettled) chart.draw(this.isSettled);
    }
    const unit = this.axis === "events" ? " events" : "";
    byId("range").textContent =
      `${this.label(this.from)} to ${this.label(this.to)} of ${this.label(this.end)}${unit}`;
  }
}

/** Returns the colours of the page. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue("--" + name).trim();
  const names = [
    "text", "soft", "line", "live", "reserved", "other", "bad", "panel", "free", "mark", "faint",
  ];
  return Object.fromEntries(names.map((name) => [name, colour(name)]));
}

/** The colour of each stack by its rank; all other stacks have the last colour. */
const PALETTE = [
  [76, 132, 196], [232, 153, 66], [96, 168, 104], [206, 90, 96], [150, 118, 190], [160, 116, 96],
  [222, 136, 190], [188, 182, 70], [84, 186, 198], [120, 146, 90], [222, 178, 140], [150, 156, 162],
];

/** Returns the colour of a rank in a run; stacks without a rank have the last colour. */
function paletteOf(run, rank) {
  return PALETTE[rank < run.holders.length ? rank : PALETTE.length - 1];
}

/** Returns the red, green and blue of a colour such as #cdd3d9. */
const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

const css = (rgb) => `rgb(${rgb.join(",")})`;

/** Draws a text inside of the chart that stays readable over it. */
function label(context, text, x, y, colours) {
  const { fontBoundingBoxAscent: tall, width } = context.measureText(text);
  x = Math.max(0, Math.min(x, context.canvas.width - width - 3));
  y = Math.max(y, tall);
  context.lineJoin = "round";
  context.lineWidth = 3;
  context.strokeStyle = colours.panel;
  context.strokeText(text, x, y);
  context.fillStyle = colours.text;
  context.fillText(text, x, y);
  context.lineWidth = 1;
}
