//! The address of the page keeps the view.

use super::browser::Browser;
use super::{is_silent, page};
use crate::support::{Folder, snapshot};

/// Waits until the view rests.
fn rest(browser: &mut Browser) {
    browser.evaluate("new Promise(done => setTimeout(done, 300))");
}

/// What a person sees of the view, as text.
const VIEW: &str = "(() => { const { view } = millpond, value = (id) => document.getElementById(id).value;
  const rows = (id) => [...document.querySelectorAll(`#${id} tbody tr`)].map(row => row.textContent);
  return JSON.stringify([view.axis, view.from, view.to, view.instant, view.between, view.block,
    document.getElementById('block').hidden, document.getElementById('axis-time').ariaPressed,
    document.getElementById('filtered').hidden || document.getElementById('filter-text').textContent,
    ['of-stream', 'mark-first', 'mark-second', 'theme', 'flame-kind', 'threshold'].map(value),
    ['all-frames', 'inverted'].map(id => document.getElementById(id).checked),
    getComputedStyle(document.documentElement).colorScheme,
    [...document.querySelectorAll('th[aria-sort]')].map(head => head.ariaSort),
    rows('lines'), rows('kept'), rows('largest'), document.getElementById('flame').textContent]); })()";

/// Sets a control of the page, as a person does.
fn set(browser: &mut Browser, id: &str, value: &str) {
    browser.evaluate(&format!(
        "(() => {{ const s = document.getElementById({id:?}); s.value = {value}; \
         s.dispatchEvent(new Event('change', {{ bubbles: true }})); }})()"
    ));
}

#[test]
fn a_link_and_a_reload_show_the_view_again() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("streams")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    rest(&mut browser);
    let at_first = browser.text(VIEW);
    assert_eq!(browser.text("location.hash"), "");
    browser.evaluate(
        "(() => { const { view, run } = millpond; view.choose(200); view.setMark(0, 20); view.setMark(1, 250);
          document.getElementById('axis-time').click(); view.zoom(0.5); view.chooseBlock(30); })()",
    );
    set(&mut browser, "of-stream", "document.getElementById('of-stream').options[1].value");
    set(&mut browser, "theme", "'dark'");
    set(&mut browser, "flame-kind", "'kept'");
    for press in ["#all-frames", "#lines th:nth-child(3) button", "#kept th:first-child button"] {
        browser.evaluate(&format!("document.querySelector({press:?}).click()"));
    }
    // Each way to choose stacks; the last one stays.
    for choose in ["byText('ONE')", "byGroup(0)", "byFrame('make.py:330 in one')"] {
        browser.evaluate(&format!("millpond.filter.{choose}"));
        rest(&mut browser);
        let (link, seen) = (browser.text("location.hash"), browser.text(VIEW));
        assert_ne!(seen, at_first);
        // The browser's storage must not be what remembers.
        browser.evaluate("localStorage.clear()");
        browser.call("Page.navigate", serde_json::json!({"url": "about:blank"}));
        browser.open_link(&page, &link);
        assert_eq!(browser.text(VIEW), seen, "{choose}: {link}");
        rest(&mut browser);
        assert_eq!(browser.text("location.hash"), link, "{choose}");
    }
    // Another link to the open page shows the view of that link; without one, the page is as at first.
    browser.open_link(&page, "#event=7");
    rest(&mut browser);
    assert_eq!(browser.number("millpond.view.instant"), 6.0);
    browser.evaluate("location.hash = ''");
    rest(&mut browser);
    assert_eq!(browser.text(VIEW), at_first);
    is_silent(&browser);
}

#[test]
fn a_wrong_link_is_harmless() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("plain")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    rest(&mut browser);
    let at_first = browser.text(VIEW);
    for link in [
        "#axis=x&range=1..x&event=1.5&marks=1..NaN&block=-3&only=own:1&lines=x&theme=pink&flame=__proto__",
        "#range=Infinity..0&event=&marks=&block=1e99&only=&stream=%3Cimg%20src=x%3E&kept=no,&temporary=9",
        "#%E0%A4%A&=&&range&only=constructor:x&theme",
    ] {
        browser.call("Page.navigate", serde_json::json!({"url": "about:blank"}));
        browser.open_link(&page, link);
        rest(&mut browser);
        assert_eq!(browser.text(VIEW), at_first, "{link}");
        assert_eq!(browser.text("location.hash"), "", "{link}");
    }
    for link in ["#range=-5..1e12&event=1e12&marks=-9..1e12", "#only=line:%3Cimg%20src=x%3E", "#event=-1"] {
        browser.open_link(&page, link);
        rest(&mut browser);
        assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), 0, "{link}");
        let is_inside = "(() => { const { view, run } = millpond; return view.from >= 0 && \
                         view.to <= view.end && run.live[view.instant] >= 0 && \
                         view.between.every(at => at < run.events); })()";
        assert_eq!(browser.evaluate(is_inside), true, "{link}");
    }
    is_silent(&browser);
}
