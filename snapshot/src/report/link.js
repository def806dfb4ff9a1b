// Keeps the view in the address of the page, so that a link or a reload shows it again.
"use strict";

/** Returns two numbers that a text such as 3..7 has; nothing if it has no such numbers. */
function pairOf(text) {
  const pair = text?.split("..").map(Number) ?? [];
  return pair.length === 2 && pair.every(Number.isFinite) ? pair : undefined;
}

/**
 * The parts of the view that the address keeps. `get` returns a part as text, or nothing if it is as at
 * first. `set` takes such a text, which may be wrong: a person can write it.
 */
class Link {
  constructor(view) {
    this.view = view;
    this.parts = new Map();
    view.on("rest", () => this.write());
    document.addEventListener("change", () => this.write());
    addEventListener("hashchange", () => this.read());
    this.ofView();
  }

  add(name, get, set) {
    const text = () => {
      const value = get();
      return value === undefined ? undefined : String(value);
    };
    this.parts.set(name, { get: text, set });
  }

  ofView() {
    const { view } = this;
    const { run } = view;
    const end = run.snap(run.events - 1);
    this.add("axis", () => (view.axis === "events" ? undefined : view.axis), (text) => {
      view.setAxis(text === "time" && run.time ? "time" : "events");
    });
    this.add("range", () => {
      const isWhole = view.from === 0 && view.to === view.end;
      return isWhole ? undefined : [view.from, view.to].map((at) => Number(at.toPrecision(12))).join("..");
    }, (text) => view.show(...(pairOf(text) ?? [0, view.end])));
    this.add("event", () => (view.instant === run.peak ? undefined : view.instant + 1), (text) => {
      view.choose(Number.isInteger(Number(text)) && text > 0 ? text - 1 : run.peak);
    });
    this.add("marks", () => {
      const [first, second] = view.between;
      return first === -1 && second === end ? undefined : `${first + 1}..${second + 1}`;
    }, (text) => {
      const marks = pairOf(text) ?? [0, end + 1];
      marks.forEach((mark, at) => view.setMark(at, Math.floor(mark) - 1));
    });
    // Only one block begins at an event.
    const { start } = run.blocks;
    this.add("block", () => (view.block === undefined ? undefined : start[view.block] + 1), (text) => {
      const found = firstFrom(start, text - 1);
      view.chooseBlock(start[found] === text - 1 ? found : undefined);
    });
  }

  /** Adds a control of the page. */
  control(name, id) {
    const control = byId(id);
    const key = control.type === "checkbox" ? "checked" : "value";
    const first = key === "checked" ? false : control.options[0].value;
    this.add(name, () => (control[key] === first ? undefined : String(control[key])), (text) => {
      control[key] = text ?? first;
      if (control.selectedIndex < 0) control.value = first;
      control.dispatchEvent(new Event("change"));
    });
  }

  /** Adds the order of a table. */
  order(name, table) {
    this.add(name, () => table.order, (text) => { table.order = text; });
  }

  /** Shows the view that the address describes. */
  read() {
    const parts = new URLSearchParams(location.hash.slice(1));
    for (const [name, { get, set }] of this.parts) {
      const text = parts.get(name) ?? undefined;
      if (text !== get()) set(text);
    }
    this.isRead = true;
  }

  /** Writes the view to the address. It replaces the last view there. */
  write() {
    if (!this.isRead) return;
    const parts = new URLSearchParams();
    for (const [name, { get }] of this.parts) {
      const text = get();
      if (text !== undefined) parts.set(name, text);
    }
    const hash = String(parts) && `#${parts}`;
    if (hash === location.hash) return;
    try {
      history.replaceState(null, "", location.href.split("#")[0] + hash);
    } catch {
      // A browser may refuse this in a frame, or if it happens often.
    }
  }
}
