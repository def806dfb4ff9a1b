// The parts that are text: the verdict, the diagnoses, the ledger, the settings.
"use strict";

/** Adds an element with a text whose parts between backticks are code. */
function sentence(name, text, parent) {
  const made = element(name, undefined, parent);
  text.split("`").forEach((part, at) => made.append(at % 2 ? element("code", part) : part));
  return made;
}

/** Shows the verdict, and the diagnoses, each with its evidence and its remedies. */
function findings(explanation) {
  const section = byId("findings");
  sentence("p", explanation.verdict.sentence, section);
  for (const { code, what, evidence, fixes } of explanation.diagnoses) {
    const finding = element("div", undefined, section);
    finding.className = "finding";
    sentence("strong", `${code}: ${what}`, finding);
    for (const line of evidence) sentence("p", line, finding);
    // A remedy is a sentence, or a line to paste.
    for (const line of fixes) {
      if (line.includes("`")) sentence("p", line, finding);
      else element("code", line, finding);
    }
  }
}

/** What only segments tell: parts of reserved memory. */
const PIECES = ["wholly_free_bytes", "pinned_bytes", "rounding_bytes", "held_bytes", "largest_free_bytes"];

/** Shows where the memory is at each explained moment. */
function ledger(explanation, parent) {
  element("h2", "Ledger", parent);
  const names = { peak: "at the peak", failure: "at the failed request", end: "at the end" };
  const isRounded = explanation.not_known.some(({ code }) => code === "rounded");
  const moments = explanation.moments.map((moment) => {
    const unknown = moment.reserved_bytes === null ? PIECES : isRounded ? ["rounding_bytes"] : [];
    return { ...moment, ...Object.fromEntries(unknown.map((key) => [key, null])) };
  });
  const nameOf = ({ occasion, event }) => `${names[occasion]}, event ${inDigits(event)}`;
  const head = ["", ...moments.map(nameOf)];
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
    const order = "if they share it in the order of the host's calls";
    const shares = ` if streams share no memory, ${inBytes(shared)} ${order}`;
    element("p", `Any allocator needs at least ${inBytes(apart)}${shared === apart ? "" : shares}.`, parent);
  }
  for (const { text } of explanation.not_known) {
    sentence("p", `Not known: ${text}`, parent).className = "hint";
  }
}

/** Shows the counts of the file, its details, and the settings of its allocator. */
function facts({ sums, details }, run, parent) {
  element("h2", "The file", parent);
  const lives = run.columns.origin_life.reduce((sum, life) => sum + life, 0);
  const freed = run.columns.origin_freed.reduce((sum, blocks) => sum + blocks, 0);
  const rows = [
    ["events", inDigits(sums.events)], ["allocations", inDigits(sums.allocations)],
    ["frees", inDigits(sums.frees)],
    ["failed requests", inDigits(sums.failures)], ["live blocks at the end", inDigits(sums.live_blocks)],
    ["mean life of a freed block", freed ? `${inDigits(Math.round(lives / freed))} events` : "–"],
    ["different stacks", inDigits(sums.stacks)], ["streams", inDigits(sums.streams)],
  ];
  if (run.time) rows.push(["duration", timeText(run, run.timeOf(run.events - 1))]);
  table(parent, ["", "value"], [...rows, ...details]);
  if (!run.settings.length) return;
  element("h2", "Settings of the allocator", parent);
  table(parent, ["setting", "value"], run.settings);
}
