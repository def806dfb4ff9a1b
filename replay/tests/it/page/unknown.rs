//! The page never shows a number that the file does not tell.

use std::path::Path;

use super::browser::Browser;
use super::{is_silent, page};
use crate::support::{Folder, snapshot};

/// Returns the facts of the last block, and the ledger.
fn facts(browser: &mut Browser, page: &Path) -> String {
    browser.open(page);
    browser.text(
        "(() => { const { run, view } = millpond;
          if (run.blocks.count) view.chooseBlock(run.blocks.count - 1);
          const facts = [...document.querySelectorAll('#block dt')]
            .map(name => `${name.textContent}: ${name.nextElementSibling.textContent}`);
          const rows = [...document.querySelector('#tables table').rows].slice(1)
            .map(row => [...row.cells].map(cell => cell.textContent).join(': '));
          return [...facts, ...rows].join('\\n'); })()",
    )
}

/// Checks which lines the facts have, and which names they lack.
#[track_caller]
fn check(facts: &str, has: &[&str], lacks: &[&str]) {
    for line in has {
        assert!(facts.lines().any(|fact| fact.starts_with(line)), "{line} is not in\n{facts}");
    }
    for name in lacks {
        assert!(!facts.contains(name), "{name} is in\n{facts}");
    }
}

#[test]
fn what_a_file_does_not_tell_is_no_number() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = Folder::new();
    let mut facts_of = |file: &Path| {
        let page = page(&folder, &[file], &["--plan-time", "0"]);
        facts(&mut browser, &page)
    };
    let pieces = ["wholly free", "pinned", "rounding", "held for streams", "largest free piece"];

    let log = folder.log("7,00:00:00.1,allocate,0x1000,512,0\n7,00:00:00.2,allocate,0x2000,512,0\n");
    let text = facts_of(&log);
    let told = ["requested: 512 B", "rounded: unknown", "stream: 0", "thread: 7", "active: 1.00 KiB"];
    check(&text, &told, &pieces);

    // A snapshot has rounded sizes of the blocks in its state, and no threads.
    let text = facts_of(&snapshot("plain"));
    check(&text, &["requested: ", "rounded: ", "stream: ", "rounding, part of active: "], &["thread: "]);

    let minimalloc = folder.write("mini.csv", "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n");
    let lacking = [&pieces[..], &["thread: ", "stream: ", "address: "]].concat();
    check(&facts_of(&minimalloc), &["rounded: unknown"], &lacking);

    let readers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../snapshot/tests/readers");
    let text = facts_of(&readers.join("trace.json"));
    let lacking = [&pieces[..], &["requested: ", "rounded: ", "stream: "]].concat();
    check(&text, &["size: 4.00 KiB", "thread: 7"], &lacking);
    let text = facts_of(&readers.join("bfc_chunks.txt"));
    let told = ["size: ", "pinned by live blocks: ", "largest free piece: "];
    check(&text, &told, &["rounding", "requested: "]);
    let text = facts_of(&readers.join("bfc_sums.txt"));
    check(&text, &["size: ", "active: "], &["rounding", "address: "]);
    is_silent(&browser);
}
