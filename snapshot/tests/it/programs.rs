//! Tests snapshots of the programs in `tests/programs`, which ran on an H200: plain loops, Lightning,
//! transformers, accelerate, generation, `torch.compile`, graphs, and programs that run out of memory.

use std::collections::BTreeMap;

use millpond_snapshot::explain::explain;
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

/// Each failed in another way. The line is the program's that made the request, and the holder is the line
/// that a user has to change.
#[test]
fn programs_that_ran_out_of_memory_are_told_the_cause_the_line_and_a_change() {
    for (name, code, asker, holder, change) in [
        ("cache", "oom_does_not_fit", "cache.py:23 in append", "cache.py:23 in append", "smaller"),
        ("cycle", "oom_does_not_fit", "cycle.py:19 in __init__", "cycle.py:19 in __init__", "gc.collect()"),
        (
            "exception_frames",
            "oom_does_not_fit",
            "exception_frames.py:17 in forward",
            "exception_frames.py:16 in forward",
            "exception",
        ),
        (
            "fraction",
            "oom_limit",
            "aten::mul in PowBackward0",
            "fraction.py:23 in forward",
            "memory_fraction",
        ),
        (
            "graph_pools",
            "oom_other_pool",
            "graph_pools.py:35 in main",
            "graph_pools.py:16 in run_model",
            "share one pool",
        ),
        ("leak_list", "oom_leak", "leak_list.py:25 in forward", "leak_list.py:25 in forward", "loss.item()"),
        (
            "other_process",
            "oom_does_not_fit",
            "other_process.py:31 in forward",
            "other_process.py:27 in load",
            "nvidia-smi",
        ),
        ("shapes", "oom_fragmentation", "shapes.py:19 in activations", "shapes.py:26 in embed", "expandable"),
        (
            "split_size",
            "oom_rounding",
            "split_size.py:22 in encode",
            "split_size.py:22 in encode",
            "max_split_size_mb and max_non_split_rounding_mb",
        ),
        (
            "streams",
            "oom_other_pool",
            "streams.py:29 in forward",
            "streams.py:23 in prefetch",
            "expandable_segments",
        ),
        ("too_big", "oom_does_not_fit", "too_big.py:18 in distances", "too_big.py:29 in main", "smaller"),
    ] {
        let explanation = explain(&snapshot(&format!("fail_{name}")), None);
        let verdict = &explanation.verdict;
        assert_eq!(verdict.code, code, "{name}: {}", verdict.sentence);
        assert!(verdict.sentence.contains(asker), "{name}: {}", verdict.sentence);
        let diagnosis = &explanation.diagnoses[0];
        let leads: Vec<&str> = diagnosis.holders.iter().map(|holder| holder.lead.as_str()).collect();
        assert!(leads.iter().any(|lead| lead.ends_with(holder)), "{name}: {leads:?}");
        let mut fixes = explanation.diagnoses.iter().flat_map(|diagnosis| &diagnosis.fixes);
        assert!(fixes.any(|fix| fix.contains(change)), "{name}: {:?}", explanation.diagnoses);
    }
}

/// The device's size tells whether another process has the rest.
#[test]
fn the_rest_of_the_device_is_used_outside() {
    let explanation = explain(&snapshot("fail_other_process"), Some(150_109_880_320));
    assert_eq!(explanation.verdict.code, "oom_outside", "{}", explanation.verdict.sentence);
}

#[test]
fn memory_that_rises_is_said_before_other_savings() {
    let explained = explain(&snapshot("fail_leak_list"), None);
    let sentence = &explained.verdict.sentence;
    assert!(sentence.contains(" were missing; the memory that stays live grew from "), "{sentence}");
    let fixes = &explained.diagnoses[0].fixes;
    assert!(fixes[0].contains("loss.item()") && fixes[1].contains("a smaller batch"), "{fixes:?}");
    let explained = explain(&snapshot("fail_cache"), None);
    let grows = " were missing; a tensor grows by copying (cache.py:23 in append, by 1.09GiB a step), and \
                 the old and the new one are live together (45.9GiB and 46.9GiB)";
    assert!(explained.verdict.sentence.ends_with(grows), "{}", explained.verdict.sentence);
    assert!(explained.diagnoses[0].fixes[0].contains("write into a slice"), "{:?}", explained.diagnoses);
    // A program that is too large from the start did not grow.
    let sentence = explain(&snapshot("fail_too_big"), None).verdict.sentence;
    assert!(!sentence.contains(" stays live "), "{sentence}");
}

#[test]
fn free_memory_of_graphs_is_named_with_the_line_that_captures_them() {
    let explanation = explain(&snapshot("fail_graph_pools"), None);
    assert_eq!(explanation.bound_host_order, explanation.bound_stream_safe);
    let codes: Vec<&str> = explanation.diagnoses.iter().map(|diagnosis| diagnosis.code).collect();
    assert!(!codes.contains(&"reserved_beyond_need"), "{codes:?}");
    let diagnosis = &explanation.diagnoses[0];
    let what = "131GiB were free, but in 5 private pools of CUDA graphs (5 × 26.2GiB), so this request could \
                not use them";
    let fix = "at graph_pools.py:22 in capture: share one pool among the graphs: torch.cuda.graph(graph, \
               pool=first.pool())";
    assert_eq!((diagnosis.what.as_str(), diagnosis.fixes[0].as_str()), (what, fix));
}
