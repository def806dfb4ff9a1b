// The ledger, what is wrong, and two runs beside each other, as text.
"use strict";

/** An element with a text in it; texts of the file are never markup. */
function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

function table(parent, head, rows) {
  const made = element("table", undefined, parent);
  const line = (cells, kind) => {
    const row = element("tr", undefined, made);
    for (const cell of cells) element(kind, cell, row);
  };
  line(head, "th");
  for (const row of rows) line(row, "td");
}

/** The diagnoses, each with its evidence and the lines that help. */
function findings(explanation) {
  const section = document.getElementById("findings");
  if (!explanation.diagnoses.length) element("p", "Nothing is wrong that the recording shows.", section);
  for (const { code, what, evidence, fixes } of explanation.diagnoses) {
    const finding = element("div", undefined, section);
    finding.className = "finding";
    element("strong", `${code}: ${what}`, finding);
    for (const line of evidence) element("p", line, finding);
    for (const line of fixes) element("code", line, finding);
  }
}

/** Where the memory was, at each moment that is explained. */
function ledger(explanation, parent) {
  element("h2", "Ledger", parent);
  const names = { peak: "at the peak", failure: "at a failed request", end: "at the end" };
  const moments = explanation.moments;
  const head = ["", ...moments.map(({ occasion, event }) => `${names[occasion]}, event ${event + 1}`)];
  const rows = [
    ["wanted", "wanted_bytes"], ["reserved", "reserved_bytes"], ["active", "active_bytes"],
    ["wholly free", "wholly_free_bytes"], ["pinned by live blocks", "pinned_bytes"],
    ["rounding, of what is active", "rounding_bytes"], ["held for streams", "held_bytes"],
    ["largest free piece", "largest_free_bytes"], ["free on the device", "device_free_bytes"],
    ["outside of the allocator", "outside_bytes"],
  ];
  const isKnown = ([, key]) => moments.some((moment) => moment[key] !== null && moment[key] !== undefined);
  const cell = (value) => (value === null || value === undefined ? "–" : inBytes(value));
  table(parent, head, rows.filter(isKnown).map(([name, key]) => {
    return [name, ...moments.map((moment) => cell(moment[key]))];
  }));
  const { bound_host_order: shared, bound_stream_safe: apart } = explanation;
  if (apart !== null) {
    const text = `Any allocator needs at least ${inBytes(apart)} with streams apart, ${inBytes(shared)} in ` +
      "the order of the host's calls.";
    element("p", text, parent);
  }
  for (const { text } of explanation.not_known) element("p", `Not known: ${text}`, parent).className = "hint";
}

/** Two runs: their sums, and the stacks whose bytes at the peak differ the most. */
function comparison(run, other, parent) {
  element("h2", "Two runs", parent);
  const most = (values) => (values ? values.reduce((high, value) => Math.max(high, value), 0) : undefined);
  const difference = (a, b) => (a === undefined || b === undefined ? "–" : signed(b - a));
  const signed = (bytes) => (bytes > 0 ? "+" : "") + inBytes(bytes);
  const shown = (bytes) => (bytes === undefined ? "–" : inBytes(bytes));
  const row = (name, a, b) => [name, shown(a), shown(b), difference(a, b)];
  table(parent, ["", run.file, other.file, "difference"], [
    row("most live", run.live[run.peak], other.live[other.peak]),
    row("most reserved", most(run.reserved), most(other.reserved)),
    row("live at the end", run.live[run.events - 1] ?? 0, other.live[other.events - 1] ?? 0),
  ]);
  const held = (of) => {
    const sums = new Map();
    for (const [stack, { bytes }] of of.held(of.peak)) {
      const text = of.stackText(stack);
      sums.set(text, (sums.get(text) ?? 0) + bytes);
    }
    return sums;
  };
  const [a, b] = [held(run), held(other)];
  const texts = [...new Set([...a.keys(), ...b.keys()])];
  const by = (text) => (b.get(text) ?? 0) - (a.get(text) ?? 0);
  texts.sort((x, y) => Math.abs(by(y)) - Math.abs(by(x)));
  const rows = texts.filter((text) => by(text) !== 0).slice(0, 20).map((text) => {
    return row(text.split("\n").at(-1) || "(no stack)", a.get(text) ?? 0, b.get(text) ?? 0);
  });
  if (rows.length) table(parent, ["stacks at the peak", run.file, other.file, "difference"], rows);
}
