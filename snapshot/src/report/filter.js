// Searches lines and frames, and limits the charts and tables to what was found.
"use strict";

/** The results that the search shows. */
const RESULTS = 20;

class Filter {
  constructor(view, other) {
    Object.assign(this, { view, other });
    this.search = byId("search");
    this.results = byId("results");
    this.search.addEventListener("input", () => this.find());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.search.value) this.byText(this.search.value);
      if (event.key === "ArrowDown") this.results.querySelector("button")?.focus();
    });
    moveByArrows(this.results);
    addEventListener("keydown", (event) => this.key(event));
    byId("no-filter").addEventListener("click", () => this.clear());
    this.lanes();
    this.show();
  }

  /** Escape first takes back the last thing that a person chose. */
  key(event) {
    const field = event.target.closest?.("input[type=search], select");
    if (field && field !== this.search) return;
    if (event.key === "/" && !field) {
      event.preventDefault();
      this.search.focus();
    }
    if (event.key !== "Escape") return;
    if (field || this.view.block === undefined) this.clear();
    else this.view.chooseBlock(undefined);
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
    const next = found.length ? " Press Enter to show only these frames." : "";
    say(`${numberOf(found.length, "frame")} found.${next}`);
  }

  byText(text) {
    this.choose("text", text);
  }

  byFrame(name) {
    this.choose("frame", name);
  }

  byGroup(group) {
    this.byLines(this.view.run.lines[group]);
  }

  /** Shows only the stacks with these lines. */
  byLines(lines) {
    this.choose("line", lines);
  }

  /** Shows only the stacks that match a value: a text in their frames, a frame, or their lines. */
  choose(kind, value) {
    const wanted = value.toLowerCase();
    const hasText = (name) => name.toLowerCase().includes(wanted);
    const kinds = {
      text: [`frames with “${value}”`, (run, stack) => run.namesOf(stack).some(hasText)],
      frame: [`the frame ${value}`, (run, stack) => run.namesOf(stack).includes(value)],
      line: [`the line ${this.leadOf(value)}`, (run, stack) => run.lines[run.groups[stack]] === value],
    };
    if (!Object.hasOwn(kinds, kind)) return;
    [this.text, this.accepts] = kinds[kind];
    this.chosen = `${kind}:${value}`;
    if (this.results.contains(document.activeElement)) this.search.focus();
    this.results.replaceChildren();
    this.apply();
  }

  /** Returns what a person reads first of some lines. */
  leadOf(lines) {
    const has = (run) => run?.lines.includes(lines);
    const run = [this.view.run, this.other].find(has);
    return run ? run.leads[run.lines.indexOf(lines)] : lines.split("\n").at(-1);
  }

  /** Adds the filter to the link of the page. */
  keepIn(link) {
    for (const [kind, choice] of this.choices) link.control(kind, choice.id);
    link.add("only", () => this.chosen, (text = "") => {
      const at = text.indexOf(":");
      this.drop();
      this.choose(text.slice(0, at), text.slice(at + 1));
      if (!this.chosen) this.apply();
    });
  }

  /** Forgets the chosen stacks. */
  drop() {
    this.text = this.accepts = this.chosen = undefined;
  }

  clear() {
    this.search.value = "";
    this.view.wanted = undefined;
    for (const [, choice] of this.choices) choice.value = "*";
    this.results.replaceChildren();
    this.drop();
    this.apply();
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
    const blocks = numberOf(sum(origin_blocks), "block");
    byId("filter-text").textContent = `Live memory, addresses, stacks and lines show only ${text}: ` +
      `${inBytes(sum(origin_peak_bytes))} at the peak, ${blocks} in all.`;
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
