// One recording: its blocks, and the sums of the blocks that are not in the page.
"use strict";

/** The number of colours for stacks; stacks that hold less at the peak share the last colour. */
const COLOURS = 12;

/** The number of events from one checkpoint to the next. */
const EVERY = 64;

/** Adds blocks to the sum of a key. */
function addTo(sums, key, bytes, blocks = 1) {
  const sum = sums.get(key) ?? sums.set(key, { bytes: 0, blocks: 0 }).get(key);
  sum.bytes += bytes;
  sum.blocks += blocks;
}

/** One recording. */
class Run {
  constructor(layout, bytes) {
    const columns = columnsOf(layout.columns, bytes);
    Object.assign(this, layout);
    this.columns = columns;
    this.total = layout.blocks;
    this.time = columns.time?.map((time) => time * layout.time_unit);
    const { origin_stack, live_low, live_high, reserved_low, reserved_high } = columns;
    this.origins = origin_stack.length;
    if (live_low) this.livePyramid = new Pyramid(live_low, live_high, this.step);
    if (reserved_low) this.reservedPyramid = new Pyramid(reserved_low, reserved_high, this.step);
    const { start, life, bytes: sizes, y, origin } = columns;
    const none = new Float64Array();
    this.blocks = new Spans(start ?? none, life ?? none, sizes ?? none, y);
    this.origin = origin ?? none;
    if (columns.segment_start) {
      const { segment_start, segment_life, segment_bytes, segment_y } = columns;
      this.segments = new Spans(segment_start, segment_life, segment_bytes, segment_y);
    }
    if (columns.plan_y) {
      const { plan_start, plan_life, plan_bytes, plan_y } = columns;
      this.planned = new Spans(plan_start, plan_life, plan_bytes, plan_y);
    }
    this.curveColumns = layout.curves.map((curve, at) => ({ name: curve, bytes: columns["curve_" + at] }));
    this.colourOfGroup = new Uint8Array(this.leads.length).fill(COLOURS - 1);
    this.holders.forEach((group, rank) => { this.colourOfGroup[group] = rank; });
    if (start) this.prepare();
  }

  /** Adds up the packed blocks. */
  prepare() {
    const { blocks, events } = this;
    if (!this.livePyramid) {
      this.live = blocks.sums(events);
      this.livePyramid = new Pyramid(this.live);
      if (this.segments) this.reservedPyramid = new Pyramid(this.segments.sums(events));
    }
    this.colour = new Uint8Array(blocks.count);
    for (let at = 0; at < blocks.count; at++) this.colour[at] = this.colourOfGroup[this.groupOf(at)];
    this.filter(undefined);
  }

  /** Returns whether some blocks are in sums only, which are exact after the marks. */
  get isSummed() {
    return Boolean(this.columns.mark);
  }

  /** Returns the event nearest to this one after which all sums are exact. */
  snap(event) {
    if (!this.isSummed) return Math.max(0, Math.min(event, this.events - 1));
    const { mark } = this.columns;
    const next = Math.min(firstFrom(mark, event), mark.length - 1);
    const isBefore = next > 0 && event - mark[next - 1] < mark[next] - event;
    return mark[isBefore ? next - 1 : next];
  }

  /** Returns the time of an event since the first one, in the unit of the clock. */
  timeOf(event) {
    if (this.step === 1) return this.time[Math.min(event, this.events - 1)];
    const part = Math.min(Math.floor(event / this.step), this.time.length - 2);
    const share = Math.min((event - part * this.step) / this.width(part), 1);
    return this.time[part] + (this.time[part + 1] - this.time[part]) * share;
  }

  /** Returns the last event at or before a time. Between known times, events are equally far apart. */
  eventAtTime(time) {
    const next = firstAbove(this.time, time);
    if (this.step === 1) return Math.max(0, Math.min(next - 1, this.events - 1));
    const part = Math.max(0, Math.min(next - 1, this.time.length - 2));
    const wide = this.time[part + 1] - this.time[part];
    const share = wide ? Math.min((time - this.time[part]) / wide, 1) : 0;
    return Math.min(Math.floor(part * this.step + share * this.width(part)), this.events - 1);
  }

  /** Returns the events from the start of a part to the next known time. The last event has the last one. */
  width(part) {
    return Math.max(1, Math.min(this.step, this.events - 1 - part * this.step));
  }

  stackOf(block) {
    return this.columns.origin_stack[this.origin[block]];
  }

  groupOf(block) {
    return this.groups[this.stackOf(block)];
  }

  groupOfOrigin(origin) {
    return this.groups[this.columns.origin_stack[origin]];
  }

  /** Returns the texts of all frames of a stack, also of folded ones. */
  namesOf(stack) {
    return [...this.stacks[stack], ...this.parts[stack]].map((frame) => this.frames[frame]);
  }

  /** Returns the address of a block in hexadecimal digits, if the page has its range. */
  addressOf(block) {
    const { range_y, range_address } = this.columns;
    if (!range_y) return undefined;
    const at = firstAbove(range_y, this.blocks.y[block]) - 1;
    return `0x${BigInt(range_address[at] + this.blocks.y[block] - range_y[at]).toString(16)}`;
  }

  /** Returns the line of a block that a person should read first. */
  lineOf(block) {
    return this.leads[this.groupOf(block)] ?? "(no stack)";
  }

  /** Calls `visit` with the origin, the bytes and the number of blocks that were live after an event. */
  eachLive(event, visit) {
    this.blocks.each(event, event, (at) => {
      if (this.blocks.end[at] > event) visit(this.origin[at], this.blocks.bytes[at], 1);
    });
    if (!this.isSummed) return;
    const mark = firstFrom(this.columns.mark, event);
    this.eachBand((at, from, to) => from <= mark && mark < to, visit);
  }

  /** Calls `visit` with the sums of small blocks whose first and last marks `accepts` accepts. */
  eachBand(accepts, visit) {
    const { band_origin, band_from, band_length, band_bytes, band_blocks } = this.columns;
    for (let at = 0; at < (band_origin?.length ?? 0); at++) {
      if (!accepts(at, band_from[at], band_from[at] + band_length[at])) continue;
      visit(band_origin[at], band_bytes[at], band_blocks[at]);
    }
  }

  /** Returns the bytes and the number of blocks of each origin after an event. */
  held(event) {
    const held = new Map();
    this.eachLive(event, (origin, bytes, blocks) => addTo(held, origin, bytes, blocks));
    return held;
  }

  /** Returns the bytes of each group of stacks after an event. */
  heldByGroup(event) {
    const held = new Map();
    this.eachLive(event, (origin, bytes) => {
      const group = this.groupOfOrigin(origin);
      held.set(group, (held.get(group) ?? 0) + bytes);
    });
    return held;
  }

  /** Returns what was allocated after the event `first`, and is live after the event `second`, by origin. */
  kept(first, second) {
    const kept = new Map();
    const { blocks, origin } = this;
    blocks.each(second, second, (at) => {
      if (blocks.start[at] > first && blocks.end[at] > second) addTo(kept, origin[at], blocks.bytes[at]);
    });
    if (this.isSummed) {
      const [low, high] = [first, second].map((event) => firstFrom(this.columns.mark, event));
      const after = first < 0 ? -1 : low;
      const isKept = (at, from, to) => after < from && from <= high && high < to;
      this.eachBand(isKept, (origin, bytes, count) => addTo(kept, origin, bytes, count));
    }
    return kept;
  }

  /** Returns a sum of each origin over the whole file, by the names of its columns. */
  totals(bytes, blocks) {
    const totals = new Map();
    for (let origin = 0; origin < this.origins; origin++) {
      const count = this.columns[blocks][origin];
      if (count) addTo(totals, origin, this.columns[bytes][origin], count);
    }
    return totals;
  }

  /** Limits the sums by colour, and the course of live memory, to the origins that pass. */
  filter(passes) {
    this.passes = passes;
    this.filtered = undefined;
    if (this.isSummed) this.addMarks();
    else this.addCheckpoints();
  }

  /** Returns whether a block passes the filter. */
  isShown(block) {
    return !this.passes || this.passes[this.origin[block]] === 1;
  }

  /** Adds up what each colour holds after each mark. */
  addMarks() {
    const { columns: { mark }, blocks, passes } = this;
    const sums = new Float64Array((mark.length + 1) * COLOURS);
    const add = (origin, from, to, bytes) => {
      if (passes && !passes[origin]) return;
      const colour = this.colourOfGroup[this.groupOfOrigin(origin)];
      sums[from * COLOURS + colour] += bytes;
      sums[to * COLOURS + colour] -= bytes;
    };
    for (let at = 0; at < blocks.count; at++) {
      const [from, to] = [blocks.start[at], blocks.end[at]].map((event) => firstFrom(mark, event));
      if (from < to) add(this.origin[at], from, to, blocks.bytes[at]);
    }
    const { band_origin, band_from, band_length, band_bytes } = this.columns;
    for (let at = 0; at < band_origin.length; at++) {
      add(band_origin[at], band_from[at], band_from[at] + band_length[at], band_bytes[at]);
    }
    for (let at = COLOURS; at < sums.length; at++) sums[at] += sums[at - COLOURS];
    this.byMark = sums;
    if (!passes) return;
    const all = new Float64Array(mark.length);
    for (let at = 0; at < mark.length * COLOURS; at++) all[Math.floor(at / COLOURS)] += sums[at];
    this.filtered = new Marked(mark, all);
  }

  /** Notes what each colour holds before every 64th event, so that any event has a checkpoint nearby. */
  addCheckpoints() {
    const { blocks, events } = this;
    if (!this.ending) {
      // The block that ends at an event, counted from 1; at most one block does.
      this.ending = new Uint32Array(events);
      for (let at = 0; at < blocks.count; at++) {
        if (blocks.end[at] < events) this.ending[blocks.end[at]] = at + 1;
      }
    }
    const count = Math.ceil(events / EVERY);
    this.noted = { sums: new Float64Array(count * COLOURS), next: new Uint32Array(count) };
    const sums = new Float64Array(COLOURS);
    let next = 0;
    for (let event = 0; event < events; event++) {
      if (event % EVERY === 0) {
        this.noted.sums.set(sums, (event / EVERY) * COLOURS);
        this.noted.next[event / EVERY] = next;
      }
      next = this.applyEvent(event, next, sums);
    }
    if (this.passes) this.filtered = new Pyramid(blocks.sums(events, (at) => this.isShown(at)));
  }

  /** Applies one event to `sums`; `next` is the first block that is not yet allocated. */
  applyEvent(event, next, sums) {
    const { blocks, ending, colour } = this;
    const ends = ending[event];
    if (ends && this.isShown(ends - 1)) sums[colour[ends - 1]] -= blocks.bytes[ends - 1];
    while (next < blocks.count && blocks.start[next] === event) {
      if (this.isShown(next)) sums[colour[next]] += blocks.bytes[next];
      next++;
    }
    return next;
  }

  /** Writes the bytes of each colour after an event to `sums`. */
  heldByColour(event, sums) {
    if (this.isSummed) {
      const mark = firstFrom(this.columns.mark, this.snap(event));
      for (let rank = 0; rank < COLOURS; rank++) sums[rank] = this.byMark[mark * COLOURS + rank];
      return;
    }
    const from = Math.floor(event / EVERY);
    for (let rank = 0; rank < COLOURS; rank++) sums[rank] = this.noted.sums[from * COLOURS + rank];
    let next = this.noted.next[from];
    for (let at = from * EVERY; at <= event; at++) next = this.applyEvent(at, next, sums);
  }
}
