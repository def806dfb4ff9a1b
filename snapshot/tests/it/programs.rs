//! Tests snapshots of the programs in `tests/programs`, which ran on an H200: plain loops, Lightning,
//! transformers, accelerate, generation, `torch.compile`, graphs, and programs that run out of memory.

use std::collections::BTreeMap;

use millpond_snapshot::recording::Recording;

use crate::imported;
use crate::snapshots::folder;

fn snapshot(name: &str) -> Recording {
    imported(&std::fs::read(folder().join(format!("programs/{name}.pickle.gz"))).unwrap())
}

/// Returns the bytes and blocks that each line holds at the peak of requested bytes. Blocks that wait for
/// other streams do not count.
fn held(recording: &Recording) -> BTreeMap<String, (u64, u64)> {
    let mut held = BTreeMap::new();
    let moment = recording.moment(recording.sums().peak_event as usize);
    for block in moment.blocks().iter().filter(|block| !block.is_held) {
        let Some(stack) = block.stack else { continue };
        let lead = recording.user_stack(stack).lead(recording.user_folder());
        // The file without its folder.
        let lead = lead.rsplit('/').next().unwrap().to_owned();
        let (bytes, blocks) = held.entry(lead).or_insert((0, 0));
        *bytes += block.bytes;
        *blocks += 1;
    }
    held
}

/// `tests/programs/truth.py` replays the snapshots in Python, without this crate.
#[test]
fn each_line_of_the_user_holds_the_bytes_that_a_replay_in_python_counts() {
    let text = std::fs::read_to_string(folder().join("programs/truth.tsv")).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let [name, bytes, blocks, line] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("four columns: {line}")
        };
        (name, (line.to_owned(), (bytes.parse().unwrap(), blocks.parse().unwrap())))
    });
    let mut expected: BTreeMap<&str, BTreeMap<String, (u64, u64)>> = BTreeMap::new();
    for (name, (line, counts)) in rows {
        expected.entry(name).or_default().insert(line, counts);
    }
    assert!(expected.len() > 40, "{}", expected.len());
    for (name, lines) in expected {
        let held = held(&snapshot(name));
        for (line, counts) in lines {
            assert_eq!(held.get(&line), Some(&counts), "{name}: {line}, of {held:#?}");
        }
    }
}
