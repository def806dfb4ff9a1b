// What all charts share: canvas size, panning, zooming, keys, axes, marks.
"use strict";

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

  /** Draws lines at failed requests, phases, the chosen event, and the two marks. */
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
    const phases = run.marks.filter(({ kind }) => kind !== "phase_end");
    phases.forEach((mark, at) => {
      line(mark.event, colours.line, []);
      // Many names would hide each other, and names would hide blocks.
      if (phases.length > 12 || !this.hasNames) return;
      const x = this.x(this.view.position(mark.event)) + 3;
      label(context, mark.name, x, (12 + 14 * (at % 3)) * this.scale, colours);
    });
    line(this.view.instant, colours.text, []);
    this.view.between.forEach((event, at) => {
      if (event < 0 || (at === 1 && event === run.events - 1)) return;
      line(event, colours.mark, [8, 3]);
      label(context, String(at + 1), this.x(this.view.position(event)) + 3, 12 * this.scale, colours);
    });
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
      if (drag && !drag.moved) {
        view.choose(view.eventAt(this.positionOf(event)));
        this.pick?.(event);
      }
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
      Enter: () => view.choose(view.eventAt((view.from + view.to) / 2)),
      "[": () => view.setMark(0, view.instant),
      "]": () => view.setMark(1, view.instant),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  /** Describes the event under the pointer. */
  hover(pointer) {
    const event = this.view.eventAt(this.positionOf(pointer));
    const { run } = this.view;
    const [low, high] = run.livePyramid.range(event, event + 1);
    const live = low === high ? inBytes(high) : `${inBytes(low)} to ${inBytes(high)}`;
    const reserved = run.reservedPyramid
      ? `, reserved ${inBytes(run.reservedPyramid.range(event, event + 1)[1])}` : "";
    const at = this.view.axis === "time" ? ` at ${this.view.label(this.view.position(event))}` : "";
    const failure = run.failures.find((failure) => failure.event === event);
    const failed = failure ? `; a request for ${inBytes(failure.bytes)} failed` : "";
    say(`event ${inDigits(event + 1)}${at}: live ${live}${reserved}${failed}`);
  }
}
