// Builds the page from the data in this file.
"use strict";

/** The names of controls in the link of the page, and their elements. */
const CONTROLS = [
  ["flame", "flame-kind"], ["frames", "all-frames"], ["inverted", "inverted"], ["temporary", "threshold"],
];

const json = (id) => JSON.parse(byId(id).textContent);

async function main() {
  const began = performance.now();
  const summary = json("summary");
  const layout = json("layout");
  const bytes = await unpack(byId("data").textContent);
  const run = new Run(layout.runs[0], bytes);
  const other = layout.runs[1] && new Run(layout.runs[1], bytes);
  head(summary, other);
  summedUp(run);
  findings(summary.explanation);
  const view = new View(run);
  const filter = new Filter(view, other);
  const link = new Link(view);
  const holders = charts(view, other, filter, summary);
  const flame = new Flame(view, filter);
  new BlockPanel(view, filter);
  const orders = { lines: new Lines(view, filter).table, kept: new Kept(view, filter).table };
  orders.largest = new LargestBlocks(view).table;
  new Events(view);
  const tables = byId("tables");
  ledger(summary.explanation, tables);
  if (part("compare", other)) orders.compare = comparison(view, other, filter, byId("compare"));
  facts(summary.explanation, run, tables);
  controls(view, link, () => {
    legends(view, other);
    holders.legend(filter);
  });
  filter.keepIn(link);
  for (const [name, id] of CONTROLS) link.control(name, id);
  for (const [name, table] of Object.entries(orders)) link.order(name, table);
  link.read();
  say(`${numberOf(run.events, "event")}, ${numberOf(run.total, "block")}`);
  view.isSettled = true;
  view.drawAll();
  window.millpond = { run, other, view, flame, filter, drawn_ms: performance.now() - began };
  document.body.dataset.ready = "true";
}

/** Adds the charts. */
function charts(view, other, filter, summary) {
  const { run } = view;
  new Timeline("timeline", view, other);
  const holders = new Holders("holders", view);
  if (part("map-section", run.blocks.y)) {
    const { blocks: spans, segments, height, colour } = run;
    const colourOf = (rank) => paletteOf(run, rank);
    new AddressMap("map", view, { spans, segments, height, colour, colourOf });
  }
  if (part("state-section", run.blocks.y && run.segments)) new State(view);
  if (part("curves-section", run.curves.length)) new Curves("curves", view).legend();
  if (part("plan-section", run.planned)) plan(run, view, summary.plan);
  new Sizes("sizes", view);
  legends(view, other);
  holders.legend(filter);
  return holders;
}

/** Names the colours of the first chart. */
function legends({ run }, other) {
  const names = [[theme().live, "live"], [theme().reserved, "reserved"]];
  legend("timeline-legend", [
    ...names.slice(0, run.reservedPyramid ? 2 : 1),
    ...(other ? [[theme().other, `live in ${other.file}, stretched to this axis`]] : []),
    ...(run.failures.length ? [[theme().bad, "failed request"]] : []),
    [theme().mark, "the two marks"],
  ]);
}

/** Hides a part of the page that has no data; returns whether it has data. */
function part(id, isThere) {
  byId(id).hidden = !isThere;
  return Boolean(isThere);
}

function head({ explanation }, other) {
  const { file, format, sums } = explanation;
  const short = (path) => path.split("/").at(-1);
  const title = byId("title");
  title.textContent = other ? `${short(file)} and ${short(other.file)}` : short(file);
  title.title = other ? `${file} and ${other.file}` : file;
  document.title = `${title.textContent}: memory report`;
  const reserved = sums.peak_reserved_bytes ? `, at most ${inBytes(sums.peak_reserved_bytes)} reserved` : "";
  const failed = sums.failures ? `, ${numberOf(sums.failures, "failed request")}` : "";
  const live = `at most ${inBytes(sums.peak_live_bytes)} live`;
  byId("subtitle").textContent = `${format}: ${live}${reserved}${failed}`;
}

/** Says what of a long file is in sums only. */
function summedUp(run) {
  const texts = [];
  if (run.isSummed) {
    const { mark } = run.columns;
    const [shown, all, marks] = [run.blocks.count, run.total, mark.length].map(inDigits);
    texts.push(`The page has the ${shown} largest of ${all} blocks, by bytes times events. It has sums of ` +
      `the other blocks by stack, exact after ${marks} events. So it moves a chosen event and the two ` +
      "marks to the nearest of these events. Tables by line and sizes count all blocks. The map draws " +
      "small blocks as cells. Of a cell, the page knows the four stacks that cover most of it, so a filter " +
      "shows their parts; the rest of the cell stays grey. Lists of blocks and events lack small blocks.");
  }
  const cut = (count, shown, noun) => {
    if (count > shown) texts.push(`The page has ${inDigits(shown)} of ${numberOf(count, noun)}.`);
  };
  cut(run.mark_count, run.marks.length, "recorded mark");
  cut(run.failure_count, run.failures.length, "failed request");
  cut(run.segment_count, run.segments?.count ?? 0, "segment");
  cut(run.planned_count, run.planned?.count ?? 0, "planned block");
  byId("summed").textContent = texts.join(" ");
}

function plan(run, view, { height, bound, is_optimal }) {
  const colour = new Uint8Array(run.planned.count);
  // Here, colours only distinguish neighbouring blocks.
  for (let at = 0; at < colour.length; at++) colour[at] = at % (PALETTE.length - 1);
  const colourOf = (rank) => PALETTE[rank];
  new AddressMap("plan", view, { spans: run.planned, height: height * 1.02, colour, colourOf, bound });
  const proof = is_optimal ? "No placement needs less" : "A smaller placement may exist";
  byId("plan-text").textContent =
    `The plan places all blocks in ${inBytes(height)}. ${proof}. The line is the least memory that any ` +
    `allocator needs: ${inBytes(bound)}.`;
}

function controls(view, link, recolour) {
  const axes = { events: byId("axis-events"), time: byId("axis-time") };
  axes.time.disabled = !view.run.time;
  if (!view.run.time) axes.time.title = "The file has no times";
  for (const [axis, of] of Object.entries(axes)) of.addEventListener("click", () => view.setAxis(axis));
  view.on("axis", () => {
    for (const [axis, of] of Object.entries(axes)) of.setAttribute("aria-pressed", axis === view.axis);
  });
  byId("zoom-in").addEventListener("click", () => view.zoom(1 / 1.5));
  byId("zoom-out").addEventListener("click", () => view.zoom(1.5));
  byId("whole").addEventListener("click", () => view.show(0, view.end));
  addEventListener("resize", () => view.changed());
  addEventListener("scroll", () => view.changed(), { passive: true });
  const redraw = () => {
    recolour();
    // Pictures of maps have the old colours.
    for (const chart of view.charts) chart.picture = chart.overview = undefined;
    view.changed();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  themes(link, redraw);
}

/** Lets a person choose light or dark colours; the link and the browser remember the choice. */
function themes(link, redraw) {
  const choice = byId("theme");
  const set = (name) => {
    choice.value = ["light", "dark"].includes(name) ? name : "system";
    if (choice.value === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice.value;
    redraw();
  };
  let kept;
  try {
    kept = localStorage.getItem("millpond-theme");
  } catch {
    // Without a storage, the choice holds for this visit.
  }
  set(kept);
  choice.addEventListener("change", () => {
    set(kept = choice.value);
    try {
      localStorage.setItem("millpond-theme", kept);
    } catch {
      // As above.
    }
  });
  const get = () => (choice.value === "system" ? undefined : choice.value);
  link.add("theme", get, (name) => set(name ?? kept));
}

main().catch((error) => say(`This report cannot be shown: ${error.message}`));
