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
    // A change of the filter makes all pictures old.
    view.on("filter", () => { this.picture = this.overview = undefined; });
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
    const fill = (spans, accepts, colourAt, colourOf) => {
      const raster = new Raster(width, height);
      spans.each(from, to, (at) => {
        if (!accepts(at)) return;
        const bottom = spans.y[at];
        if (bottom > this.high || bottom + spans.bytes[at] < this.low) return;
        const left = this.x(this.view.position(spans.start[at]));
        const right = this.x(this.endOf(spans.end[at]));
        raster.add(left, right, this.y(bottom + spans.bytes[at]), this.y(bottom), colourAt(at));
      });
      raster.paint(image, colourOf);
    };
    const { free, faint } = theme();
    const { run } = this.view;
    if (this.segments) fill(this.segments, () => true, () => 0, () => rgbOf(free));
    const isFiltered = this.isOfRun && run.passes;
    if (this.isOfRun && run.columns.cell_share) this.cells(image, isFiltered && rgbOf(faint));
    if (isFiltered) fill(this.spans, (at) => !run.isShown(at), () => 0, () => rgbOf(faint));
    fill(this.spans, (at) => !isFiltered || run.isShown(at), (at) => this.colour[at], this.colourOf);
    context.putImageData(image, 0, 0);
    const { axis } = this.view;
    return { canvas, axis, from: this.view.from, to: this.view.to, low: this.low, high: this.high };
  }

  /** Draws the cells that small blocks cover; in one colour if there is a filter, which cells do not know. */
  cells(image, only) {
    const { run } = this.view;
    const [columns, rows] = run.cells;
    const { cell_share, cell_colour } = run.columns;
    const raster = new Raster(image.width, image.height);
    const x = (column) => this.x(this.view.position((column / columns) * run.events));
    const y = (row) => this.y((row / rows) * run.height);
    for (let column = 0; column < columns; column++) {
      const [left, right] = [x(column), x(column + 1)];
      if (right < 0 || left > image.width) continue;
      for (let row = 0; row < rows; row++) {
        const at = row * columns + column;
        if (!cell_share[at]) continue;
        raster.add(left, right, y(row + 1), y(row), cell_colour[at], cell_share[at] / 255);
      }
    }
    raster.paint(image, (rank) => only || this.colourOf(rank));
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

  /** Returns the block under the pointer, or -1. */
  blockAt(pointer) {
    const box = this.canvas.getBoundingClientRect();
    const event = this.view.eventAt(this.positionOf(pointer));
    const y = this.high - ((pointer.clientY - box.top) / box.height) * (this.high - this.low);
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
    if (found < 0) return super.hover(pointer);
    const { run } = this.view;
    const start = this.spans.start[found], end = this.spans.end[found];
    const until = end < run.events ? `event ${inDigits(end + 1)}` : "the end";
    const of = this.isOfRun ? `, ${run.lineOf(found)}` : "";
    say(`a block of ${inBytes(this.spans.bytes[found])}, from event ${inDigits(start + 1)} to ${until}${of}`);
  }
}
