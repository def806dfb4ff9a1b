// Reads the data in this file: the packed columns of each run.
"use strict";

/** Decodes base64. */
function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Unpacks the columns to one array of bytes. */
async function unpack(text) {
  const packed = new Blob([bytesOf(text.trim())]).stream();
  const bytes = await new Response(packed.pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  return new Uint8Array(bytes);
}

/** Returns the columns of the layout by name. The bytes of a number are in planes, the lowest first. */
function columnsOf(layout, bytes) {
  const columns = {};
  for (const { name, offset, length, width, steps } of layout) {
    const column = width > 4 || steps ? new Float64Array(length) : new Uint32Array(length);
    for (let plane = 0, weight = 1; plane < width; plane++, weight *= 256) {
      const from = offset + plane * length;
      for (let at = 0; at < length; at++) column[at] += bytes[from + at] * weight;
    }
    columns[name] = steps ? summed(column) : column;
  }
  return columns;
}

/** Turns differences into sums, in place. */
function summed(column) {
  for (let at = 1; at < column.length; at++) column[at] += column[at - 1];
  return column;
}

/** Returns the first index of a sorted column whose value is at least `value`. */
function firstFrom(column, value) {
  let low = 0, high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns the first index of a sorted column whose value is above `value`. */
function firstAbove(column, value) {
  let low = 0, high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The smallest and largest values of 8, 64, 512, … parts of `step` events; any range is drawn quickly. */
class Pyramid {
  constructor(least, most = least, step = 1) {
    this.step = step;
    this.levels = [{ least, most }];
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

  /** Calls `visit` with each group that makes up the parts from `from` up to, but not including, `to`. */
  groups(from, to, visit) {
    for (let level = 0; from < to; level++) {
      const isTop = level + 1 === this.levels.length;
      while (from < to && (isTop || from & 7)) visit(level, from++);
      while (from < to && to & 7) visit(level, --to);
      from >>= 3;
      to >>= 3;
    }
  }

  /** Calls `visit` with each group of the parts that hold these events. */
  over(from, to, visit) {
    const { length } = this.levels[0].least;
    const last = Math.min(Math.ceil(to / this.step), length);
    this.groups(Math.min(Math.floor(from / this.step), length), last, visit);
  }

  /** Returns the smallest and the largest value of these events. */
  range(from, to) {
    let low = Infinity, high = -Infinity;
    this.over(from, to, (level, at) => {
      const { least, most } = this.levels[level];
      if (least[at] < low) low = least[at];
      if (most[at] > high) high = most[at];
    });
    return [low, high];
  }

  /** Returns the first event of a part with the largest value; `from` if the range is empty. */
  fullest(from, to) {
    let high = -Infinity, best = Math.floor(from / this.step), level = 0;
    this.over(from, to, (of, at) => {
      const value = this.levels[of].most[at];
      if (value <= high) return;
      [high, best, level] = [value, at, of];
    });
    while (level > 0) {
      const { most } = this.levels[--level];
      best *= 8;
      while (most[best] !== high) best++;
    }
    return best * this.step;
  }
}

/** Values after marks only, such as sums that are exact there. */
class Marked {
  constructor(marks, values) {
    this.marks = marks;
    this.pyramid = new Pyramid(values);
  }

  /** Returns the smallest and the largest value at the marks in a range, or at the last mark before it. */
  range(from, to) {
    const first = firstFrom(this.marks, from), last = firstFrom(this.marks, to);
    if (first < last) return this.pyramid.range(first, last);
    const value = first ? this.pyramid.levels[0].most[first - 1] : 0;
    return [value, value];
  }
}

/** Rectangles sorted by their first events; finds those in a range of events quickly. */
class Spans {
  constructor(start, life, bytes, y) {
    this.start = start;
    this.end = Float64Array.from(life);
    for (let at = 0; at < start.length; at++) this.end[at] += start[at];
    this.bytes = bytes;
    this.y = y;
    this.count = start.length;
    // The last end in each group of 256.
    this.groups = new Float64Array(Math.ceil(this.count / 256));
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

  /** Returns the sum of the bytes after each event, of the rectangles that `passes` accepts. */
  sums(events, passes = () => true) {
    const sums = new Float64Array(events);
    for (let at = 0; at < this.count; at++) {
      if (!passes(at)) continue;
      sums[this.start[at]] += this.bytes[at];
      if (this.end[at] < events) sums[this.end[at]] -= this.bytes[at];
    }
    return summed(sums);
  }
}
