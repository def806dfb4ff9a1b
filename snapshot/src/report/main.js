// Builds the page from the data in this file.
"use strict";

const json = (id) => JSON.parse(document.getElementById(id).textContent);

async function main() {
  const began = performance.now();
  const summary = json("summary");
  const layout = json("layout");
  const buffer = await unpack(document.getElementById("data").textContent);
  const run = new Run(layout.runs[0], buffer);
  const other = layout.runs[1] && new Run(layout.runs[1], buffer);
  head(summary, other);
  findings(summary.explanation);
  const view = new View(run);
  const flame = new Flame(run);
  view.onInstant = (event) => {
    view.instant = event;
    flame.show(event);
    view.changed();
  };
  new Timeline("timeline", view, other);
  const names = [[theme().live, "live"], [theme().reserved, "reserved"]];
  legend("timeline-legend", [
    ...names.slice(0, run.reserved ? 2 : 1),
    ...(other ? [[theme().other, `live in ${other.file}, stretched to this axis`]] : []),
    ...(run.failures.length ? [[theme().bad, "failed request"]] : []),
  ]);
  new Holders("holders", view).legend();
  if (part("map-section", run.blocks.y)) {
    const { blocks: spans, segments, height, colour } = run;
    const colourOf = (rank) => paletteOf(run, rank);
    new AddressMap("map", view, { spans, segments, height, colour, colourOf });
  }
  if (part("curves-section", run.curves.length)) new Curves("curves", view).legend();
  if (part("plan-section", run.planned)) plan(run, view, summary.plan);
  new Sizes("sizes", view);
  const tables = document.getElementById("tables");
  ledger(summary.explanation, tables);
  if (other) comparison(run, other, tables);
  controls(view);
  flame.show(run.peak);
  say(`${numberOf(run.events, "event")}, ${numberOf(run.blocks.count, "block")}`);
  view.isSettled = true;
  view.drawAll();
  window.millpond = { run, other, view, flame, drawn_ms: performance.now() - began };
  document.body.dataset.ready = "true";
}

/** Hides a part of the page that has no data; returns whether it has data. */
function part(id, isThere) {
  document.getElementById(id).hidden = !isThere;
  return Boolean(isThere);
}

function head({ explanation }, other) {
  const { file, format, sums } = explanation;
  const short = (path) => path.split("/").at(-1);
  const title = document.getElementById("title");
  title.textContent = other ? `${short(file)} and ${short(other.file)}` : short(file);
  title.title = other ? `${file} and ${other.file}` : file;
  document.title = `${title.textContent}: memory report`;
  const reserved = sums.peak_reserved_bytes ? `, at most ${inBytes(sums.peak_reserved_bytes)} reserved` : "";
  const failed = sums.failures ? `, ${sums.failures} failed request${sums.failures > 1 ? "s" : ""}` : "";
  document.getElementById("subtitle").textContent =
    `${format}: at most ${inBytes(sums.peak_live_bytes)} live${reserved}${failed}`;
}

function plan(run, view, { height, bound, is_optimal }) {
  const colour = new Uint8Array(run.planned.count);
  // Here, colours only distinguish neighbouring blocks.
  for (let at = 0; at < colour.length; at++) colour[at] = at % (PALETTE.length - 1);
  const colourOf = (rank) => PALETTE[rank];
  new AddressMap("plan", view, { spans: run.planned, height: height * 1.02, colour, colourOf, bound });
  const proof = is_optimal ? "No placement needs less" : "A smaller placement may exist";
  document.getElementById("plan-text").textContent =
    `The plan places all blocks in ${inBytes(height)}. ${proof}. The line is the least memory that any ` +
    `allocator needs: ${inBytes(bound)}.`;
}

function controls(view) {
  const button = (id) => document.getElementById(id);
  const axes = { events: button("axis-events"), time: button("axis-time") };
  axes.time.disabled = !view.run.time;
  if (!view.run.time) axes.time.title = "The file has no times";
  for (const [axis, of] of Object.entries(axes)) {
    of.addEventListener("click", () => {
      view.setAxis(axis);
      for (const [name, other] of Object.entries(axes)) {
        other.setAttribute("aria-pressed", String(name === axis));
      }
    });
  }
  button("zoom-in").addEventListener("click", () => view.zoom(1 / 1.5));
  button("zoom-out").addEventListener("click", () => view.zoom(1.5));
  button("whole").addEventListener("click", () => view.show(0, view.end));
  addEventListener("resize", () => view.changed());
  addEventListener("scroll", () => view.changed(), { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.changed());
}

main().catch((error) => say(`This report cannot be shown: ${error.message}`));
