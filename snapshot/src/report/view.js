// The range of the axis that all charts share, and their drawing helpers.
"use strict";

/** Returns bytes as text, in a fitting unit. */
function inBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, value = bytes;
  while (Math.abs(value) >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit++;
  }
  return `${unit ? value.toFixed(value < 10 ? 2 : 1) : value} ${units[unit]}`;
}

/** Returns a count and its noun: 1 block, 2 blocks. */
function numberOf(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** Returns nanoseconds as text, in a fitting unit. */
function inTime(ns) {
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const [size, unit] = units.find(([size]) => Math.abs(ns) >= size) ?? [1, "ns"];
  return `${+(ns / size).toPrecision(4)} ${unit}`;
}

/** The visible range of the axis: in events, or in the unit of the recording's times. */
class View {
  constructor(run) {
    this.run = run;
    this.charts = [];
    this.isSettled = true;
    this.setAxis("events");
  }

  setAxis(axis) {
    // The same events stay visible.
    const was = this.axis && [this.eventAt(this.from), this.eventAt(this.to)];
    const wasWhole = !this.axis || (this.from <= 0 && this.to >= this.end);
    this.axis = axis;
    this.end = Math.max(axis === "time" ? this.run.time[this.run.events - 1] : this.run.events, 1);
    if (wasWhole) this.show(0, this.end);
    else this.show(this.position(was[0]), this.position(was[1]));
  }

  /** Returns the position of an event on the axis. */
  position(event) {
    if (this.axis === "events") return event;
    return this.run.time[Math.min(event, this.run.events - 1)];
  }

  /** Returns the last event at or before a position on the axis. */
  eventAt(position) {
    const last = this.run.events - 1;
    if (this.axis === "events") return Math.max(0, Math.min(last, Math.floor(position)));
    let low = 0, high = last;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.run.time[middle] <= position) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Returns the events at the edges of `columns` equal columns. */
  edges(columns) {
    const edges = new Uint32Array(columns + 1);
    const step = (this.to - this.from) / columns;
    for (let at = 0; at <= columns; at++) edges[at] = this.eventAt(this.from + at * step);
    return edges;
  }

  label(position) {
    if (this.axis === "events") return Math.round(position).toLocaleString("en");
    return this.run.clock === "steps" ? `step ${Math.round(position)}` : inTime(position);
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
    const range = document.getElementById("range");
    range.textContent = `${this.label(this.from)} to ${this.label(this.to)} of ${this.label(this.end)}`;
  }
}

/** Returns the colours of the page. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue("--" + name).trim();
  const names = ["text", "soft", "line", "live", "reserved", "other", "bad", "panel", "free"];
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

/** Draws a text that stays readable over the chart. */
function label(context, text, x, y, colours) {
  context.lineJoin = "round";
  context.lineWidth = 3;
  context.strokeStyle = colours.panel;
  context.strokeText(text, x, y);
  context.fillStyle = colours.text;
  context.fillText(text, x, y);
  context.lineWidth = 1;
}

/** The parts that all charts share: canvas size, panning, zooming, keys, axes. */
class Chart {
  constructor(id, view) {
    this.canvas = document.getElementById(id);
    this.view = view;
    view.charts.push(this);
    this.listen();
  }

  /** Fits the canvas to its box; returns its cleared context, in pixels of the canvas. */
  begin() {
    const { canvas } = this;
    const scale = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(canvas.clientWidth * scale));
    const height = Math.max(1, Math.round(canvas.clientHeight * scale));
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    this.scale = scale;
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `${11 * scale}px system-ui, sans-serif`;
    return context;
  }

  x(position) {
    return ((position - this.view.from) / (this.view.to - this.view.from)) * this.canvas.width;
  }

  /** Returns the position on the axis under the pointer. */
  positionOf(pointer) {
    const box = this.canvas.getBoundingClientRect();
    const share = (pointer.clientX - box.left) / box.width;
    return this.view.from + share * (this.view.to - this.view.from);
  }

  /** Draws lines and labels of bytes, up to `most`. */
  scaleOfBytes(context, most, colours) {
    const step = 2 ** Math.ceil(Math.log2(Math.max(most, 1) / 5));
    context.lineWidth = 1;
    for (let bytes = step; bytes < most; bytes += step) {
      const y = Math.round(this.canvas.height * (1 - bytes / most)) + 0.5;
      context.strokeStyle = colours.line;
      context.beginPath();
      context.moveTo(0, y);
      context.lineTo(this.canvas.width, y);
      context.stroke();
      label(context, inBytes(bytes), 4 * this.scale, y - 3, colours);
    }
  }

  /** Marks the failed requests, and the event that was clicked. */
  marks(context, colours) {
    const { run } = this.view;
    const line = (event, colour, dash) => {
      const x = Math.round(this.x(this.view.position(event))) + 0.5;
      if (x < 0 || x > this.canvas.width) return;
      context.strokeStyle = colour;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, this.canvas.height);
      context.stroke();
      context.setLineDash([]);
    };
    context.lineWidth = this.scale;
    for (const failure of run.failures) line(failure.event, colours.bad, [4, 3]);
    if (this.view.instant !== undefined) line(this.view.instant, colours.text, []);
  }

  listen() {
    const { canvas, view } = this;
    let drag;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const factor = Math.exp(Math.max(-1, Math.min(1, (event.deltaY || event.deltaX) / 300)));
      if (event.shiftKey && this.zoomY) this.zoomY(factor, event);
      else view.zoom(factor, this.positionOf(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, from: view.from, to: view.to, moved: false };
      canvas.setPointerCapture(event.pointerId);
      this.dragged?.(0, true);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return this.hover(event);
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      drag.moved ||= Math.hypot(dx, dy) > 3;
      if (!drag.moved) return;
      this.dragged?.(dy / canvas.clientHeight, false);
      const by = (dx / canvas.clientWidth) * (drag.to - drag.from);
      view.show(drag.from - by, drag.to - by);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) view.onInstant(view.eventAt(this.positionOf(event)));
      drag = undefined;
    });
    canvas.addEventListener("pointercancel", () => { drag = undefined; });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const { view } = this;
    const keys = {
      ArrowLeft: () => view.pan(-0.1),
      ArrowRight: () => view.pan(0.1),
      "+": () => view.zoom(1 / 1.5),
      "=": () => view.zoom(1 / 1.5),
      "-": () => view.zoom(1.5),
      Home: () => view.show(0, view.end),
      Enter: () => view.onInstant(view.eventAt((view.from + view.to) / 2)),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  }

  /** Describes the event under the pointer. */
  hover(pointer) {
    const event = this.view.eventAt(this.positionOf(pointer));
    const { run } = this.view;
    const reserved = run.reserved ? `, reserved ${inBytes(run.reserved[event])}` : "";
    const at = this.view.axis === "time" ? ` at ${this.view.label(this.view.position(event))}` : "";
    const failure = run.failures.find((failure) => failure.event === event);
    const failed = failure ? `; a request for ${inBytes(failure.bytes)} failed` : "";
    say(`event ${event + 1}${at}: live ${inBytes(run.live[event])}${reserved}${failed}`);
  }
}

/** Shows a sentence above the charts. */
function say(text) {
  document.getElementById("readout").textContent = text;
}

/** Fills a legend with colours and names. */
function legend(id, entries) {
  const element = document.getElementById(id);
  element.replaceChildren(...entries.map(([colour, text, title]) => {
    const item = document.createElement("span");
    const patch = document.createElement("i");
    patch.style.background = colour;
    item.append(patch, text);
    if (title) item.title = title;
    return item;
  }));
}
