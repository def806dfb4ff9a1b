//! Makes the pictures of the page for the book.

use serde_json::json;

use super::browser::Browser;
use super::{is_silent, page, screenshot};
use crate::support::{Folder, snapshot};

/// Waits until the page has drawn everything.
fn settle(browser: &mut Browser) {
    browser.evaluate("new Promise(done => setTimeout(done, 500))");
}

/// Scrolls an element to below the controls.
fn scroll(browser: &mut Browser, element: &str) {
    browser.evaluate(&format!(
        "scrollBy(0, document.querySelector('{element}').getBoundingClientRect().top - \
         document.getElementById('bar').offsetHeight)"
    ));
}

#[test]
fn pictures_of_the_page() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("programs/gpt_all")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    let size = json!({"width": 1200, "height": 950, "deviceScaleFactor": 1, "mobile": false});
    browser.call("Emulation.setDeviceMetricsOverride", size);
    browser.open(&page);
    // The largest block that is freed is chosen.
    browser.evaluate(
        "(() => { const { view, run } = millpond, { start, end, bytes } = run.blocks; let best = 0;
          const area = (at) => (end[at] < run.events ? bytes[at] * (end[at] - start[at]) : 0);
          for (let at = 0; at < run.blocks.count; at++) if (area(at) > area(best)) best = at;
          view.chooseBlock(best); document.getElementById('readout').textContent = '';
          document.getElementById('findings').hidden = true; })()",
    );
    scroll(&mut browser, "section:has(> #timeline)");
    settle(&mut browser);
    screenshot(&mut browser, "report-light.png");

    browser.evaluate(
        "(() => { const { view, run } = millpond, theme = document.getElementById('theme');
          theme.value = 'dark'; theme.dispatchEvent(new Event('change'));
          view.setMark(0, Math.floor(run.events / 3)); view.setMark(1, run.peak);
          document.getElementById('block').hidden = true; })()",
    );
    let size = json!({"width": 1100, "height": 520, "deviceScaleFactor": 1, "mobile": false});
    browser.call("Emulation.setDeviceMetricsOverride", size);
    scroll(&mut browser, "#lines");
    settle(&mut browser);
    assert_eq!(browser.text("getComputedStyle(document.documentElement).colorScheme"), "dark");
    screenshot(&mut browser, "report-dark.png");
    is_silent(&browser);
}
