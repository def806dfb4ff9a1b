//! Measures a page with a million blocks; times are printed, never asserted.

use std::fmt::Write;

use serde_json::json;

use super::browser::Browser;
use super::{is_silent, page, screenshot};

use crate::support::{Folder, HEADER};

/// Returns a log of a million blocks, placed first-fit in slots.
fn million() -> String {
    let mut log = String::from(HEADER);
    let (mut random, mut live) = (7_u64, Vec::new());
    let mut free: Vec<u64> = (0..4096).rev().map(|slot| 0x7f00_0000_0000 + slot * (4 << 20)).collect();
    let mut step = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    let mut now = 0_u64;
    for _ in 0..1_000_000 {
        while live.len() > 2000 + step(1500) as usize || free.is_empty() {
            let (address, bytes) = live.swap_remove(step(live.len() as u64) as usize);
            now += 3;
            writeln!(
                log,
                "1,00:{:02}:{:02}.{:06},free,{address:#x},{bytes},0",
                now / 60_000_000 % 60,
                now / 1_000_000 % 60,
                now % 1_000_000
            )
            .unwrap();
            free.push(address);
        }
        let (address, bytes) = (free.pop().unwrap(), 512 << step(14));
        now += 4;
        writeln!(
            log,
            "1,00:{:02}:{:02}.{:06},allocate,{address:#x},{bytes},0",
            now / 60_000_000 % 60,
            now / 1_000_000 % 60,
            now % 1_000_000
        )
        .unwrap();
        live.push((address, bytes));
    }
    log
}

#[test]
fn a_million_blocks() {
    if std::env::var_os("MILLPOND_MEASURE").is_none() {
        eprintln!("SKIPPED: MILLPOND_MEASURE=1 measures a page of a million blocks");
        return;
    }
    let folder = Folder::new();
    let log = folder.write("million.csv", million());
    let page = page(&folder, &[&log], &["--memory", "1GiB", "--plan-time", "0"]);
    let bytes = std::fs::metadata(&page).unwrap().len();
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    assert_eq!(browser.evaluate("millpond.run.total"), 1_000_000);
    let drawn = browser.number("millpond.drawn_ms");
    for (name, zoom) in [("whole", 1.0), ("a tenth", 0.1), ("a hundredth", 0.01)] {
        let frames = browser.evaluate(&format!(
            "(async () => {{ const v = millpond.view; v.show(0.3 * v.end, (0.3 + {zoom} * 0.6) * v.end);
             await new Promise(done => setTimeout(done, 800));
             document.querySelector('#map').scrollIntoView({{block: 'center'}});
             await new Promise(done => setTimeout(done, 800));
             const times = []; let last = performance.now();
             for (let i = 0; i < 60; i++) {{ v.pan(i % 20 < 10 ? 0.01 : -0.01);
               await new Promise(requestAnimationFrame); const now = performance.now();
               times.push(now - last); last = now; }}
             times.sort((a, b) => a - b); return [times[30], times[57]]; }})()"
        ));
        eprintln!("panned, {name}: median {} ms, 95 % {} ms a frame", frames[0], frames[1]);
    }
    eprintln!("1,000,000 blocks: {bytes} bytes of HTML, drawn after {drawn} ms");
    browser.evaluate(
        "millpond.view.show(0, millpond.view.end); scrollTo(0, 0); \
                      new Promise(done => setTimeout(done, 800))",
    );
    screenshot(&mut browser, "million.png");
    let place = browser.place("#map", (0.0, 0.0));
    browser.mouse("mouseWheel", place, json!({"deltaX": 0, "deltaY": -300}));
    is_silent(&browser);
}
