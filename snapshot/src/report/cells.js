// The cells of the map that small blocks cover: how much of each cell, and which stacks cover it.
"use strict";

/** Parts of a cell below this share of it are not drawn. */
const LEAST_SHARE = 0.001;

class Cells {
  constructor(run) {
    this.run = run;
    [this.columns, this.rows] = run.cells;
    const { columns } = run;
    this.shares = columns.cell_share;
    this.own = columns.cell_origin;
    this.layers = [];
    for (let at = 0; columns[`cell_part_${at}`]; at++) {
      this.layers.push([columns[`cell_layer_${at}`], columns[`cell_part_${at}`]]);
    }
  }

  /** Notes the colour of each layer, and whether its blocks pass the filter; undefined if only some do. */
  prepare() {
    const { run, own } = this;
    const colours = Array.from({ length: run.origins }, (_, at) => run.colourOfGroup[run.groupOfOrigin(at)]);
    const passes = (origins) => {
      const passing = origins.filter((origin) => !run.passes || run.passes[origin]).length;
      return passing === origins.length ? true : passing ? undefined : false;
    };
    const isOwn = new Set(own);
    const others = Array.from({ length: COLOURS }, () => []);
    colours.forEach((colour, origin) => { if (!isOwn.has(origin)) others[colour].push(origin); });
    this.kinds = [
      ...Array.from(own, (origin) => ({ colour: colours[origin], origin, passes: passes([origin]) })),
      ...others.map((origins, colour) => ({ colour, passes: passes(origins) })),
    ];
    const all = Array.from({ length: run.origins }, (_, at) => at);
    this.rest = { colour: COLOURS - 1, passes: passes(all) };
  }

  /** Calls `visit` with each part of a cell: its share of the cell, and its kind. The largest comes first. */
  each(cell, visit) {
    const all = this.shares[cell] / 255;
    let left = all;
    for (const [layers, parts] of this.layers) {
      if (!layers[cell]) break;
      const share = Math.min((all * parts[cell]) / 255, left);
      left -= share;
      visit(share, this.kinds[layers[cell] - 1]);
    }
    if (left > LEAST_SHARE) visit(left, this.rest);
  }

  /** Adds the parts that pass to a raster, or the others; `x` and `y` place columns and rows in it. */
  add(raster, isPassing, x, y) {
    for (let column = 0; column < this.columns; column++) {
      const [left, right] = [x(column), x(column + 1)];
      if (right < 0 || left > raster.width) continue;
      for (let row = 0; row < this.rows; row++) {
        const cell = row * this.columns + column;
        if (!this.shares[cell]) continue;
        const [top, bottom] = [y(row + 1), y(row)];
        this.each(cell, (share, { colour, passes }) => {
          if ((passes === true) === isPassing) raster.add(left, right, top, bottom, colour, share);
        });
      }
    }
  }

  /** Returns what covers a cell as text, by its place in the map; nothing if no small block does. */
  at(x, y) {
    const { run } = this;
    const cell = Math.floor(y * this.rows) * this.columns + Math.floor(x * this.columns);
    const all = this.shares[cell];
    if (!all) return undefined;
    let [shown, unknown, most] = [0, 0, undefined];
    this.each(cell, (share, kind) => {
      most ??= kind;
      if (kind.passes) shown += share;
      else if (kind.passes === undefined) unknown += share;
    });
    const lead = most.origin === undefined ? "several lines" : run.leads[run.groupOfOrigin(most.origin)];
    const text = `small blocks cover ${inPercent(all, 255)} of this cell, most of it by ${lead}`;
    if (!run.passes) return text;
    const part = (share) => inPercent(share * 255, all);
    const more = unknown ? `; the page cannot split ${part(unknown)}` : "";
    return `${text}; the filter shows ${part(shown)} of them${more}`;
  }
}
