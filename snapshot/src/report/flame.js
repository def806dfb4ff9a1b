// The flame graph of one event: how much live memory each stack holds.
"use strict";

/** Frames narrower than this share of the graph, or deeper than this, are not drawn. */
const NARROW = 0.002;
const DEEP = 200;

class Flame {
  constructor(run) {
    this.run = run;
    this.element = document.getElementById("flame");
    this.title = document.getElementById("flame-title");
    const all = document.getElementById("all-frames");
    all.addEventListener("change", () => {
      this.hasAllFrames = all.checked;
      this.show(this.event);
    });
  }

  /** Shows the live memory after an event. */
  show(event) {
    this.event = event;
    const root = { name: "all", bytes: 0, blocks: 0, children: new Map() };
    for (const [stack, { bytes, blocks }] of this.run.held(event)) {
      let node = root;
      node.bytes += bytes;
      node.blocks += blocks;
      const frames = (this.hasAllFrames ? this.run.stacks : this.run.parts)[stack];
      const names = frames.map((frame) => this.run.frames[frame]);
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
    this.title.textContent = `Stacks at event ${event + 1}: ${inBytes(root.bytes)} in ${numberOf(root.blocks, "block")}`;
    this.draw([root]);
  }

  /** Draws a node and its descendants; `path` leads to the node from the root. */
  draw(path) {
    const boxes = [];
    const add = (node, left, width, depth, onPath) => {
      const box = document.createElement("button");
      box.setAttribute("role", "treeitem");
      box.textContent = node.name;
      box.title = `${node.name}\n${inBytes(node.bytes)} in ${numberOf(node.blocks, "block")}`;
      box.style.left = `${left * 100}%`;
      box.style.width = `${width * 100}%`;
      box.style.top = `${depth * 18}px`;
      box.style.background = css(tint(node.name));
      box.addEventListener("click", () => this.draw(onPath));
      boxes.push(box);
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
    this.element.replaceChildren(...boxes);
    this.element.style.height = `${Math.min(deepest * 18 + 2, 480)}px`;
  }
}

/** Returns a colour that depends only on the name; grey for folded frames and for missing ones. */
function tint(name) {
  if (name.startsWith("(")) return [196, 200, 205];
  let hash = 7;
  for (let at = 0; at < name.length; at++) hash = (hash * 31 + name.charCodeAt(at)) >>> 0;
  return [222 + (hash % 33), 140 + ((hash >> 8) % 80), 80 + ((hash >> 16) % 60)];
}
