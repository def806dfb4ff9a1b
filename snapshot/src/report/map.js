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

  /** Adds one rectangle, covered by a share; its sides are in cells. */
  add(left, right, top, bottom, colour, share = 1) {
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
        const part = share * tall * (Math.min(right, x + 1) - Math.max(left, x));
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
    this.isOfRun = spans === view.run.blocks;
    if (this.isOfRun && view.run.columns.cell_share) this.cells = new Cells(view.run);
    const prepare = () => {
      // A change of the filter makes all pictures old.
      this.picture = this.overview = undefined;
      this.cells?.prepare();
    };
    view.on("filter", prepare);
    prepare();
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
    const addSpans = (raster, spans, accepts, colourAt) => {
      spans.each(from, to, (at) => {
        if (!accepts(at)) return;
        const bottom = spans.y[at];
        if (bottom > this.high || bottom + spans.bytes[at] < this.low) return;
        const left = this.x(this.view.position(spans.start[at]));
        const right = this.x(this.endOf(spans.end[at]));
        raster.add(left, right, this.y(bottom + spans.bytes[at]), this.y(bottom), colourAt(at));
      });
    };
    const paint = (colourOf, add) => {
      const raster = new Raster(width, height);
      add(raster);
      raster.paint(image, colourOf);
    };
    const { free, faint } = theme();
    const { run } = this.view;
    if (this.segments) {
      paint(() => rgbOf(free), (raster) => addSpans(raster, this.segments, () => true, () => 0));
    }
    // The blocks that the filter hides are below those that it shows.
    for (const isPassing of this.isOfRun && run.passes ? [false, true] : [true]) {
      const accepts = (at) => !this.isOfRun || run.isShown(at) === isPassing;
      paint(isPassing ? this.colourOf : () => rgbOf(faint), (raster) => {
        this.addCells(raster, isPassing);
        addSpans(raster, this.spans, accepts, (at) => this.colour[at]);
      });
    }
    context.putImageData(image, 0, 0);
    const { axis } = this.view;
    return { canvas, axis, from: this.view.from, to: this.view.to, low: this.low, high: this.high };
  }

  /** Adds the small blocks that pass the filter to a raster, or the others. */
  addCells(raster, isPassing) {
    if (!this.cells) return;
    const { run } = this.view;
    const { columns, rows } = this.cells;
    const x = (column) => this.x(this.view.position((column / columns) * run.events));
    const y = (row) => this.y((row / rows) * run.height);
    this.cells.add(raster, isPassing, x, y);
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
    this.outline(context, colours);
    this.marks(context, colours);
  }

  /** Draws a frame around the chosen block. */
  outline(context, colours) {
    const { block } = this.view;
    if (!this.isOfRun || block === undefined) return;
    const { start, end, bytes, y } = this.spans;
    const left = this.x(this.view.position(start[block])), right = this.x(this.endOf(end[block]));
    const top = this.y(y[block] + bytes[block]), bottom = this.y(y[block]);
    context.strokeStyle = colours.text;
    context.lineWidth = 2 * this.scale;
    context.strokeRect(left - 1, top - 1, Math.max(right - left, 1) + 2, Math.max(bottom - top, 1) + 2);
  }

  /** Draws an earlier picture at its place in the present view. */
  shift(context, picture) {
    const left = this.x(picture.from), right = this.x(picture.to);
    const top = this.y(picture.high), bottom = this.y(picture.low);
    if (picture !== this.overview) context.clearRect(left, top, right - left, bottom - top);
    context.drawImage(picture.canvas, left, top, right - left, bottom - top);
  }

  /** Returns the event and the address under the pointer. */
  placeOf(pointer) {
    const box = this.canvas.getBoundingClientRect();
    const y = this.high - ((pointer.clientY - box.top) / box.height) * (this.high - this.low);
    return [this.view.eventAt(this.positionOf(pointer)), y];
  }

  /** Returns the block under the pointer, or -1. */
  blockAt(pointer) {
    const [event, y] = this.placeOf(pointer);
    let found = -1;
    this.spans.each(event, event, (at) => {
      const isAt = this.spans.y[at] <= y && y < this.spans.y[at] + this.spans.bytes[at];
      if (isAt && this.spans.end[at] > event) found = at;
    });
    return found;
  }

  /** Chooses the block under the pointer. */
  pick(pointer) {
    const found = this.isOfRun ? this.blockAt(pointer) : -1;
    if (found >= 0) this.view.chooseBlock(found);
  }

  hover(pointer) {
    const found = this.blockAt(pointer);
    const { run } = this.view;
    if (found < 0) {
      const [event, y] = this.placeOf(pointer);
      const small = this.cells?.at(event / run.events, y / run.height);
      return small ? say(small) : super.hover(pointer);
    }
    const start = this.spans.start[found], end = this.spans.end[found];
    const until = end < run.events ? `event ${inDigits(end + 1)}` : "the end";
    const of = this.isOfRun ? `, ${run.lineOf(found)}` : "";
    say(`a block of ${inBytes(this.spans.bytes[found])}, from event ${inDigits(start + 1)} to ${until}${of}`);
  }
}
