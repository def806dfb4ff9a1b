// The flame graph: how much memory each stack holds, keeps, or allocated.
"use strict";

/** Frames narrower than this share of the graph, or deeper than this, are not drawn. */
const NARROW = 0.002;
const DEEP = 200;

class Flame {
  constructor(view, filter) {
    this.view = view;
    this.run = view.run;
    this.element = byId("flame");
    this.title = byId("flame-title");
    this.kind = byId("flame-kind");
    this.all = byId("all-frames");
    this.inverted = byId("inverted");
    for (const control of [this.kind, this.all, this.inverted]) {
      control.addEventListener("change", () => this.show());
    }
    this.only = byId("flame-only");
    this.only.addEventListener("click", () => filter.byFrame(this.path.at(-1).name));
    for (const what of ["instant", "between", "filter"]) view.on(what, () => this.show());
    view.on("block", () => this.mark());
    this.element.addEventListener("keydown", (event) => this.move(event));
    for (const kind of ["focusin", "pointerover"]) {
      this.element.addEventListener(kind, ({ target }) => {
        if (target.title) say(target.title.replace("\n", ": "));
      });
    }
    this.show();
  }

  /** Moves the focus to a frame above or below, or to its neighbour. */
  move(event) {
    const from = this.boxes.find(({ box }) => box === event.target);
    const step = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: 0, ArrowRight: 0 }[event.key];
    if (!from || step === undefined || event.altKey) return;
    event.preventDefault();
    const row = this.boxes.filter(({ depth }) => depth === from.depth + step);
    row.sort((a, b) => a.left - b.left);
    const { left } = from;
    const to = {
      ArrowUp: () => row.findLast((other) => other.left <= left),
      ArrowDown: () => row.find((other) => left <= other.left && other.left < left + from.width),
      ArrowLeft: () => row.findLast((other) => other.left < left),
      ArrowRight: () => row.find((other) => other.left > left),
    }[event.key]();
    to?.box.focus();
  }

  /** Returns a title, and the sums of each origin that the graph shows. */
  sums() {
    const { run, view } = this;
    const between = () => {
      const [first, second] = view.between;
      const from = first < 0 ? "the start" : `event ${inDigits(first + 1)}`;
      return `Stacks that allocated after ${from} and keep at event ${inDigits(second + 1)}`;
    };
    const kinds = {
      live: () => [`Stacks at event ${inDigits(view.instant + 1)}`, run.held(view.instant)],
      kept: () => [between(), run.kept(...view.between)],
      allocated: () => ["Stacks of all allocations", run.totals("origin_bytes", "origin_blocks")],
      temporary: () => ["Stacks of temporary blocks",
        run.totals("origin_temporary_bytes_0", "origin_temporary_0")],
    };
    return kinds[this.kind.value]();
  }

  /** Adds up the frames of all origins that pass the filter. */
  show() {
    const { run } = this;
    const [title, sums] = this.sums();
    const root = { name: "all", bytes: 0, blocks: 0, children: new Map() };
    for (const [origin, { bytes, blocks }] of sums) {
      if (run.passes && !run.passes[origin]) continue;
      const stack = run.columns.origin_stack[origin];
      let node = root;
      node.bytes += bytes;
      node.blocks += blocks;
      const frames = (this.all.checked ? run.stacks : run.parts)[stack];
      const names = frames.map((frame) => run.frames[frame]);
      if (this.inverted.checked) names.reverse();
      for (const name of names.slice(0, DEEP)) {
        let child = node.children.get(name);
        if (!child) {
          child = { name, bytes: 0, blocks: 0, children: new Map() };
          node.children.set(name, child);
        }
        child.bytes += bytes;
        child.blocks += blocks;
        node = child;
      }
    }
    this.title.textContent = `${title}: ${inBytes(root.bytes)} in ${numberOf(root.blocks, "block")}`;
    this.draw([root]);
  }

  /** Draws a node and its descendants; `path` leads to the node from the root. */
  draw(path) {
    this.path = path;
    this.only.disabled = path.length < 2;
    const boxes = [];
    const hasFocus = this.element.contains(document.activeElement);
    const root = path[0];
    const add = (node, left, width, depth, onPath) => {
      const box = button(node.name, undefined, () => this.draw(onPath));
      box.setAttribute("role", "treeitem");
      box.setAttribute("aria-level", depth + 1);
      const share = inPercent(node.bytes, root.bytes);
      box.title = `${node.name}\n${inBytes(node.bytes)} in ${numberOf(node.blocks, "block")}, ${share}`;
      box.style.left = `${left * 100}%`;
      box.style.width = `${width * 100}%`;
      box.style.top = `${depth * 18}px`;
      box.style.background = css(tint(node.name));
      // Arrows lead to the other frames.
      box.tabIndex = node === path.at(-1) ? 0 : -1;
      boxes.push({ box, depth, left, width });
    };
    path.slice(0, -1).forEach((node, depth) => add(node, 0, 1, depth, path.slice(0, depth + 1)));
    let deepest = path.length;
    const below = [[path.at(-1), 0, 1, path.length - 1, path]];
    while (below.length) {
      const [node, left, width, depth, way] = below.pop();
      add(node, left, width, depth, way);
      deepest = Math.max(deepest, depth + 1);
      let at = left;
      const children = [...node.children.values()].sort((a, b) => b.bytes - a.bytes);
      for (const child of children) {
        const wide = node.bytes ? (width * child.bytes) / node.bytes : 0;
        if (wide >= NARROW) below.push([child, at, wide, depth + 1, [...way, child]]);
        at += wide;
      }
    }
    this.boxes = boxes;
    this.element.replaceChildren(...boxes.map(({ box }) => box));
    if (hasFocus) boxes.find(({ box }) => box.tabIndex === 0).box.focus();
    this.element.style.height = `${Math.min(deepest * 18 + 2, 480)}px`;
    this.mark();
  }

  /** Fades the frames that the search does not find. */
  mark() {
    const { wanted } = this.view;
    for (const box of this.element.children) {
      box.classList.toggle("faded", Boolean(wanted) && !box.textContent.toLowerCase().includes(wanted));
    }
    byId("flame-found").textContent = wanted ? this.found(wanted) : "";
  }

  /** Says how much of the graph the frames hold that the search finds. */
  found(wanted) {
    let bytes = 0;
    const below = [this.path.at(-1)];
    while (below.length) {
      const node = below.pop();
      if (node.name.toLowerCase().includes(wanted)) bytes += node.bytes;
      else below.push(...node.children.values());
    }
    const whole = this.path.at(-1).bytes;
    return `The frames found hold ${inBytes(bytes)}, ${inPercent(bytes, whole)} of the graph.`;
  }
}

/** Returns a colour that depends only on the name; grey for folded frames and for missing ones. */
function tint(name) {
  if (name.startsWith("(")) return [196, 200, 205];
  let hash = 7;
  for (let at = 0; at < name.length; at++) hash = (hash * 31 + name.charCodeAt(at)) >>> 0;
  return [222 + (hash % 33), 140 + ((hash >> 8) % 80), 80 + ((hash >> 16) % 60)];
}
