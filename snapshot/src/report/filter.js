// Searches lines and frames, and limits the charts and tables to what was found.
"use strict";

/** The results that the search shows. */
const RESULTS = 20;

class Filter {
  constructor(view) {
    this.view = view;
    this.search = byId("search");
    this.results = byId("results");
    this.search.addEventListener("input", () => this.find());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.search.value) this.byText(this.search.value);
      if (event.key === "Escape") this.clear();
    });
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
      event.preventDefault();
      this.search.focus();
    });
    byId("no-filter").addEventListener("click", () => this.clear());
    this.lanes();
    this.show();
  }

  /** Offers the streams, threads and pools, if there are several. */
  lanes() {
    const { lanes } = this.view.run;
    this.choices = ["stream", "thread", "pool"].map((kind) => {
      const choice = byId(`of-${kind}`);
      const values = [...new Set(lanes.map((lane) => lane[kind] ?? ""))].sort();
      element("option", `all ${kind}s`, choice).value = "*";
      for (const value of values) element("option", `${kind} ${value || "none"}`, choice).value = value;
      choice.hidden = values.length < 2;
      choice.addEventListener("change", () => this.apply());
      return [kind, choice];
    });
  }

  /** Lists the frames and lines that hold the text, those with the most bytes at the peak first. */
  find() {
    const { run } = this.view;
    const wanted = this.search.value.toLowerCase();
    this.view.wanted = wanted;
    this.view.tell("block");
    this.results.replaceChildren();
    if (!wanted) return;
    this.held ??= heldByFrame(run);
    const found = run.frames.map((name, frame) => ({ name, frame, ...this.held[frame] }))
      .filter(({ name, blocks }) => blocks !== undefined && name.toLowerCase().includes(wanted));
    found.sort((a, b) => b.bytes - a.bytes || b.blocks - a.blocks);
    for (const { name, bytes, blocks } of found.slice(0, RESULTS)) {
      const item = element("li", undefined, this.results);
      const text = `${name}: ${inBytes(bytes)} at the peak, ${numberOf(blocks, "block")} in all`;
      button(text, item, () => this.byFrame(name));
    }
    say(`${numberOf(found.length, "frame")} found. Press Enter to show only these frames.`);
  }

  byText(text) {
    const wanted = text.toLowerCase();
    this.set(`frames with “${text}”`, (run, stack) => run.namesOf(stack).some((name) => {
      return name.toLowerCase().includes(wanted);
    }));
  }

  byFrame(name) {
    this.set(`the frame ${name}`, (run, stack) => run.namesOf(stack).includes(name));
  }

  byGroup(group) {
    this.byLines(this.view.run.lines[group], this.view.run.leads[group]);
  }

  /** Shows only the stacks with these lines; a person reads `lead` first. */
  byLines(lines, lead) {
    this.set(`the line ${lead}`, (run, stack) => run.lines[run.groups[stack]] === lines);
  }

  set(text, accepts) {
    [this.text, this.accepts] = [text, accepts];
    this.results.replaceChildren();
    this.apply();
  }

  clear() {
    this.search.value = "";
    this.view.wanted = undefined;
    for (const [, choice] of this.choices) choice.value = "*";
    this.set(undefined, undefined);
  }

  /** Returns which origins of a run pass; nothing if all do. */
  passesOf(run) {
    const chosen = this.choices.filter(([, choice]) => choice.value !== "*");
    if (!this.accepts && !chosen.length) return undefined;
    const stacks = run.stacks.map((_, stack) => !this.accepts || this.accepts(run, stack));
    const { origin_stack, origin_lane } = run.columns;
    return Uint8Array.from(origin_stack, (stack, origin) => {
      const lane = run.lanes[origin_lane[origin]] ?? {};
      const isOfLane = chosen.every(([kind, choice]) => (lane[kind] ?? "") === choice.value);
      return Number(stacks[stack] && isOfLane);
    });
  }

  apply() {
    this.view.filter(this.passesOf(this.view.run));
    this.show();
  }

  /** Names the part of the page that the filter shows. */
  show() {
    const { run } = this.view;
    const lanes = this.choices.filter(([, choice]) => choice.value !== "*");
    const parts = [this.text, ...lanes.map(([kind, choice]) => `${kind} ${choice.value || "none"}`)];
    const text = parts.filter(Boolean).join(", ");
    byId("filtered").hidden = !text;
    if (!text) return;
    const { origin_peak_bytes, origin_blocks } = run.columns;
    const sum = (column) => column.reduce((sum, value, at) => sum + value * run.passes[at], 0);
    byId("filter-text").textContent = `The page shows only ${text}: ${inBytes(sum(origin_peak_bytes))} are ` +
      `live at the peak, and the file has ${numberOf(sum(origin_blocks), "block")} of it.`;
  }
}

/** Returns the bytes at the peak and the number of blocks of each frame. */
function heldByFrame(run) {
  const held = [];
  const { origin_stack, origin_peak_bytes, origin_blocks } = run.columns;
  origin_stack.forEach((stack, origin) => {
    for (const frame of new Set([...run.parts[stack], ...run.stacks[stack]])) {
      const sum = (held[frame] ??= { bytes: 0, blocks: 0 });
      sum.bytes += origin_peak_bytes[origin];
      sum.blocks += origin_blocks[origin];
    }
  });
  return held;
}
