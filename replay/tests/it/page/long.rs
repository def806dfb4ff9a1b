//! The page of a file with more blocks than a page has.

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
}

/// Returns a log of 240,000 blocks, and its blocks. Most live shortly; some large ones live long.
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
            let address = 0x7f00_0000_0000_u64 + blocks.len() as u64 % 4096 * (1 << 20);
            writeln!(log, "1,0,allocate,{address:#x},{bytes},0,{time},{stack},{notes}").unwrap();
            notes.clear();
            live.push(blocks.len());
            blocks.push(Block { start: event, end: usize::MAX, bytes, stack });
        } else {
            let block = live.swap_remove(step(live.len() as u64) as usize);
            let address = 0x7f00_0000_0000_u64 + block as u64 % 4096 * (1 << 20);
            writeln!(log, "1,0,free,{address:#x},{},0,{time},,", blocks[block].bytes).unwrap();
            blocks[block].end = event;
        }
        event += 1;
    }
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
    times_of_blocks(&mut browser);
    is_silent(&browser);
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
