// The numbers of all blocks by size and lifetime.
"use strict";

/** The number of blocks by size and lifetime, in powers of two. */
class Sizes extends Chart {
  constructor(id, view) {
    super(id, view);
    this.bins = new Map();
    const { shape, shape_blocks, shape_bytes, shape_kept } = view.run.columns;
    this.widest = 1;
    this.tallest = 1;
    this.most = 0;
    for (let at = 0; at < shape.length; at++) {
      const [x, y] = [shape[at] % 64, Math.floor(shape[at] / 64)];
      this.widest = Math.max(this.widest, x + 1);
      this.tallest = Math.max(this.tallest, y + 1);
      const bin = { x, y, count: shape_blocks[at], bytes: shape_bytes[at], kept: shape_kept[at] };
      this.bins.set(shape[at], bin);
      this.most = Math.max(this.most, bin.count);
    }
    this.shortest = [...this.bins.values()].reduce((least, { y }) => Math.min(least, y), this.tallest - 1);
  }

  draw() {
    const context = this.begin();
    const colours = theme();
    const margin = 64 * this.scale;
    const rows = this.tallest - this.shortest;
    const wide = (this.canvas.width - margin) / this.widest;
    const tall = (this.canvas.height - 20 * this.scale) / rows;
    this.box = { margin, wide, tall, rows };
    for (const { x, y, count } of this.bins.values()) {
      context.globalAlpha = 0.15 + 0.85 * (Math.log1p(count) / Math.log1p(this.most));
      context.fillStyle = colours.live;
      context.fillRect(margin + x * wide, (rows - 1 - (y - this.shortest)) * tall, wide - 1, tall - 1);
    }
    context.globalAlpha = 1;
    const every = Math.ceil((14 * this.scale) / tall);
    for (let row = 0; row < rows; row += every) {
      label(context, inBytes(2 ** (row + this.shortest)), 4, (rows - row) * tall - 2, colours);
    }
    for (let x = 0; x < this.widest; x += Math.ceil((70 * this.scale) / wide)) {
      const text = x === 0 ? "1 event" : inDigits(2 ** x);
      label(context, text, margin + x * wide, this.canvas.height - 5 * this.scale, colours);
    }
  }

  hover(pointer) {
    const box = this.canvas.getBoundingClientRect();
    const { margin, wide, tall, rows } = this.box;
    const x = Math.floor(((pointer.clientX - box.left) * this.scale - margin) / wide);
    const y = rows - 1 - Math.floor(((pointer.clientY - box.top) * this.scale) / tall) + this.shortest;
    const bin = this.bins.get(y * 64 + x);
    if (!bin || x < 0) return say("no blocks of this size and lifetime");
    const kept = bin.kept ? `, ${inDigits(bin.kept)} never freed` : "";
    say(`${numberOf(bin.count, "block")} of ${inBytes(2 ** y)} to ${inBytes(2 ** (y + 1))} that lived ` +
      `${inDigits(2 ** x)} to ${inDigits(2 ** (x + 1))} events: ${inBytes(bin.bytes)} in total${kept}`);
  }
}
