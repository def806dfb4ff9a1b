// The segments at the chosen event, each a bar with its blocks.
"use strict";

/** The bars that are drawn, and the height of one, in pixels. */
const BARS = 60;
const BAR = 14;

class State {
  constructor(view) {
    this.view = view;
    this.canvas = byId("state");
    view.charts.push(this);
    for (const what of ["instant", "filter"]) view.on(what, () => this.collect());
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("click", (event) => {
      const found = this.blockAt(event);
      if (found !== undefined) openBlock(view, found);
    });
    this.noun = view.run.isSummed ? "large block" : "block";
    byId("state-hint").textContent = "Each bar is a segment with its blocks, the largest segment first. " +
      `${view.run.isSummed ? "Small blocks are not drawn. " : ""}${view.run.columns.rounded
        ? "Red is memory lost by rounding, if the file has a block's rounded size."
        : "The file has no rounded sizes of blocks."} The table above lists the blocks for the keyboard.`;
    this.collect();
  }

  /** Finds the segments and the blocks in them. */
  collect() {
    const { run, instant } = this.view;
    const live = (spans) => {
      const found = [];
      spans.each(instant, instant, (at) => {
        if (spans.end[at] > instant) found.push(at);
      });
      return found;
    };
    const { segments, blocks } = run;
    const byAddress = live(segments).sort((a, b) => segments.y[a] - segments.y[b]);
    const bar = (at) => ({ from: segments.y[at], bytes: segments.bytes[at], blocks: [], used: 0 });
    this.bars = byAddress.map(bar);
    const starts = this.bars.map(({ from }) => from);
    for (const block of live(blocks)) {
      const bar = this.bars[firstAbove(starts, blocks.y[block]) - 1];
      if (!bar || blocks.y[block] >= bar.from + bar.bytes) continue;
      bar.blocks.push(block);
      bar.used += blocks.bytes[block];
    }
    const all = this.bars.length;
    const used = this.bars.reduce((sum, bar) => sum + bar.used, 0);
    const taken = this.bars.reduce((sum, bar) => sum + bar.bytes, 0);
    this.bars.sort((a, b) => b.bytes - a.bytes);
    this.bars.length = Math.min(all, BARS);
    const shown = all > BARS ? ` The chart shows the ${BARS} largest.` : "";
    byId("state-text").textContent = `After event ${inDigits(instant + 1)}, ${this.noun}s of ` +
      `${inBytes(used)} are in ${numberOf(all, "segment")} of ${inBytes(taken)}.${shown}`;
    this.canvas.style.height = `${Math.max(this.bars.length, 1) * BAR + 2}px`;
  }

  draw() {
    const { canvas } = this;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
    canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
    const context = canvas.getContext("2d");
    const colours = theme();
    const { run } = this.view;
    const most = Math.max(...this.bars.map(({ bytes }) => bytes), 1);
    this.bars.forEach((bar, row) => {
      const y = (row * BAR + 1) * scale, tall = (BAR - 2) * scale;
      const x = (bytes) => (bytes / most) * canvas.width;
      context.fillStyle = colours.free;
      context.fillRect(0, y, x(bar.bytes), tall);
      for (const block of bar.blocks) {
        const left = x(run.blocks.y[block] - bar.from);
        const rounded = run.columns.rounded?.[block];
        const isShown = run.isShown(block);
        context.fillStyle = isShown ? colours.bad : colours.faint;
        if (rounded) context.fillRect(left, y, x(rounded), tall);
        context.fillStyle = isShown ? css(paletteOf(run, run.colour[block])) : colours.faint;
        context.fillRect(left, y, Math.max(x(run.blocks.bytes[block]) - 0.5, 0.5), tall);
      }
    });
  }

  barAt(pointer) {
    const box = this.canvas.getBoundingClientRect();
    return this.bars[Math.floor((pointer.clientY - box.top) / BAR)];
  }

  blockAt(pointer) {
    const bar = this.barAt(pointer);
    if (!bar) return undefined;
    const box = this.canvas.getBoundingClientRect();
    const most = Math.max(...this.bars.map(({ bytes }) => bytes), 1);
    const y = bar.from + ((pointer.clientX - box.left) / box.width) * most;
    const { blocks } = this.view.run;
    return bar.blocks.find((block) => blocks.y[block] <= y && y < blocks.y[block] + blocks.bytes[block]);
  }

  hover(pointer) {
    const bar = this.barAt(pointer);
    const block = this.blockAt(pointer);
    const { run } = this.view;
    if (block !== undefined) say(`a block of ${inBytes(run.blocks.bytes[block])}, ${run.lineOf(block)}`);
    else if (bar) {
      const blocks = numberOf(bar.blocks.length, this.noun);
      say(`a segment of ${inBytes(bar.bytes)} with ${blocks} of ${inBytes(bar.used)}`);
    }
  }
}
