// Numbers as text, each with its unit, and elements with text.
"use strict";

/** Returns bytes as text, in a fitting unit. */
function inBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, value = bytes;
  while (Math.abs(value) >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit++;
  }
  return `${unit ? value.toFixed(Math.abs(value) < 10 ? 2 : 1) : value} ${units[unit]}`;
}

/** Returns a difference of bytes as text. */
const signedBytes = (bytes) => (bytes > 0 ? "+" : "") + inBytes(bytes);

/** Returns a count as text. */
const inDigits = (count) => count.toLocaleString("en");

/** Returns a count and its noun: 1 block, 2 blocks. */
function numberOf(count, noun) {
  return `${inDigits(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Returns a share as text. */
const inPercent = (part, whole) => `${whole ? ((100 * part) / whole).toFixed(1) : 0} %`;

/** Returns nanoseconds as text, in a fitting unit. */
function inTime(ns) {
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const [size, unit] = units.find(([size]) => Math.abs(ns) >= size) ?? [1, "ns"];
  return `${+(ns / size).toPrecision(4)} ${unit}`;
}

/** Returns a time of a run as text. */
const timeText = (run, time) => (run.clock === "steps" ? numberOf(Math.round(time), "step") : inTime(time));

/** Returns the element with an id. */
const byId = (id) => document.getElementById(id);

/** Adds an element with a text; texts of the file are never markup. */
function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

/** Adds a button. */
function button(text, parent, act) {
  const made = element("button", text, parent);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

/** Shows a sentence above the charts. */
function say(text) {
  byId("readout").textContent = text;
}

/** Fills a legend with colours and names. */
function legend(id, entries) {
  byId(id).replaceChildren(...entries.map(([colour, text, title, act]) => {
    const item = act ? button(undefined, undefined, act) : document.createElement("span");
    const patch = document.createElement("i");
    patch.style.background = colour;
    item.append(patch, text);
    if (title) item.title = title;
    return item;
  }));
}
