//! Search, filters, blocks, tables, marks, comparison and colours of the page.

use serde_json::{Value, json};

use super::browser::Browser;
use super::{is_silent, page, screenshot};
use crate::support::{Folder, snapshot};

/// Types a text into the search.
fn search(browser: &mut Browser, text: &str) {
    browser.evaluate(&format!(
        "(() => {{ const s = document.getElementById('search'); s.focus(); s.value = {text:?}; \
         s.dispatchEvent(new Event('input')); }})()"
    ));
}

/// Returns the cells of a column of a table in a section.
fn column(browser: &mut Browser, section: &str, at: usize) -> Vec<String> {
    let cells = format!(
        "[...document.querySelectorAll('#{section} tbody tr')].map(row => row.children[{at}].textContent)"
    );
    serde_json::from_value(browser.evaluate(&cells)).unwrap()
}

#[test]
fn a_search_finds_frames_and_a_frame_limits_all_charts_and_tables() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("plain")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let lines = column(&mut browser, "lines", 0);
    assert!(lines.len() > 2, "{lines:?}");
    let word = lines[0].split(" in ").next().unwrap().to_owned();
    search(&mut browser, &word.to_uppercase());
    let found = browser.text("document.querySelector('#results li').textContent");
    assert!(found.contains(&word) && found.contains("at the peak") && found.contains("block"), "{found}");
    let faded = browser.number("document.querySelectorAll('#flame .faded').length");
    assert!(faded > 0.0 && browser.text("readout.textContent").contains("found"));
    assert!(browser.text("document.getElementById('flame-found').textContent").contains('%'));

    browser.evaluate("document.querySelector('#results button').click()");
    let shown = column(&mut browser, "lines", 0);
    assert!(!shown.is_empty() && shown.len() < lines.len(), "{shown:?} of {lines:?}");
    // Each chart and table counts only the stacks that pass.
    let counted = browser.evaluate(
        "(() => { const { run, flame } = millpond; let live = 0, all = 0;
          for (const [origin, { bytes }] of run.held(run.peak)) {
            all += bytes; if (run.passes[origin]) live += bytes; }
          const sums = new Float64Array(COLOURS); run.heldByColour(run.peak, sums);
          return { all, live, curve: run.filtered.range(run.peak, run.peak + 1)[1],
            colours: sums.reduce((a, b) => a + b, 0), flame: flame.path[0].bytes,
            kept: [...document.querySelectorAll('#kept tbody tr')].length }; })()",
    );
    let live = counted["live"].as_f64().unwrap();
    assert!(live > 0.0 && live < counted["all"].as_f64().unwrap(), "{counted}");
    for part in ["curve", "colours", "flame"] {
        assert_eq!(counted[part].as_f64(), Some(live), "{part}: {counted}");
    }
    assert!(counted["kept"].as_u64().unwrap() <= shown.len() as u64);
    assert!(browser.text("document.getElementById('filtered').textContent").contains("show only the frame"));
    assert_eq!(browser.evaluate("document.getElementById('filtered').hidden"), false);

    // Enter takes every frame with the text; Escape shows everything again.
    search(&mut browser, &word);
    browser.key("Enter");
    assert!(browser.text("document.getElementById('filter-text').textContent").contains("frames with"));
    browser.key("Escape");
    assert_eq!(column(&mut browser, "lines", 0), lines);
    assert_eq!(browser.evaluate("document.getElementById('filtered').hidden"), true);
    is_silent(&browser);
}

#[test]
fn a_click_on_a_block_shows_its_life_and_its_stack() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("roundup")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    browser.place("#map", (0.0, 0.0));
    browser.evaluate("new Promise(done => setTimeout(done, 300))");
    // The middle of the largest block that is freed.
    let block = browser.evaluate(
        "(() => { const { run, view } = millpond, { start, end, bytes, y } = run.blocks;
          let best = -1, most = 0;
          for (let at = 0; at < start.length; at++) { const area = bytes[at] * (end[at] - start[at]);
            if (end[at] < run.events && area > most) { most = area; best = at; } }
          const map = view.charts.find(({ canvas }) => canvas.id === 'map');
          const box = map.canvas.getBoundingClientRect(), event = (start[best] + end[best]) / 2;
          return { best, x: box.x + map.x(event) / map.scale,
            y: box.y + map.y(y[best] + bytes[best] / 2) / map.scale,
            size: inBytes(bytes[best]), start: eventText(run, start[best]), end: eventText(run, end[best]) };
        })()",
    );
    browser.click((block["x"].as_f64().unwrap(), block["y"].as_f64().unwrap()));
    assert_eq!(browser.evaluate("millpond.view.block"), block["best"]);
    assert_eq!(browser.evaluate("document.getElementById('block').hidden"), false);
    let facts: Vec<(String, String)> = serde_json::from_value(browser.evaluate(
        "[...document.querySelectorAll('#block dt')].map(dt => [dt.textContent, \
         dt.nextElementSibling.textContent])",
    ))
    .unwrap();
    let fact = |name: &str| facts.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    assert_eq!(fact("requested"), block["size"].as_str());
    assert_eq!((fact("allocated"), fact("freed")), (block["start"].as_str(), block["end"].as_str()));
    assert!(fact("life").unwrap().contains("event") && fact("stream").is_some(), "{facts:?}");
    assert!(fact("address").unwrap().starts_with("0x7"), "{facts:?}");
    assert!(fact("rounded").is_some(), "{facts:?}");
    let frames = browser.number("document.querySelectorAll('#block ol button').length");
    assert!(frames > 1.0, "{frames}");
    browser.evaluate("document.querySelector('#block ol button').click()");
    assert_eq!(browser.evaluate("millpond.run.isShown(millpond.view.block)"), true);
    // The keyboard reaches blocks through the table of the largest ones.
    browser.evaluate("document.querySelector('#largest tbody button').focus()");
    browser.evaluate("document.activeElement.click()");
    assert_ne!(browser.evaluate("millpond.view.block"), Value::Null);
    is_silent(&browser);
}

#[test]
fn tables_sort_on_every_column() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("programs/gnn")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let sorted = browser.evaluate(
        "(() => { const wrong = []; let columns = 0;
          for (const section of ['lines', 'kept', 'largest']) {
            const table = document.querySelector(`#${section} table`);
            const heads = [...table.querySelectorAll('thead th')];
            if (table.querySelectorAll('tbody tr').length < 2) wrong.push([section, 'too few rows']);
            heads.forEach((head, at) => {
              const orders = [];
              for (const _ of [0, 1]) {
                head.querySelector('button').click();
                orders.push([head.getAttribute('aria-sort'),
                  [...table.querySelectorAll('tbody tr')].map(row => row.children[at].textContent)]);
              }
              const directions = orders.map(([direction]) => direction).sort().join();
              if (directions !== 'ascending,descending') wrong.push([section, at, directions]);
              const value = (text) => { const [number, unit] = text.replace(/,/g, '').split(' ');
                const weights = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, ms: 1e6, s: 1e9 };
                if (text === '–') return undefined;
                return at ? number * (weights[unit] ?? (unit === 'µs' ? 1e3 : 1)) : text; };
              for (const [direction, texts] of orders) {
                const values = texts.map(value).filter(value => value !== undefined);
                const sign = direction === 'ascending' ? 1 : -1;
                const isSorted = values.every((v, i) => i === 0 || (at ? sign * (v - values[i - 1]) >= -1e-9
                  : sign * (v > values[i - 1] ? 1 : v < values[i - 1] ? -1 : 0) >= 0));
                if (!isSorted) wrong.push([section, at, direction, values.slice(0, 5)]);
              }
              columns++;
            });
          }
          return { columns, wrong }; })()",
    );
    assert_eq!(sorted["wrong"], json!([]));
    assert!(sorted["columns"].as_u64() >= Some(16), "{sorted}");
    is_silent(&browser);
}

#[test]
fn marks_show_what_is_kept_between_them_by_line() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("programs/phases")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let offered = browser.text("document.getElementById('mark-first').textContent");
    assert!(
        offered.contains("start of ") && offered.contains("end of ") && offered.contains("peak"),
        "{offered}"
    );
    // The blocks are counted again without the page's sums.
    let count = "(() => { const { run, view } = millpond, [first, second] = view.between, lines = {};
      const { start, end, bytes } = run.blocks;
      for (let at = 0; at < start.length; at++) {
        if (start[at] <= first || start[at] > second || end[at] <= second) continue;
        const line = run.lineOf(at); const sum = lines[line] ??= [0, 0];
        sum[0] += bytes[at]; sum[1]++;
      }
      const counted = Object.entries(lines).map(([line, [b, n]]) => [line, inBytes(b), inDigits(n)]).sort();
      const shown = [...document.querySelectorAll('#kept tbody tr')]
        .map(row => [...row.children].map(cell => cell.textContent)).sort();
      return { first, second, counted, shown }; })()";
    // The recorded marks, then the keys.
    browser.evaluate(
        "(() => { const { marks } = millpond.run; const set = (id, event) => {
           const s = document.getElementById(id); s.value = event; s.dispatchEvent(new Event('change')); };
         set('mark-first', marks[0].event); set('mark-second', marks.at(-1).event); })()",
    );
    let by_name = browser.evaluate(count);
    assert_eq!(by_name["shown"], by_name["counted"]);
    browser.evaluate("millpond.view.choose(Math.floor(millpond.run.events / 4))");
    browser.evaluate("document.getElementById('timeline').focus()");
    browser.key("[");
    browser.evaluate("millpond.view.choose(millpond.run.peak)");
    browser.key("]");
    let by_key = browser.evaluate(count);
    assert_eq!(by_key["second"], browser.evaluate("millpond.run.peak"));
    assert_eq!(by_key["shown"], by_key["counted"]);
    assert!(!by_key["counted"].as_array().unwrap().is_empty(), "{by_key}");
    let text = browser.text("document.getElementById('kept-text').textContent");
    assert!(text.contains("still live"), "{text}");
    // The flame graph shows the same blocks.
    browser.evaluate(
        "(() => { const s = document.getElementById('flame-kind'); s.value = 'kept'; \
         s.dispatchEvent(new Event('change')); })()",
    );
    let flame = browser.number("millpond.flame.path[0].bytes");
    let kept = browser.number(
        "[...millpond.run.kept(...millpond.view.between).values()]
          .reduce((sum, { bytes }) => sum + bytes, 0)",
    );
    assert!(flame > 0.0 && (flame - kept).abs() < 0.5, "{flame} {kept}");
    is_silent(&browser);
}

#[test]
fn two_runs_are_compared_by_line() {
    let folder = Folder::new();
    let files = [snapshot("expandable"), snapshot("retries")];
    let page = page(&folder, &[&files[0], &files[1]], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let compared = browser.evaluate(
        "(() => { const { run, other } = millpond;
          const more = [...document.querySelectorAll('#compare > button')].find(button => !button.hidden);
          more?.click();
          const table = document.querySelectorAll('#compare table')[1];
          const rows = [...table.querySelectorAll('tbody tr')]
            .map(row => [...row.children].map(cell => cell.textContent));
          const sum = (of, name) => inDigits(of.columns[name].reduce((a, b) => a + b, 0));
          const count = (at) => inDigits(rows.reduce((a, row) => a + Number(row[at].replace(/,/g, '')), 0));
          return { rows: rows.length, heads: table.querySelectorAll('thead th').length,
            shown: [count(4), count(5)], all: [sum(run, 'origin_blocks'), sum(other, 'origin_blocks')],
            isSigned: rows.some(row => row[3].startsWith('+') || row[3].startsWith('-')) }; })()",
    );
    assert_eq!(compared["shown"], compared["all"], "{compared}");
    assert_eq!((&compared["heads"], &compared["isSigned"]), (&json!(10), &json!(true)));
    assert!(compared["rows"].as_u64() > Some(1), "{compared}");
    is_silent(&browser);
}

#[test]
fn a_person_chooses_light_or_dark_colours() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("small")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let back = "getComputedStyle(document.body).backgroundColor";
    let light = browser.text(back);
    let choose = |browser: &mut Browser, name: &str| {
        browser.evaluate(&format!(
            "(() => {{ const s = document.getElementById('theme'); s.value = {name:?}; \
             s.dispatchEvent(new Event('change')); }})()"
        ));
    };
    choose(&mut browser, "dark");
    assert_ne!(browser.text(back), light);
    let dark = browser.text(back);
    let system = json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]});
    browser.call("Emulation.setEmulatedMedia", system);
    choose(&mut browser, "light");
    assert_eq!(browser.text(back), light);
    choose(&mut browser, "system");
    assert_eq!(browser.text(back), dark);
    is_silent(&browser);
}

#[test]
fn controls_and_charts_have_names() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("streams"), &snapshot("plain")], &["--stack", "cuda+pool"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let unnamed = browser.evaluate(
        "[...document.querySelectorAll('button, select, input, canvas, [role]')].filter(e => {
           const name = e.getAttribute('aria-label') ?? e.labels?.[0]?.textContent ?? e.textContent;
           return !e.closest('[hidden]') && !name.trim() && !e.getAttribute('aria-live'); })
         .map(e => e.outerHTML.slice(0, 120))",
    );
    assert_eq!(unnamed, json!([]));
    // A stream limits the page as a frame does.
    let streams = browser.number("document.getElementById('of-stream').options.length");
    assert!(streams > 2.0, "{streams}");
    browser.evaluate(
        "(() => { const s = document.getElementById('of-stream'); s.selectedIndex = 2; \
         s.dispatchEvent(new Event('change')); })()",
    );
    let passed = browser.evaluate(
        "(() => { const { run } = millpond, wanted = document.getElementById('of-stream').value;
          return [...run.passes].every((passes, origin) =>
            (run.lanes[run.columns.origin_lane[origin]].stream === wanted) === (passes === 1)); })()",
    );
    assert_eq!(passed, true);
    screenshot(&mut browser, "streams.png");
    is_silent(&browser);
}
