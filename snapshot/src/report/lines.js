// Tables by line: what each line of code allocated, what it kept between two marks, and two runs compared.
"use strict";

/** Adds up the columns of the origins of each line that passes the filter. */
function byLine(run, passes) {
  const { columns } = run;
  const lines = new Map();
  const sums = Object.keys(columns).filter((name) => /^origin_(?!stack|lane)/.test(name));
  for (let origin = 0; origin < run.origins; origin++) {
    if (passes && !passes[origin]) continue;
    const group = run.groupOfOrigin(origin);
    let line = lines.get(group);
    if (!line) {
      line = { group, lead: run.leads[group] };
      for (const name of sums) line[name] = 0;
      lines.set(group, line);
    }
    for (const name of sums) line[name] += columns[name][origin];
  }
  return [...lines.values()];
}

const lineTitle = (run) => ({ group }) => `${run.lines[group]}\nClick to show only this line.`;

/** The table of all lines. */
class Lines {
  constructor(view, filter) {
    this.view = view;
    const { run } = view;
    const choice = byId("threshold");
    run.thresholds.forEach((count, at) => {
      element("option", numberOf(count, "other allocation"), choice).value = at;
    });
    choice.addEventListener("change", () => this.show());
    const mean = (sum) => (line) => (line.origin_freed ? line[sum] / line.origin_freed : undefined);
    const temporary = (line) => line[`origin_temporary_${choice.value}`];
    const events = (life) => numberOf(+life.toPrecision(3), "event");
    const columns = [
      { name: "line", value: ({ lead }) => lead },
      { name: "at the peak", title: "Live bytes at the peak of the file",
        value: ({ origin_peak_bytes }) => origin_peak_bytes, text: inBytes },
      { name: "own peak", title: "The most live bytes of the line at one time, on all streams and threads",
        value: ({ group }) => run.columns.group_most[group], text: inBytes },
      { name: "blocks", title: "The number of allocations", value: ({ origin_blocks }) => origin_blocks,
        text: inDigits },
      { name: "allocated", title: "The bytes of all allocations",
        value: ({ origin_bytes }) => origin_bytes, text: inBytes },
      { name: "mean life", title: "The mean life of freed blocks in events", value: mean("origin_life"),
        text: events },
      { name: "temporary", title: "Temporary blocks, as chosen above", value: temporary, text: inDigits },
      { name: "at the end", title: "Bytes that are live at the end", text: inBytes,
        value: ({ origin_end_bytes }) => origin_end_bytes },
      { name: "blocks at the end", value: ({ origin_end_blocks }) => origin_end_blocks, text: inDigits },
    ];
    if (run.time) {
      const time = { name: "mean time", title: "The mean life of freed blocks as time" };
      const value = (line) => mean("origin_lasted")(line);
      columns.splice(6, 0, { ...time, value, text: (life) => timeText(run, life * run.time_unit) });
    }
    this.table = new SortedTable(byId("lines"), {
      caption: "Memory by line", columns, by: 1, act: ({ group }) => filter.byGroup(group),
      actTitle: lineTitle(run),
    });
    view.on("filter", () => this.show());
    this.show();
  }

  show() {
    this.table.show(byLine(this.view.run, this.view.run.passes));
  }
}

/** The lines that allocated blocks between the two marks and keep them after the second. */
class Kept {
  constructor(view, filter) {
    this.view = view;
    const { run } = view;
    this.choices = [byId("mark-first"), byId("mark-second")];
    this.choices.forEach((choice, at) => {
      choice.addEventListener("change", () => view.setMark(at, Number(choice.value)));
    });
    byId("first-here").addEventListener("click", () => view.setMark(0, view.instant));
    byId("second-here").addEventListener("click", () => view.setMark(1, view.instant));
    this.table = new SortedTable(byId("kept"), {
      caption: "Blocks allocated between the marks and still live at the second", by: 1,
      columns: [
        { name: "line", value: ({ lead }) => lead },
        { name: "bytes", value: ({ bytes }) => bytes, text: inBytes },
        { name: "blocks", value: ({ blocks }) => blocks, text: inDigits },
      ],
      act: ({ group }) => filter.byGroup(group), actTitle: lineTitle(run),
    });
    for (const what of ["between", "filter"]) view.on(what, () => this.show());
    this.show();
  }

  /** Offers the start, the end, the peak, the recorded marks, and the chosen event. */
  offer(choice, event) {
    const { run } = this.view;
    const named = run.marks.map(({ kind, name, event }) => {
      const kinds = { phase_start: "start of ", phase_end: "end of ", snapshot: "snapshot " };
      return [event, `${kinds[kind]}${name}`];
    });
    const failed = run.failures.map(({ event }) => [event, "failed request"]);
    const all = [[-1, "start of the file"], [run.peak, "peak"], ...named, ...failed,
      [run.events - 1, "end of the file"]];
    if (!all.some(([at]) => at === event)) all.push([event, "chosen event"]);
    all.sort(([a], [b]) => a - b);
    choice.replaceChildren(...all.map(([at, name]) => {
      const option = element("option", at < 0 ? name : `${name}, event ${inDigits(at + 1)}`);
      option.value = at;
      return option;
    }));
    choice.value = event;
  }

  show() {
    const { run, between } = this.view;
    this.choices.forEach((choice, at) => this.offer(choice, between[at]));
    const sums = new Map();
    for (const [origin, { bytes, blocks }] of run.kept(...between)) {
      if (!run.passes || run.passes[origin]) addTo(sums, run.groupOfOrigin(origin), bytes, blocks);
    }
    const rows = [...sums].map(([group, sum]) => ({ group, lead: run.leads[group], ...sum }));
    const total = rows.reduce((sum, { bytes, blocks }) => [sum[0] + bytes, sum[1] + blocks], [0, 0]);
    byId("kept-text").textContent = between[0] >= between[1]
      ? "The first mark must be before the second."
      : `${inBytes(total[0])} in ${numberOf(total[1], "block")} were allocated between the marks and are ` +
        "still live at the second.";
    this.table.show(rows);
  }
}

/** Compares two runs: their sums, and what each line holds. Returns the table of lines. */
function comparison(view, other, filter, parent) {
  const { run } = view;
  element("h2", "Two runs", parent);
  const peak = (pyramid) => pyramid && Math.max(pyramid.range(0, Infinity)[1], 0);
  const shown = (bytes) => (bytes === undefined ? "–" : inBytes(bytes));
  const row = (name, a, b) => {
    const difference = a === undefined || b === undefined ? "–" : signedBytes(b - a);
    return [name, shown(a), shown(b), difference];
  };
  element("p", `A is ${run.file}, B is ${other.file}.`, parent).className = "hint";
  const end = (of) => of.columns.origin_end_bytes.reduce((sum, bytes) => sum + bytes, 0);
  table(parent, ["", "A", "B", "difference"], [
    row("peak live", peak(run.livePyramid), peak(other.livePyramid)),
    row("peak reserved", peak(run.reservedPyramid), peak(other.reservedPyramid)),
    row("live at the end", end(run), end(other)),
  ]);
  const signedCount = (count) => (count > 0 ? "+" : "") + inDigits(count);
  const pair = (name, key, text, signed) => [
    { name: `${name}, A`, value: ({ a }) => a?.[key] ?? 0, text },
    { name: `${name}, B`, value: ({ b }) => b?.[key] ?? 0, text },
    { name: `${name}, B − A`, value: ({ a, b }) => (b?.[key] ?? 0) - (a?.[key] ?? 0), text: signed },
  ];
  const compared = new SortedTable(parent, {
    caption: "Two runs by line", by: 3,
    columns: [
      { name: "line", value: ({ lead }) => lead },
      ...pair("at the peak", "origin_peak_bytes", inBytes, signedBytes),
      ...pair("blocks", "origin_blocks", inDigits, signedCount),
      ...pair("at the end", "origin_end_bytes", inBytes, signedBytes),
    ],
    act: ({ text }) => filter.byLines(text),
    actTitle: ({ text }) => `${text}\nClick to show only this line.`,
  });
  const show = () => {
    const rows = new Map();
    const add = (of, passes, side) => {
      for (const line of byLine(of, passes)) {
        const text = of.lines[line.group];
        const row = rows.get(text) ?? rows.set(text, { text, lead: line.lead }).get(text);
        const sum = row[side] ??= {};
        for (const key of Object.keys(line)) {
          if (key.startsWith("origin_")) sum[key] = (sum[key] ?? 0) + line[key];
        }
      }
    };
    add(run, run.passes, "a");
    add(other, filter.passesOf(other), "b");
    compared.show([...rows.values()]);
  };
  view.on("filter", show);
  show();
  return compared;
}
