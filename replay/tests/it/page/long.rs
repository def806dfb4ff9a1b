//! The page of a file with more blocks than a page has.

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::{Value, json};

use super::browser::Browser;
use super::{is_silent, page};
use crate::support::Folder;

/// The stacks of the log.
const STACKS: usize = 16;

/// The nanoseconds from one event to the next.
const EVENT_NS: usize = 7000;

/// A block of the log: its events, its bytes, its stack.
struct Block {
    start: usize,
    end: usize,
    bytes: u64,
    stack: usize,
    address: u64,
}

/// The first address of the log.
const FIRST: u64 = 0x7f00_0000_0000;

/// Returns a log of 240,000 blocks, and its blocks. Most live shortly; some large ones live long. At the end,
/// the allocator takes a segment, which holds all blocks.
fn long() -> (String, Vec<Block>) {
    let mut log = String::from("Thread,Time,Action,Pointer,Size,Stream,UnixNs,Stack,Notes\n");
    let (mut random, mut blocks, mut live) = (11_u64, Vec::new(), Vec::<usize>::new());
    let mut step = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    let mut notes: String = (1..=STACKS).fold(String::new(), |mut notes, stack| {
        let _ = write!(notes, "frame {stack} {stack} layer{stack} /data/me/model.py;stack {stack} {stack};");
        notes
    });
    notes.pop();
    let mut event = 0;
    while blocks.len() < 240_000 {
        let time = 1_700_000_000_000_000_000 + event * EVENT_NS;
        if live.len() < 300 + step(100) as usize {
            let stack = 1 + step(STACKS as u64) as usize;
            let bytes = if step(50) == 0 { 1 << 20 } else { 512 * (1 + step(8)) };
            let address = FIRST + blocks.len() as u64 % 4096 * (1 << 20);
            writeln!(log, "1,0,allocate,{address:#x},{bytes},0,{time},{stack},{notes}").unwrap();
            notes.clear();
            live.push(blocks.len());
            blocks.push(Block { start: event, end: usize::MAX, bytes, stack, address });
        } else {
            let block = live.swap_remove(step(live.len() as u64) as usize);
            let Block { address, bytes, .. } = blocks[block];
            writeln!(log, "1,0,free,{address:#x},{bytes},0,{time},,").unwrap();
            blocks[block].end = event;
        }
        event += 1;
    }
    let Block { address, bytes, end, .. } = &mut blocks[live[0]];
    *end = event + 1;
    let time = 1_700_000_000_000_000_000 + *end * EVENT_NS;
    let segment = format!("segment_alloc {FIRST:#x} {} 1 0 - - 0:0 0 -", 4096_u64 << 20);
    writeln!(log, "1,0,free,{address:#x},{bytes},0,{time},,{segment}").unwrap();
    (log, blocks)
}

/// Returns the bytes and the number of blocks that a condition accepts.
fn sum<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Value {
    let (mut bytes, mut count) = (0, 0);
    for block in blocks {
        bytes += block.bytes;
        count += 1;
    }
    json!([bytes, count])
}

#[test]
fn sums_of_a_long_file_are_exact() {
    let folder = Folder::new();
    let (log, blocks) = long();
    let file = folder.write("long.csv", log);
    let page = page(&folder, &[&file], &["--plan-time", "0"]);
    let bytes = std::fs::metadata(&page).unwrap().len();
    assert!(bytes < 4 << 20, "{bytes} bytes of HTML");
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    assert_eq!(browser.evaluate("millpond.run.total"), blocks.len());
    let kept = browser.number("millpond.run.blocks.count");
    assert!((190_000.0..=200_000.0).contains(&kept), "{kept}");
    assert!(browser.text("document.getElementById('summed').textContent").contains("largest of 240,000"));

    // Live memory after marks, and memory kept between two of them.
    let total = |of: &str| {
        format!(
            "[...millpond.run.{of}.values()].reduce(([a, b], {{ bytes, blocks }}) => \
             [a + bytes, b + blocks], [0, 0])"
        )
    };
    let marks: Vec<usize> =
        serde_json::from_value(browser.evaluate("[...millpond.run.columns.mark]")).unwrap();
    assert!(marks.len() > 500, "{}", marks.len());
    for share in [1, 3, 5, 8] {
        let (first, second) = (marks[marks.len() * share / 10], marks[marks.len() * (share + 1) / 10]);
        let is_live = |block: &&Block| block.start <= second && second < block.end;
        let live = browser.evaluate(&total(&format!("held({second})")));
        assert_eq!(live, sum(blocks.iter().filter(is_live)), "after event {second}");
        let is_kept = |block: &&Block| is_live(block) && block.start > first;
        let kept = browser.evaluate(&total(&format!("kept({first}, {second})")));
        assert_eq!(kept, sum(blocks.iter().filter(is_kept)), "from {first} to {second}");
        let colours = browser.number(&format!(
            "(() => {{ const sums = new Float64Array(COLOURS); millpond.run.heldByColour({second}, sums); \
             return sums.reduce((a, b) => a + b, 0); }})()"
        ));
        assert_eq!(json!(colours as u64), live[0]);
    }
    from_the_start(&mut browser, &blocks, &total("kept(-1, millpond.run.peak)"));

    // The tables by line count all blocks.
    let of_line = |stack: usize| blocks.iter().filter(move |block| block.stack == stack);
    for stack in [1, STACKS] {
        let line = format!(
            "byLine(millpond.run).filter(({{ lead }}) => lead.startsWith('model.py:{stack} ')) \
             .map(line => [line.origin_bytes, line.origin_blocks])[0]"
        );
        assert_eq!(browser.evaluate(&line), sum(of_line(stack)));
    }
    // The course has the peak, and a filter shows one line of it.
    let peak = browser.number("millpond.run.peak") as usize;
    let at_peak = |block: &&Block| block.start <= peak && peak < block.end;
    let most = sum(blocks.iter().filter(at_peak))[0].clone();
    assert_eq!(
        browser.number("millpond.run.livePyramid.range(0, millpond.run.events)[1]"),
        most.as_f64().unwrap()
    );
    browser.evaluate("millpond.filter.byFrame('model.py:3 in layer3')");
    let shown = browser.number(&format!("millpond.run.filtered.range({peak}, {peak} + 1)[1]"));
    let of_three = sum(of_line(3).filter(at_peak))[0].clone();
    assert_eq!(Some(shown), of_three.as_f64());
    a_filter_splits_cells(&mut browser, &blocks);
    times_of_blocks(&mut browser);
    is_silent(&browser);
}

/// Checks which cells of the map show small blocks of the third stack, which the filter chose.
fn a_filter_splits_cells(browser: &mut Browser, blocks: &[Block]) {
    let large: HashSet<usize> =
        serde_json::from_value(browser.evaluate("[...millpond.run.blocks.start]")).unwrap();
    let run = browser.evaluate(
        "(() => { const { events, height, cells } = millpond.run; return [events, height, ...cells]; })()",
    );
    let [events, height, columns, rows] = serde_json::from_value::<[f64; 4]>(run).unwrap();
    let mut expected: HashSet<u64> = HashSet::new();
    for block in blocks.iter().filter(|block| block.stack == 3 && !large.contains(&block.start)) {
        let [left, right] =
            [block.start, block.end].map(|at| (at.min(events as usize) as f64 / events * columns) as u64);
        let y = block.address - FIRST;
        let [low, high] = [y, y + block.bytes].map(|at| (at as f64 / height * rows) as u64);
        for row in low..=high {
            expected.extend((left..=right).map(|column| row * columns as u64 + column));
        }
    }
    let found = browser.evaluate(
        "(() => { const { cells } = millpond.view.charts.find(({ canvas }) => canvas.id === 'map');
          const shown = [], wrong = []; let unknown = 0, example;
          cells.shares.forEach((share, cell) => {
            let part = 0, all = 0;
            cells.each(cell, (share, { passes }) => { all += share; if (passes) part += share;
              if (passes === undefined) unknown++; });
            if (Math.abs(all - share / 255) > 0.01) wrong.push([cell, all, share]);
            if (part) shown.push(cell);
            if (part && part < 0.9 * all) example ??= cell;
          });
          const text = cells.at((example % cells.columns + 0.5) / cells.columns,
            (Math.floor(example / cells.columns) + 0.5) / cells.rows);
          return { shown, wrong, unknown, text }; })()",
    );
    assert_eq!(found["wrong"], json!([]));
    let shown: HashSet<u64> = serde_json::from_value(found["shown"].clone()).unwrap();
    assert!(shown.is_subset(&expected), "{:?}", shown.difference(&expected).collect::<Vec<_>>());
    // A cell lacks a stack that covers less than a millionth of it, and a fifth stack.
    let (some, all) = (shown.len(), expected.len());
    assert!(some > 1000 && some * 10 > all * 8, "{some} of {all}");
    let text = found["text"].as_str().unwrap();
    assert!(text.contains("small blocks cover") && text.contains("the filter shows"), "{text}");
    // The segments lack small blocks, and say so.
    browser.evaluate("millpond.view.choose(millpond.run.events - 1)");
    let segments = browser.text("document.getElementById('state-text').textContent");
    assert!(segments.contains("large blocks of") && segments.contains("1 segment of 4.00 GiB"), "{segments}");
    let hint = browser.text("document.getElementById('state-hint').textContent");
    assert!(hint.contains("Small blocks are not drawn") && hint.contains("no rounded sizes"), "{hint}");
}

/// Checks the times of blocks, and the axis of time.
fn times_of_blocks(browser: &mut Browser) {
    let wrong = browser.evaluate(&format!(
        "(() => {{ const {{ run, view }} = millpond, {{ start_time, lasted }} = run.columns, wrong = [];
          for (let at = 0; at < run.blocks.count; at += 997) {{
            const [start, end] = [run.blocks.start[at], Math.min(run.blocks.end[at], run.events - 1)];
            const began = start_time[at] * run.time_unit, ended = began + lasted[at] * run.time_unit;
            if (began !== start * {EVENT_NS} || ended !== end * {EVENT_NS}) wrong.push([start, began, ended]);
            const on_axis = run.eventAtTime(run.timeOf(start));
            if (Math.abs(on_axis - start) > 1) wrong.push([start, on_axis, 'on the axis']);
          }}
          view.setAxis('time');
          if (view.end !== (run.events - 1) * {EVENT_NS}) wrong.push(view.end);
          return wrong; }})()"
    ));
    assert_eq!(wrong, json!([]));
}

/// Checks the memory kept from before the first event on.
fn from_the_start(browser: &mut Browser, blocks: &[Block], kept: &str) {
    let peak = browser.number("millpond.run.peak") as usize;
    let is_live = |block: &&Block| block.start <= peak && peak < block.end;
    assert_eq!(browser.evaluate(kept), sum(blocks.iter().filter(is_live)));
}
