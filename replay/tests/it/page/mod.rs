//! Tests the page of `report` in a real headless browser.
//!
//! Without Chromium, the tests are skipped with a message; `MILLPOND_REQUIRE_CHROMIUM=1` makes that a
//! failure. `MILLPOND_SCREENSHOTS=folder` keeps screenshots. `MILLPOND_MEASURE=1` measures a page of a
//! million blocks. This command makes the pictures of the book again:
//!
//! ```sh
//! MILLPOND_SCREENSHOTS=../docs/book/src/pictures cargo test -p millpond-replay --test it page::pictures
//! ```

mod browser;
mod explore;
mod keys;
mod link;
mod long;
mod measure;
mod pictures;
mod unknown;

use std::path::{Path, PathBuf};

use browser::Browser;
use serde_json::{Value, json};

use crate::support::{Folder, Run, program, snapshot};

/// Writes the page for some files.
fn page(folder: &Folder, files: &[&Path], flags: &[&str]) -> PathBuf {
    let page = folder.path("page.html");
    let mut command = program();
    let plan: &[&str] = if flags.contains(&"--plan-time") { &[] } else { &["--plan-time", "1"] };
    command.arg("report").args(files).arg("-o").arg(&page).args(plan).args(flags);
    let run = Run::from(command.output().unwrap());
    assert_eq!(run.status, 0, "{}", run.stderr);
    page
}

/// Returns the JSON in an element of a page, without a browser.
fn json_of(page: &Path, id: &str) -> Value {
    let html = std::fs::read_to_string(page).unwrap();
    let (_, from) = html.split_once(&format!("id=\"{id}\">")).unwrap();
    serde_json::from_str(from.split_once("</script>").unwrap().0).unwrap()
}

/// Returns the visible range of the axis.
fn range(browser: &mut Browser) -> (f64, f64) {
    (browser.number("millpond.view.from"), browser.number("millpond.view.to"))
}

/// Checks that the page requested nothing but itself, and that nothing went wrong.
#[track_caller]
fn is_silent(browser: &Browser) {
    let others: Vec<&String> = browser.requested.iter().filter(|url| !url.ends_with("page.html")).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(!browser.requested.is_empty(), "requests are not seen");
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
}

/// Keeps a screenshot.
fn screenshot(browser: &mut Browser, name: &str) {
    let Some(folder) = std::env::var_os("MILLPOND_SCREENSHOTS") else { return };
    let picture = browser.call("Page.captureScreenshot", json!({"format": "png"}));
    let command = "base64 -d > \"$0\"";
    let mut child = std::process::Command::new("sh")
        .args(["-c", command])
        .arg(Path::new(&folder).join(name))
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let text = picture["data"].as_str().unwrap().as_bytes();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), text).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_summary_says_what_explain_and_plan_say() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("fragmented")], &["--stack", "cuda+pool"]);
    let summary = json_of(&page, "summary");
    let mut explain = program();
    explain.arg("explain").arg(snapshot("fragmented")).args(["-f", "json"]);
    let explained = Run::from(explain.output().unwrap());
    assert_eq!(summary["explanation"], serde_json::from_str::<Value>(&explained.stdout).unwrap());
    assert!(summary["plan"]["bound"].as_u64().unwrap() > 0);
    assert_eq!(summary["stacks"][0]["stack"], "cuda+pool");
    let reserved = summary["stacks"][0]["peak_reserved_bytes"].as_u64().unwrap();
    let replayed = Run::json(&snapshot("fragmented"), &["--stack", "cuda+pool"]);
    assert_eq!(replayed["stacks"][0]["peak_reserved_bytes_first"], reserved);
}

#[test]
fn the_page_zooms_pans_and_switches_its_axis() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("plain")], &["--stack", "cuda+pool", "--stack", "cuda_async"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let events = browser.number("millpond.run.events");
    assert_eq!(range(&mut browser), (0.0, events));

    let timeline = browser.place("#timeline", (0.0, 0.0));
    browser.mouse("mouseWheel", timeline, json!({"deltaX": 0, "deltaY": -300}));
    browser.evaluate("new Promise(done => setTimeout(done, 300))");
    let (from, to) = range(&mut browser);
    assert!(from > 0.0 && to < events && to - from < 0.5 * events, "{from} {to}");

    browser.mouse("mousePressed", timeline, json!({}));
    browser.mouse("mouseMoved", (timeline.0 + 100.0, timeline.1), json!({"buttons": 1}));
    browser.mouse("mouseReleased", (timeline.0 + 100.0, timeline.1), json!({}));
    let (panned, _) = range(&mut browser);
    assert!(panned < from, "dragging to the right moves to earlier times: {panned} {from}");

    browser.evaluate("document.querySelector('#timeline').focus()");
    browser.key("ArrowRight");
    assert!(range(&mut browser).0 > panned);
    browser.key("-");
    assert!(browser.number("millpond.view.to - millpond.view.from") > to - from);
    browser.key("Home");
    assert_eq!(range(&mut browser), (0.0, events));

    let time = browser.place("#axis-time", (0.0, 0.0));
    browser.click(time);
    assert_eq!(browser.text("millpond.view.axis"), "time");
    let whole = browser.number("millpond.run.time[millpond.run.events - 1]");
    assert_eq!(range(&mut browser), (0.0, whole));
    assert_eq!(browser.text("document.querySelector('#axis-time').getAttribute('aria-pressed')"), "true");

    let light = browser.text("getComputedStyle(document.body).backgroundColor");
    let dark = json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]});
    browser.call("Emulation.setEmulatedMedia", dark);
    assert_ne!(browser.text("getComputedStyle(document.body).backgroundColor"), light);
    let events = browser.place("#axis-events", (0.0, 0.0));
    browser.click(events);
    browser.place("#map", (0.0, 0.2));
    browser.evaluate("new Promise(done => setTimeout(done, 400))");
    screenshot(&mut browser, "report_map.png");
    is_silent(&browser);
}

#[test]
fn a_column_has_what_each_stack_holds_at_its_fullest_event() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("plain")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    // The search and the sums over notes must find the same events as a plain search.
    let compare = "(() => {
      const { run } = millpond, sums = new Float64Array(COLOURS), wrong = [];
      let ranges = 0;
      for (let width = 0; width < 300; width += 7) {
        for (let from = 0; from + width < run.events; from += 97) {
          let high = from;
          for (let at = from; at < from + width; at++) if (run.live[at] > run.live[high]) high = at;
          const found = run.livePyramid.fullest(from, from + width);
          const isIn = found === from || (from < found && found < from + width);
          run.heldByColour(found, sums);
          const held = run.heldByGroup(found);
          const isHeld = run.holders.every((of, at) => sums[at] === (held.get(of) ?? 0));
          if (!isIn || run.live[found] !== run.live[high] || !isHeld) wrong.push([from, width, found]);
          ranges++;
        }
      }
      return { ranges, wrong: wrong.slice(0, 3), stacks: run.holders.length };
    })()";
    let compared = browser.evaluate(compare);
    assert!(compared["ranges"].as_u64() > Some(500) && compared["stacks"].as_u64() > Some(1), "{compared}");
    assert_eq!(compared["wrong"], json!([]));
    is_silent(&browser);
}

#[test]
fn a_click_shows_the_stacks_of_that_instant() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("out_of_memory")], &[]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let at_peak = browser.text("document.querySelector('#flame-title').textContent");
    let place = browser.place("#timeline", (-0.3, 0.0));
    browser.mouse("mouseMoved", place, json!({"button": "none"}));
    assert!(browser.text("readout.textContent").starts_with("event "));
    browser.click(place);
    let clicked = browser.text("document.querySelector('#flame-title').textContent");
    assert_ne!(clicked, at_peak);
    let event = browser.number("millpond.view.instant") as u64;
    let live = browser.number(&format!("millpond.run.live[{event}]"));
    let shown = browser.number(
        "[...millpond.run.held(millpond.view.instant).values()]\
                                .reduce((sum, { bytes }) => sum + bytes, 0)",
    );
    assert!((live - shown).abs() < 0.5 && live > 0.0, "{live} {shown}");
    assert!(clicked.contains(&format!("event {}", event + 1)), "{clicked}");
    let frames = browser.number("document.querySelectorAll('#flame button').length");
    assert!(frames > 3.0, "{frames}");
    // Frames of PyTorch are folded until a person asks for them.
    let names = "[...document.querySelectorAll('#flame button')].map(e => e.textContent).join('|')";
    let folded = browser.text(names);
    assert!(folded.contains("make.py:") && !folded.contains("threading.py"), "{folded}");
    browser.evaluate("document.getElementById('all-frames').click()");
    assert!(browser.text(names).contains("<module> (make.py:"), "{}", browser.text(names));
    browser.evaluate("document.getElementById('all-frames').click()");
    assert_eq!(browser.text(names), folded);
    // A clicked frame becomes as wide as the graph.
    let last = "[...document.querySelectorAll('#flame button')].at(-1)";
    let name = browser.text(&format!("{last}.title"));
    browser.evaluate(&format!("{last}.click()"));
    let wide = format!(
        "[...document.querySelectorAll('#flame button')].filter(e => e.title === {})\
         .map(e => e.style.width)[0]",
        serde_json::to_string(&name).unwrap()
    );
    assert_eq!(browser.text(&wide), "100%");
    assert_eq!(browser.evaluate("millpond.run.failures.length"), 1);
    let findings = browser.text("document.querySelector('#findings').textContent");
    assert!(findings.contains("does_not_fit") || findings.contains("limit"), "{findings}");
    browser.evaluate("scrollTo(0, 0); new Promise(done => setTimeout(done, 400))");
    screenshot(&mut browser, "report.png");
    is_silent(&browser);
}

#[test]
fn code_in_a_sentence_is_shown_as_code_without_backticks() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("fragmented")], &["--stack", "cuda+pool"]);
    let fixes = json_of(&page, "summary")["explanation"]["diagnoses"][0]["fixes"].to_string();
    assert!(fixes.contains("`millpond-replay tune "), "{fixes}");
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let findings = browser.text("document.querySelector('#findings').textContent");
    assert!(findings.contains("fragmented.pickle.gz to check") && !findings.contains('`'), "{findings}");
    let code = "[...document.querySelectorAll('#findings p code')].map(e => e.textContent).join()";
    assert!(browser.text(code).contains("millpond-replay tune "), "{}", browser.text(code));
    is_silent(&browser);
}

#[test]
fn hostile_names_stay_text_and_request_nothing() {
    let hostile = "<img src=http://127.0.0.1:9/x onerror=document.title='owned'></script>\
                   <script>document.title='owned'</script>@data@";
    let words: String = hostile.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let folder = Folder::new();
    let file = folder.write(
        "hostile.csv",
        format!(
            "Thread,Time,Action,Pointer,Size,Stream,Stack,Notes\n\
             1,00:00:00.000001,allocate,0x1000,512,0,1,frame 1 7 {words} {words};stack 1 1\n\
             1,00:00:00.000002,allocate,0x2000,512,0,1,\n"
        ),
    );
    let page = page(&folder, &[&file], &[]);
    assert!(json_of(&page, "summary").to_string().contains("onerror"), "the name is not in the page");
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    assert!(browser.text("document.querySelector('#flame').textContent").contains("<img src="));
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), 0);
    assert!(!browser.text("document.title").contains("owned"));
    is_silent(&browser);
    // The policy must hold even if an element got in; the test would see a request.
    let image = "new Promise(done => { const i = new Image(); i.onerror = () => done('refused'); \
                 i.onload = () => done('loaded'); i.src = 'http://127.0.0.1:9/x'; \
                 document.body.append(i); })";
    assert_eq!(browser.text(image), "refused");
    browser.evaluate("1");
    assert!(
        browser.errors.iter().any(|error| error.contains("Content Security Policy")),
        "{:?}",
        browser.errors
    );
}

#[test]
fn two_runs_stand_beside_each_other() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("mixed"), &snapshot("fragmented")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let tables = browser.text("document.querySelector('#compare').textContent");
    assert!(tables.contains("Two runs") && tables.contains("difference"), "{tables}");
    assert!(browser.text("document.querySelector('#timeline-legend').textContent").contains("fragmented"));
    assert_eq!(browser.evaluate("document.querySelector('#plan-section').hidden"), true);
    is_silent(&browser);
}
