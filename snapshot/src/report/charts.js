// The charts over the axis: live and reserved bytes, live bytes by stack, and replayed stacks.
"use strict";

/** The live and reserved bytes of one run, or of two. */
class Timeline extends Chart {
  constructor(id, view, other) {
    super(id, view);
    this.other = other;
    this.hasNames = true;
  }

  draw() {
    const context = this.begin();
    const colours = theme();
    const { run } = this.view;
    const { width, height } = this.canvas;
    const edges = this.view.edges(width);
    const { filtered } = run;
    const first = edges[0], last = edges[width] + 1;
    let most = Math.max(run.livePyramid.range(first, last)[1], 1);
    if (run.reservedPyramid) most = Math.max(most, run.reservedPyramid.range(first, last)[1]);
    const ratio = this.other ? this.other.events / run.events : 1;
    const otherEdge = (at) => Math.min(Math.floor(edges[at] * ratio), (this.other?.events ?? 1) - 1);
    if (this.other) {
      most = Math.max(most, this.other.livePyramid.range(otherEdge(0), otherEdge(width) + 1)[1]);
    }
    most *= 1.05;
    const y = (bytes) => height * (1 - bytes / most);
    const ranges = (pyramid) => (at) => pyramid.range(edges[at], edges[at + 1] + 1);
    if (run.reservedPyramid) this.area(context, ranges(run.reservedPyramid), y, colours.reserved, 0.45);
    this.area(context, ranges(run.livePyramid), y, colours.live, filtered ? 0.25 : 0.85);
    if (filtered) this.area(context, ranges(filtered), y, colours.live, 0.9);
    if (this.other) {
      const range = (at) => this.other.livePyramid.range(otherEdge(at), otherEdge(at + 1) + 1);
      context.fillStyle = colours.other;
      for (let at = 0; at < width; at++) {
        const [low, high] = range(at);
        context.fillRect(at, y(high) - this.scale, 1, y(low) - y(high) + 2 * this.scale);
      }
    }
    this.scaleOfBytes(context, most, colours);
    this.marks(context, colours);
  }

  /** Fills each column up to its largest value; the part above its smallest value is lighter. */
  area(context, range, y, colour, opacity) {
    const { width, height } = this.canvas;
    context.fillStyle = colour;
    for (let at = 0; at < width; at++) {
      const [low, high] = range(at);
      context.globalAlpha = opacity;
      context.fillRect(at, y(low), 1, height - y(low));
      context.globalAlpha = opacity * 0.6;
      context.fillRect(at, y(high), 1, y(low) - y(high));
    }
    context.globalAlpha = 1;
  }
}

/** The live bytes of the stacks that hold the most at the peak, stacked. */
class Holders extends Chart {
  draw() {
    const context = this.begin();
    const colours = theme();
    const { width, height } = this.canvas;
    const { run } = this.view;
    const edges = this.view.edges(width);
    const course = run.filtered ?? run.livePyramid;
    const most = Math.max(course.range(edges[0], edges[width] + 1)[1], 1) * 1.05;
    const styles = Array.from({ length: COLOURS }, (_, rank) => css(paletteOf(run, rank)));
    const sums = new Float64Array(COLOURS);
    for (let at = 0; at < width; at++) {
      // The bytes of each stack at the column's event with the most live memory.
      run.heldByColour(run.livePyramid.fullest(edges[at], edges[at + 1]), sums);
      let below = height;
      for (let rank = 0; rank < COLOURS; rank++) {
        const part = (sums[rank] / most) * height;
        if (part <= 0) continue;
        context.fillStyle = styles[rank];
        context.fillRect(at, below - part, 1, part);
        below -= part;
      }
    }
    this.scaleOfBytes(context, most, colours);
    this.marks(context, colours);
  }

  legend(filter) {
    const { run } = this.view;
    const entries = run.holders.map((group, rank) => {
      const title = `${run.lines[group]}\nClick to show only this line.`;
      return [css(paletteOf(run, rank)), run.leads[group], title, () => filter.byGroup(group)];
    });
    if (run.leads.length > run.holders.length) {
      entries.push([css(PALETTE.at(-1)), "all others", "stacks that hold less at the peak"]);
    }
    legend("holders-legend", entries);
  }
}

/** The bytes that each replayed stack of resources reserved, on one axis. */
class Curves extends Chart {
  draw() {
    const context = this.begin();
    const colours = theme();
    const { width, height } = this.canvas;
    const { run } = this.view;
    const curves = run.curveColumns;
    // The events are divided into equal parts; a curve has one point for each.
    const points = (curve, edge) => {
      return Math.min(Math.floor((edge / run.events) * curve.length), curve.length - 1);
    };
    let most = Math.max(run.livePyramid.range(0, run.events)[1], 1);
    for (const { bytes } of curves) for (const value of bytes) most = Math.max(most, value);
    most *= 1.05;
    const edges = this.view.edges(width);
    const y = (bytes) => height * (1 - bytes / most);
    context.fillStyle = colours.live;
    context.globalAlpha = 0.25;
    for (let at = 0; at < width; at++) {
      const high = run.livePyramid.range(edges[at], edges[at + 1] + 1)[1];
      context.fillRect(at, y(high), 1, height - y(high));
    }
    context.globalAlpha = 1;
    context.lineWidth = 2 * this.scale;
    curves.forEach(({ bytes }, rank) => {
      context.strokeStyle = css(PALETTE[rank % PALETTE.length]);
      context.beginPath();
      for (let at = 0; at < width; at++) {
        const [from, to] = [points(bytes, edges[at]), points(bytes, edges[at + 1])];
        let high = bytes[from];
        for (let point = from; point < to; point++) high = Math.max(high, bytes[point]);
        context.lineTo(at, y(high));
      }
      context.stroke();
    });
    this.scaleOfBytes(context, most, colours);
    this.marks(context, colours);
  }

  legend() {
    const { run } = this.view;
    const entries = run.curveColumns.map(({ name, bytes }, rank) => {
      const peak = bytes.reduce((most, value) => Math.max(most, value), 0);
      return [css(PALETTE[rank % PALETTE.length]), `${name}: ${inBytes(peak)} at most`];
    });
    legend("curves-legend", [[theme().live, "live"], ...entries]);
  }
}
