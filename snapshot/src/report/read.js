// Reads the data in this file: the packed columns of each run, and its texts.
"use strict";

/** Decodes base64. */
function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Unpacks the columns to one buffer. */
async function unpack(text) {
  const packed = new Blob([bytesOf(text.trim())]).stream();
  return new Response(packed.pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

/** Returns the columns of the layout by name, as typed arrays over the buffer. */
function columnsOf(layout, buffer) {
  const columns = {};
  for (const { name, type, offset, length } of layout) {
    columns[name] = new (type === "u32" ? Uint32Array : Float64Array)(buffer, offset, length);
  }
  return columns;
}

/** Turns differences into sums, in place. */
function summed(column) {
  for (let at = 1; at < column.length; at++) column[at] += column[at - 1];
  return column;
}

/** The smallest and largest values of groups of 8, 64, 512, … events; any range is drawn quickly. */
class Pyramid {
  constructor(values) {
    this.levels = [{ least: values, most: values }];
    while (this.levels.at(-1).least.length > 16) {
      const below = this.levels.at(-1);
      const length = Math.ceil(below.least.length / 8);
      const least = new Float64Array(length).fill(Infinity);
      const most = new Float64Array(length).fill(-Infinity);
      for (let at = 0; at < below.least.length; at++) {
        const group = at >> 3;
        if (below.least[at] < least[group]) least[group] = below.least[at];
        if (below.most[at] > most[group]) most[group] = below.most[at];
      }
      this.levels.push({ least, most });
    }
  }

  /** Calls `visit` with each group that makes up the events from `from` up to, but not including, `to`. */
  groups(from, to, visit) {
    for (let level = 0; from < to; level++) {
      const isTop = level + 1 === this.levels.length;
      while (from < to && (isTop || from & 7)) visit(level, from++);
      while (from < to && to & 7) visit(level, --to);
      from >>= 3;
      to >>= 3;
    }
  }

  /** Returns the smallest and the largest value of these events. */
  range(from, to) {
    let low = Infinity, high = -Infinity;
    this.groups(from, to, (level, at) => {
      const { least, most } = this.levels[level];
      if (least[at] < low) low = least[at];
      if (most[at] > high) high = most[at];
    });
    return [low, high];
  }

  /** Returns an event with the largest value; `from` if the range is empty. */
  fullest(from, to) {
    let high = -Infinity, best = from, level = 0;
    this.groups(from, to, (of, at) => {
      const value = this.levels[of].most[at];
      if (value <= high) return;
      [high, best, level] = [value, at, of];
    });
    while (level > 0) {
      const { most } = this.levels[--level];
      best *= 8;
      while (most[best] !== high) best++;
    }
    return best;
  }
}

/** Rectangles sorted by their first events; finds those in a range of events quickly. */
class Spans {
  constructor(start, life, bytes, y) {
    this.start = start;
    this.end = life;
    for (let at = 0; at < start.length; at++) this.end[at] += start[at];
    this.bytes = bytes;
    this.y = y;
    this.count = start.length;
    // The last end in each group of 256.
    this.groups = new Uint32Array(Math.ceil(this.count / 256));
    for (let at = 0; at < this.count; at++) {
      if (this.end[at] > this.groups[at >> 8]) this.groups[at >> 8] = this.end[at];
    }
  }

  /** Calls `visit` with the index of each rectangle that overlaps the events from `from` to `to`. */
  each(from, to, visit) {
    let at = 0;
    while (at < this.count && this.start[at] <= to) {
      if ((at & 255) === 0 && this.groups[at >> 8] < from) {
        at += 256;
        continue;
      }
      if (this.end[at] >= from) visit(at);
      at++;
    }
  }

  /** Returns the sum of the bytes after each event. */
  sums(events) {
    const sums = new Float64Array(events);
    for (let at = 0; at < this.count; at++) {
      sums[this.start[at]] += this.bytes[at];
      if (this.end[at] < events) sums[this.end[at]] -= this.bytes[at];
    }
    return summed(sums);
  }
}

/** The number of colours for stacks; stacks that hold less at the peak share the last colour. */
const COLOURS = 12;

/** One recording. */
class Run {
  constructor(layout, buffer) {
    const columns = columnsOf(layout.columns, buffer);
    Object.assign(this, layout);
    this.time = columns.time && summed(columns.time);
    this.stack = columns.stack;
    this.blocks = new Spans(summed(columns.start), columns.life, columns.bytes, columns.y);
    this.live = this.blocks.sums(this.events);
    this.livePyramid = new Pyramid(this.live);
    if (columns.segment_start) {
      const { segment_start, segment_life, segment_bytes, segment_y } = columns;
      this.segments = new Spans(summed(segment_start), segment_life, segment_bytes, segment_y);
      this.reserved = this.segments.sums(this.events);
      this.reservedPyramid = new Pyramid(this.reserved);
    }
    if (columns.plan_y) {
      const { plan_start, plan_life, plan_bytes, plan_y } = columns;
      this.planned = new Spans(summed(plan_start), plan_life, plan_bytes, plan_y);
    }
    this.curveColumns = layout.curves.map((curve, at) => ({ name: curve, bytes: columns["curve_" + at] }));
    this.peak = 0;
    for (let at = 0; at < this.events; at++) if (this.live[at] > this.live[this.peak]) this.peak = at;
    this.rank();
  }

  /** Gives a colour to the groups of stacks that hold the most at the peak. */
  rank() {
    const held = this.heldByGroup(this.peak);
    const largest = [...held.keys()].sort((a, b) => held.get(b) - held.get(a) || a - b);
    this.holders = largest.slice(0, COLOURS - 1);
    const colour = new Uint8Array(this.leads.length).fill(this.holders.length);
    this.holders.forEach((group, at) => { colour[group] = at; });
    this.colour = new Uint8Array(this.blocks.count);
    // The block that ends at an event, counted from 1; at most one block does.
    this.ending = new Uint32Array(this.events);
    for (let at = 0; at < this.blocks.count; at++) {
      this.colour[at] = colour[this.groups[this.stack[at]]];
      if (this.blocks.end[at] < this.events) this.ending[this.blocks.end[at]] = at + 1;
    }
  }

  /** Returns the bytes and the number of blocks of each stack after an event. */
  held(event) {
    const held = new Map();
    this.blocks.each(event, event, (at) => {
      if (this.blocks.end[at] === event) return;
      const stack = this.stack[at];
      const sum = held.get(stack) ?? held.set(stack, { bytes: 0, blocks: 0 }).get(stack);
      sum.bytes += this.blocks.bytes[at];
      sum.blocks++;
    });
    return held;
  }

  /** Returns the bytes of each group of stacks after an event. */
  heldByGroup(event) {
    const held = new Map();
    for (const [stack, { bytes }] of this.held(event)) {
      const group = this.groups[stack];
      held.set(group, (held.get(group) ?? 0) + bytes);
    }
    return held;
  }

  /** Returns the line of a stack that a person should read first. */
  stackName(stack) {
    return this.leads[this.groups[stack]] ?? "(no stack)";
  }
}
