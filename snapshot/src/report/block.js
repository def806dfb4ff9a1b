// One block with its life and its stack, the largest live blocks, and the events around an instant.
"use strict";

/** The rows of the list of blocks, and of the list of events. */
const LARGEST = 50;
const NEAR = 10;

/** Returns an event as text, with its time. */
function eventText(run, event) {
  const time = run.time ? ` at ${timeText(run, run.timeOf(event))}` : "";
  return `event ${inDigits(event + 1)}${time}`;
}

/** Shows a block that a person chose in a part of the page that may be far from it. */
function openBlock(view, block) {
  view.chooseBlock(block);
  byId("block").scrollIntoView();
}

/** Shows the chosen block. */
class BlockPanel {
  constructor(view, filter) {
    Object.assign(this, { view, filter });
    this.shown = undefined;
    byId("no-block").addEventListener("click", () => view.chooseBlock(undefined));
    view.on("block", () => {
      if (view.block === this.shown) return;
      if (view.block === undefined) this.hide();
      else this.show(view.block);
    });
  }

  /** Returns the focus to where the block was chosen. */
  hide() {
    this.shown = undefined;
    byId("block").hidden = true;
    this.opener?.focus();
    this.opener?.scrollIntoView({ block: "nearest" });
  }

  show(block) {
    const isOutside = !byId("block").contains(document.activeElement);
    if (isOutside) this.opener = document.activeElement;
    this.shown = block;
    const { run } = this.view;
    const panel = byId("block");
    panel.hidden = false;
    const body = byId("block-body");
    body.replaceChildren();
    const list = element("dl", undefined, body);
    for (const [name, value] of this.facts(block)) {
      element("dt", name, list);
      element("dd", value, list);
    }
    element("p", "Stack, the innermost frame first. A frame shows only its blocks:", body);
    const frames = element("ol", undefined, body);
    for (const frame of [...run.stacks[run.stackOf(block)]].reverse()) {
      const name = run.frames[frame];
      button(name, element("li", undefined, frames), () => this.filter.byFrame(name));
    }
    say(`A block of ${inBytes(run.blocks.bytes[block])}, ${run.lineOf(block)}`);
  }

  facts(block) {
    const { run } = this.view;
    const { columns, blocks } = run;
    const [start, end] = [blocks.start[block], blocks.end[block]];
    const isFreed = end < run.events;
    const lane = run.lanes[columns.origin_lane[run.origin[block]]] ?? {};
    const requested = columns.requested?.[block];
    const facts = [
      ...this.sizes(block),
      ["allocated", this.when(block, start, 0)],
      ["free requested", requested ? eventText(run, start + requested) : undefined],
      ["freed", isFreed ? this.when(block, end, 1) : "never"],
      ["life", this.life(block, start, end)],
      ["line", run.lineOf(block)],
      ["stream", lane.stream], ["thread", lane.thread], ["pool", lane.pool],
      ["name", run.tags[(columns.tag?.[block] ?? 0) - 1]],
    ];
    const address = run.addressOf(block);
    if (address !== undefined) facts.push(["address", address]);
    return facts.filter(([, value]) => value !== undefined && value !== null);
  }

  /** Returns the sizes of a block. The file may have only the requested or only the rounded ones. */
  sizes(block) {
    const { run } = this.view;
    const bytes = run.blocks.bytes[block];
    if (run.is_rounded) return [["size", inBytes(bytes)]];
    const rounded = run.columns.rounded?.[block];
    const text = rounded ? `${inBytes(rounded)}, ${inBytes(rounded - bytes)} lost` : "unknown";
    return [["requested", inBytes(bytes)], ["rounded", text]];
  }

  /** Returns when a block began or ended. A long file has the exact times in columns of their own. */
  when(block, event, isEnd) {
    const { run } = this.view;
    const { start_time, lasted } = run.columns;
    if (!start_time) return eventText(run, event);
    const time = (start_time[block] + (isEnd ? lasted[block] : 0)) * run.time_unit;
    return `event ${inDigits(event + 1)} at ${timeText(run, time)}`;
  }

  life(block, start, end) {
    const { run } = this.view;
    const { lasted } = run.columns;
    const events = numberOf(end - start, "event");
    if (!run.time) return events;
    const last = Math.min(end, run.events - 1);
    const time = lasted ? lasted[block] * run.time_unit : run.timeOf(last) - run.timeOf(start);
    return `${events}, ${timeText(run, time)}`;
  }
}

/** The largest blocks that are live at the chosen event. */
class LargestBlocks {
  constructor(view) {
    this.view = view;
    const { run } = view;
    this.table = new SortedTable(byId("largest"), {
      caption: "The largest blocks at the chosen event", by: 1,
      columns: [
        { name: "line", value: (block) => run.lineOf(block) },
        { name: "size", value: (block) => run.blocks.bytes[block], text: inBytes },
        { name: "allocated at event", value: (block) => run.blocks.start[block] + 1, text: inDigits },
        { name: "freed at event", text: inDigits,
          value: (block) => (run.blocks.end[block] < run.events ? run.blocks.end[block] + 1 : undefined) },
        { name: "life", value: (block) => run.blocks.end[block] - run.blocks.start[block],
          text: (life) => numberOf(life, "event") },
      ],
      act: (block) => openBlock(view, block), actTitle: () => "Click to show this block.",
    });
    for (const what of ["instant", "filter"]) view.on(what, () => this.show());
    this.show();
  }

  show() {
    const { run, instant } = this.view;
    const live = [];
    run.blocks.each(instant, instant, (at) => {
      if (run.blocks.end[at] > instant && run.isShown(at)) live.push(at);
    });
    live.sort((a, b) => run.blocks.bytes[b] - run.blocks.bytes[a]);
    this.table.show(live.slice(0, LARGEST));
  }
}

/** The events around the chosen one. */
class Events {
  constructor(view) {
    this.view = view;
    moveByArrows(byId("events"));
    view.on("instant", () => this.show());
    this.show();
  }

  show() {
    const { run, instant } = this.view;
    const [from, to] = [Math.max(0, instant - NEAR), instant + NEAR];
    const rows = [];
    run.blocks.each(from, to, (at) => {
      const { start, end } = run.blocks;
      if (start[at] >= from) rows.push([start[at], "allocate", at]);
      if (end[at] <= to && end[at] < run.events) rows.push([end[at], "free", at]);
    });
    if (run.segments) this.segments(from, to, rows);
    for (const { event, bytes, lead } of run.failures) {
      if (from <= event && event <= to) rows.push([event, "failed request", undefined, bytes, lead ?? ""]);
    }
    for (const { event, kind, name } of run.marks) {
      if (from <= event && event <= to) rows.push([event, `${kind.replace("_", " ")} ${name}`]);
    }
    rows.sort((a, b) => a[0] - b[0]);
    replaceRows(byId("events"), rows.map((row) => this.line(row)));
  }

  segments(from, to, rows) {
    const { start, end, bytes } = this.view.run.segments;
    this.view.run.segments.each(from, to, (at) => {
      if (start[at] >= from) rows.push([start[at], "segment taken", undefined, bytes[at], ""]);
      if (end[at] <= to && end[at] < this.view.run.events) {
        rows.push([end[at], "segment given back", undefined, bytes[at], ""]);
      }
    });
  }

  line([event, what, block, bytes, lead]) {
    const { view } = this;
    const { run } = view;
    const line = document.createElement("tr");
    if (event === view.instant) line.setAttribute("aria-current", "true");
    const first = element("th", undefined, line);
    first.scope = "row";
    button(eventText(run, event), first, () => view.choose(event));
    element("td", what, line);
    element("td", inSize(block === undefined ? bytes : run.blocks.bytes[block]), line);
    const last = element("td", undefined, line);
    if (block === undefined) last.textContent = lead ?? "";
    else button(run.lineOf(block), last, () => openBlock(view, block));
    return line;
  }
}

const inSize = (bytes) => (bytes === undefined ? "" : inBytes(bytes));
