//! The keyboard, and narrow windows.

use serde_json::json;

use super::browser::Browser;
use super::{is_silent, page};
use crate::support::{Folder, snapshot};

/// The text of the element that has the focus.
const FOCUS: &str = "document.activeElement.textContent";

fn is_hidden(browser: &mut Browser, id: &str) -> bool {
    browser.evaluate(&format!("document.getElementById({id:?}).hidden")) == true
}

#[test]
fn arrows_move_in_tables_and_the_focus_stays() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("programs/gpt_all")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let row = |section: &str, at: usize| {
        format!("document.querySelectorAll('{section} tr')[{at}].querySelector('button').textContent")
    };
    browser.evaluate("document.querySelector('#lines tbody button').focus()");
    for key in ["ArrowDown", "ArrowDown", "ArrowUp"] {
        browser.key(key);
    }
    let second = browser.text(&row("#lines tbody", 1));
    assert_eq!(browser.text(FOCUS), second);
    // The table is drawn again with one line, which keeps the focus.
    browser.evaluate("document.activeElement.click()");
    assert!(!is_hidden(&mut browser, "filtered"));
    assert_eq!(browser.text(FOCUS), second);
    browser.key("Escape");
    assert!(is_hidden(&mut browser, "filtered"));

    browser.evaluate("document.querySelector('#events button').focus()");
    browser.key("ArrowDown");
    let event = browser.text(&row("#events", 1));
    browser.evaluate("document.activeElement.click()");
    assert_eq!(browser.text(FOCUS), event);

    // From the search to its results, and back after a choice.
    browser.key("/");
    assert_eq!(browser.text("document.activeElement.id"), "search");
    browser.evaluate("search.value = 'model'; search.dispatchEvent(new Event('input'))");
    browser.key("ArrowDown");
    browser.key("ArrowDown");
    assert_eq!(browser.text(FOCUS), browser.text("document.querySelectorAll('#results li')[1].textContent"));
    browser.evaluate("document.activeElement.click()");
    assert_eq!(browser.text("document.activeElement.id"), "search");
    browser.key("Escape");
    assert!(is_hidden(&mut browser, "filtered"));
    browser.evaluate("search.value = 'no such frame'; search.dispatchEvent(new Event('input'))");
    assert_eq!(browser.text("readout.textContent"), "0 frames found.");
    is_silent(&browser);
}

#[test]
fn arrows_move_in_the_flame_graph() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("programs/gpt_all")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let reachable = "document.querySelectorAll('#flame [tabindex=\"0\"]').length";
    assert_eq!(browser.number(reachable), 1.0);
    browser.evaluate("document.querySelector('#flame [tabindex=\"0\"]').focus()");
    let levels = [("ArrowDown", 2), ("ArrowRight", 2), ("ArrowLeft", 2), ("ArrowDown", 3), ("ArrowUp", 2)];
    for (key, level) in levels {
        let before = browser.text(FOCUS);
        browser.key(key);
        assert_eq!(browser.text("document.activeElement.ariaLevel"), level.to_string(), "{key}");
        assert_ne!(browser.text(FOCUS), before, "{key}");
        assert!(browser.text("readout.textContent").starts_with(&browser.text(FOCUS)), "{key}");
    }
    let chosen = browser.text(FOCUS);
    browser.evaluate("document.activeElement.click()");
    assert_eq!((browser.text(FOCUS), browser.number(reachable)), (chosen, 1.0));
    is_silent(&browser);
}

#[test]
fn escape_closes_the_block_before_it_ends_the_filter() {
    let folder = Folder::new();
    let page = page(&folder, &[&snapshot("plain")], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    browser.evaluate("millpond.filter.byGroup(0)");
    browser.evaluate("document.querySelector('#largest tbody button').focus()");
    let from = browser.text(FOCUS);
    browser.evaluate("document.activeElement.click()");
    let sees = |browser: &mut Browser, what: &str| {
        browser.evaluate(&format!(
            "(() => {{ const box = {what}.getBoundingClientRect(), bar = \
             document.getElementById('bar').getBoundingClientRect(); \
             return bar.bottom <= box.top && box.top < innerHeight; }})()"
        )) == true
    };
    // The table is far below the block.
    assert!(sees(&mut browser, "document.getElementById('block')"));
    assert!(!is_hidden(&mut browser, "block"));
    browser.evaluate("document.querySelector('#block ol button').focus()");
    browser.key("Escape");
    assert!(is_hidden(&mut browser, "block") && !is_hidden(&mut browser, "filtered"));
    assert_eq!(browser.text(FOCUS), from);
    assert!(sees(&mut browser, "document.activeElement"));
    browser.key("Escape");
    assert!(is_hidden(&mut browser, "filtered"));
    is_silent(&browser);
}

#[test]
fn a_narrow_window_shows_lines_and_does_not_jump() {
    let folder = Folder::new();
    let files = [snapshot("programs/gpt_all"), snapshot("plain")];
    let page = page(&folder, &[&files[0], &files[1]], &["--plan-time", "0"]);
    let Some(mut browser) = Browser::start() else { return };
    for width in [375, 1280] {
        let size = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 700});
        browser.call("Emulation.setDeviceMetricsOverride", size);
        browser.open(&page);
        let wide = browser.number("document.documentElement.scrollWidth");
        assert!(wide <= f64::from(width), "{wide} at {width}");
        let narrow = browser.evaluate(
            "[...document.querySelectorAll('tbody tr > :first-child')].filter(cell => cell.offsetWidth > 0 \
             && cell.offsetWidth < 100).map(cell => cell.textContent)",
        );
        assert_eq!(narrow, json!([]), "at {width}");
        // A long text would move the charts under the pointer.
        let heights = browser.evaluate(
            "['a', 'a long text '.repeat(40)].map(text => { say(text); \
             return document.getElementById('bar').offsetHeight; })",
        );
        assert_eq!(heights[0], heights[1], "at {width}");
    }
    is_silent(&browser);
}
