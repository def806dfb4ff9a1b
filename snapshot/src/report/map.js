// Draws blocks as rectangles over events and addresses: as they were, or as a plan places them.
"use strict";

/** Cells that rectangles are added to; each cell knows how much of it is covered. */
class Raster {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.covered = new Float32Array(width * height);
    this.most = new Float32Array(width * height);
    this.colour = new Uint8Array(width * height);
  }

  /** Adds one rectangle; its sides are in cells. */
  add(left, right, top, bottom, colour) {
    const { width, height } = this;
    left = Math.max(left, 0);
    right = Math.min(right, width);
    top = Math.max(top, 0);
    bottom = Math.min(bottom, height);
    if (right <= left || bottom <= top) return;
    const lastX = Math.min(Math.ceil(right), width) - 1;
    const lastY = Math.min(Math.ceil(bottom), height) - 1;
    for (let y = Math.floor(top); y <= lastY; y++) {
      const tall = Math.min(bottom, y + 1) - Math.max(top, y);
      for (let x = Math.floor(left); x <= lastX; x++) {
        const part = tall * (Math.min(right, x + 1) - Math.max(left, x));
        const cell = y * width + x;
        this.covered[cell] += part;
        if (part > this.most[cell]) {
          this.most[cell] = part;
          this.colour[cell] = colour;
        }
      }
    }
  }

  /** Blends the cells into the pixels of an image. */
  paint(image, colourOf) {
    const { data } = image;
    for (let cell = 0, at = 0; cell < this.covered.length; cell++, at += 4) {
      const covered = this.covered[cell];
      if (covered <= 0) continue;
      const rgb = colourOf(this.colour[cell]);
      // The root keeps a partly covered cell visible.
      const share = Math.sqrt(Math.min(covered, 1));
      const before = (data[at + 3] / 255) * (1 - share);
      const whole = share + before;
      for (let part = 0; part < 3; part++) {
        data[at + part] = (rgb[part] * share + data[at + part] * before) / whole;
      }
      data[at + 3] = whole * 255;
    }
  }
}

/** A map of blocks. While the view moves, it shifts earlier pictures; when the view rests, it draws again. */
class AddressMap extends Chart {
  constructor(id, view, { spans, segments, height, colour, colourOf, bound }) {
    super(id, view);
    Object.assign(this, { spans, segments, bytes: Math.max(height, 1), colour, colourOf, bound });
    this.low = 0;
    this.high = this.bytes;
  }

  y(bytes) {
    return ((this.high - bytes) / (this.high - this.low)) * this.canvas.height;
  }

  zoomY(factor, pointer) {
    const box = this.canvas.getBoundingClientRect();
    const at = this.high - ((pointer.clientY - box.top) / box.height) * (this.high - this.low);
    const width = Math.min(Math.max((this.high - this.low) * factor, 1024), this.bytes);
    const low = at - ((at - this.low) / (this.high - this.low)) * width;
    this.low = Math.min(Math.max(low, 0), this.bytes - width);
    this.high = this.low + width;
    this.view.changed();
  }

  dragged(share, isStart) {
    if (isStart) {
      this.dragLow = this.low;
      return;
    }
    const width = this.high - this.low;
    this.low = Math.min(Math.max(this.dragLow + share * width, 0), this.bytes - width);
    this.high = this.low + width;
  }

  /** Draws every visible rectangle to a new canvas; rectangles smaller than a pixel add up. */
  exact() {
    const { width, height } = this.canvas;
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const from = this.view.eventAt(this.view.from);
    const to = this.view.eventAt(this.view.to);
    const fill = (spans, colourAt, colourOf) => {
      const raster = new Raster(width, height);
      spans.each(from, to, (at) => {
        const bottom = spans.y[at];
        if (bottom > this.high || bottom + spans.bytes[at] < this.low) return;
        const left = this.x(this.view.position(spans.start[at]));
        const right = this.x(this.endOf(spans.end[at]));
        raster.add(left, right, this.y(bottom + spans.bytes[at]), this.y(bottom), colourAt(at));
      });
      raster.paint(image, colourOf);
    };
    const free = rgbOf(theme().free);
    if (this.segments) fill(this.segments, () => 0, () => free);
    fill(this.spans, (at) => this.colour[at], this.colourOf);
    context.putImageData(image, 0, 0);
    const { axis } = this.view;
    return { canvas, axis, from: this.view.from, to: this.view.to, low: this.low, high: this.high };
  }

  /** Returns the position of a block's end; a block that was never freed reaches the end of the axis. */
  endOf(event) {
    return event >= this.view.run.events ? this.view.end : this.view.position(event);
  }

  draw(isSettled) {
    const context = this.begin();
    const colours = theme();
    const { from, to, end } = this.view;
    const isWhole = from === 0 && to === end && this.high - this.low === this.bytes;
    if (isSettled || !this.picture) {
      this.picture = this.exact();
      if (isWhole) this.overview = this.picture;
      else if (this.overview?.axis !== this.view.axis) this.overview = undefined;
    }
    // Smoothing is slow without a GPU, and a moving picture does not need it.
    context.imageSmoothingEnabled = isSettled;
    for (const picture of new Set([this.overview, this.picture])) {
      if (picture?.axis === this.view.axis) this.shift(context, picture);
    }
    if (this.bound !== undefined) {
      const y = this.y(this.bound);
      context.strokeStyle = colours.bad;
      context.lineWidth = this.scale;
      context.strokeRect(-2, y, this.canvas.width + 4, 0);
    }
    this.marks(context, colours);
  }

  /** Draws an earlier picture at its place in the present view. */
  shift(context, picture) {
    const left = this.x(picture.from), right = this.x(picture.to);
    const top = this.y(picture.high), bottom = this.y(picture.low);
    if (picture !== this.overview) context.clearRect(left, top, right - left, bottom - top);
    context.drawImage(picture.canvas, left, top, right - left, bottom - top);
  }

  hover(pointer) {
    const box = this.canvas.getBoundingClientRect();
    const event = this.view.eventAt(this.positionOf(pointer));
    const y = this.high - ((pointer.clientY - box.top) / box.height) * (this.high - this.low);
    let found = -1;
    this.spans.each(event, event, (at) => {
      const isAt = this.spans.y[at] <= y && y < this.spans.y[at] + this.spans.bytes[at];
      if (isAt && this.spans.end[at] > event) found = at;
    });
    if (found < 0) return super.hover(pointer);
    const { run } = this.view;
    const start = this.spans.start[found], end = this.spans.end[found];
    const until = end < run.events ? `event ${end + 1}` : "the end";
    const of = this.spans === run.blocks ? `, ${run.stackName(run.stack[found])}` : "";
    say(`a block of ${inBytes(this.spans.bytes[found])}, from event ${start + 1} to ${until}${of}`);
  }
}

/** The number of blocks by size and lifetime, in powers of two. */
class Sizes extends Chart {
  constructor(id, view) {
    super(id, view);
    this.bins = new Map();
    const { blocks, events } = view.run;
    this.widest = 1;
    this.tallest = 1;
    this.most = 0;
    for (let at = 0; at < blocks.count; at++) {
      const isKept = blocks.end[at] >= events;
      const x = Math.floor(Math.log2(Math.max(Math.min(blocks.end[at], events) - blocks.start[at], 1)));
      const y = Math.floor(Math.log2(Math.max(blocks.bytes[at], 1)));
      this.widest = Math.max(this.widest, x + 1);
      this.tallest = Math.max(this.tallest, y + 1);
      const key = y * 64 + x;
      const bin = this.bins.get(key) ?? this.bins.set(key, { x, y, count: 0, bytes: 0, kept: 0 }).get(key);
      bin.count++;
      bin.bytes += blocks.bytes[at];
      bin.kept += isKept;
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
      const text = x === 0 ? "1 event" : (2 ** x).toLocaleString("en");
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
    const kept = bin.kept ? `, ${bin.kept} never freed` : "";
    say(`${numberOf(bin.count, "block")} of ${inBytes(2 ** y)} to ${inBytes(2 ** (y + 1))} that lived ` +
      `${2 ** x} to ${2 ** (x + 1)} events: ${inBytes(bin.bytes)} in total${kept}`);
  }
}
