// The parts that are text: the diagnoses, the ledger, and the comparison of two runs.
"use strict";

/** Adds an element with a text; texts of the file are never markup. */
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

/** Shows the verdict, and the diagnoses, each with its evidence and its remedies. */
function findings(explanation) {
  const section = document.getElementById("findings");
  element("p", explanation.verdict.sentence, section);
  for (const { code, what, evidence, fixes } of explanation.diagnoses) {
    const finding = element("div", undefined, section);
    finding.className = "finding";
    element("strong", `${code}: ${what}`, finding);
    for (const line of evidence) element("p", line, finding);
    for (const line of fixes) element("code", line, finding);
  }
}

/** Shows where the memory is at each explained moment. */
function ledger(explanation, parent) {
  element("h2", "Ledger", parent);
  const names = { peak: "at the peak", failure: "at the failed request", end: "at the end" };
  const moments = explanation.moments;
  const head = ["", ...moments.map(({ occasion, event }) => `${names[occasion]}, event ${event + 1}`)];
  const rows = [
    ["wanted by the failed request", "wanted_bytes"],
    ["reserved", "reserved_bytes"], ["active", "active_bytes"],
    ["wholly free", "wholly_free_bytes"], ["pinned by live blocks", "pinned_bytes"],
    ["rounding, part of active", "rounding_bytes"], ["held for streams, part of active", "held_bytes"],
    ["largest free piece", "largest_free_bytes"], ["free on the device", "device_free_bytes"],
    ["used outside of the allocator", "outside_bytes"],
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

/** Compares two runs: their sums, and the stacks whose bytes at the peak differ most. */
function comparison(run, other, parent) {
  element("h2", "Two runs", parent);
  const most = (values) => (values ? values.reduce((high, value) => Math.max(high, value), 0) : undefined);
  const difference = (a, b) => (a === undefined || b === undefined ? "–" : signed(b - a));
  const signed = (bytes) => (bytes > 0 ? "+" : "") + inBytes(bytes);
  const shown = (bytes) => (bytes === undefined ? "–" : inBytes(bytes));
  const row = (name, a, b) => [name, shown(a), shown(b), difference(a, b)];
  table(parent, ["", run.file, other.file, "difference"], [
    row("peak live", run.live[run.peak], other.live[other.peak]),
    row("peak reserved", most(run.reserved), most(other.reserved)),
    row("live at the end", run.live[run.events - 1] ?? 0, other.live[other.events - 1] ?? 0),
  ]);
  const leads = new Map();
  const held = (of) => {
    const sums = new Map();
    for (const [group, bytes] of of.heldByGroup(of.peak)) {
      const text = of.lines[group];
      leads.set(text, of.leads[group]);
      sums.set(text, (sums.get(text) ?? 0) + bytes);
    }
    return sums;
  };
  const [a, b] = [held(run), held(other)];
  const texts = [...new Set([...a.keys(), ...b.keys()])];
  const by = (text) => (b.get(text) ?? 0) - (a.get(text) ?? 0);
  texts.sort((x, y) => Math.abs(by(y)) - Math.abs(by(x)));
  const rows = texts.filter((text) => by(text) !== 0).slice(0, 20).map((text) => {
    return row(leads.get(text), a.get(text) ?? 0, b.get(text) ?? 0);
  });
  if (rows.length) table(parent, ["stacks at the peak", run.file, other.file, "difference"], rows);
}
