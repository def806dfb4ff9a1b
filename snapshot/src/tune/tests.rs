//! Tests `tune` with snapshots of PyTorch, and with a log.

use std::path::Path;

use super::*;
use crate::import;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn snapshot(name: &str) -> Recording {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    import::open(&folder.join(format!("{name}.pickle.gz")), &import::Options::default()).unwrap()
}

fn tuned(recording: &Recording, capacity: Option<u64>) -> Tuned {
    let request = Request { capacity, time: Duration::from_secs(600) };
    tune(recording, &request, &crate::layers(), &mut |_| ()).unwrap()
}

fn printed(tuned: &Tuned) -> String {
    let mut out = Vec::new();
    print(tuned, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_best_needs_as_little_as_the_least_of_all() {
    for name in ["shapes", "fragmented", "max_split_retries"] {
        let tuned = tuned(&snapshot(name), None);
        assert!(!tuned.timed_out && tuned.tried.len() + tuned.pruned > 10, "{name}");
        assert!(tuned.bound_host_order <= tuned.bound_stream_safe, "{name}");
        for tried in &tuned.tried {
            let (stack, smallest) = (&tried.candidate.stack, tried.smallest.as_ref().unwrap());
            assert!(smallest.bytes >= tuned.bound_host_order, "{name} {stack}");
            assert!(
                tried.peak_without_limit.is_none_or(|peak| peak >= smallest.cost.peak_bytes),
                "{name} {stack}"
            );
        }
        let best = &tuned.tried[tuned.best.unwrap()];
        let least = tuned.tried.iter().filter(|tried| tried.candidate.family == Family::Torch);
        let least = least.map(|tried| tried.smallest.as_ref().unwrap().bytes).min().unwrap();
        let needs = best.smallest.as_ref().unwrap().bytes;
        assert!(needs <= least + least / ALIKE, "{name}: {needs}, {least}");
    }
}

#[test]
fn it_finds_the_same_each_time_and_says_it_as_a_line() {
    let recording = snapshot("mixed");
    let found = tuned(&recording, None);
    assert_eq!(found, tuned(&recording, None));
    let text = printed(&found);
    let line = &found.tried[found.best.unwrap()].line;
    assert!(text.contains(&format!("best:\n  {line}\n")), "{text}");
    assert!(text.contains("torch (the file's)") && text.contains("600 of 600 blocks"), "{text}");
    let expandable =
        found.tried.iter().find(|tried| tried.candidate.stack == "torch:expandable_segments=True");
    let expandable = expandable.unwrap();
    assert_eq!(expandable.line, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    assert!(expandable.candidate.constraints[0].contains("sleep mode"));
    // Rounding alone needs more here, so no pair with it is tried; in the small program it does not.
    let pairs = |found: &Tuned| -> Vec<String> {
        let pairs = found.tried.iter().filter(|tried| !tried.candidate.parts.is_empty());
        pairs.map(|tried| tried.line.clone()).collect()
    };
    assert_eq!((pairs(&found).len(), found.pruned), (0, 9));
    assert!(text.contains("not tried: 9 pairs"), "{text}");
    let small = tuned(&snapshot("small"), None);
    let line = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,roundup_power2_divisions:4";
    assert!(pairs(&small).iter().any(|pair| pair == line), "{:?}", pairs(&small));
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["tried"][0]["is_recorded"], true);
    assert!(json["tried"][0]["smallest"]["cost"]["stalls"].is_u64());
}

#[test]
fn ties_and_a_file_that_is_too_short_are_told() {
    let mut found = tuned(&snapshot("mixed"), None);
    let one = Tried { timed_out: false, ..found.tried[0].clone() };
    let tried = |stack: &str, bytes, driver_calls| {
        let mut tried = one.clone();
        (tried.candidate.stack, tried.candidate.is_recorded) = (stack.to_owned(), false);
        let smallest = tried.smallest.as_mut().unwrap();
        (smallest.bytes, smallest.failed_below) = (bytes, Some(bytes - (2 << 20)));
        (smallest.cost.stalls, smallest.cost.driver_calls) = (0, driver_calls);
        tried
    };
    let bytes = 1320 * MIB;
    found.tried = vec![tried("torch:a", bytes, 5), tried("torch:b", bytes, 5), tried("torch:c", bytes, 6)];
    (found.best, found.best_of_all, found.allocations) = (Some(0), Some(0), 10_000);
    let text = printed(&found);
    assert!(text.contains("best:\n") && text.contains("as many stalls and calls: torch:b\n"), "{text}");
    assert!(text.contains("the same memory within 1 %, but more stalls or calls: torch:c\n"), "{text}");
    assert!(
        text.contains("is served with 1.289GiB") && text.contains("with 1.287GiB, a request fails"),
        "{text}"
    );
    found.allocations = 36;
    assert!(printed(&found).contains("best, but the file has only 36 allocations, too few"), "{text}");
    found.tried.truncate(1);
    assert!(!printed(&found).contains("stalls and calls"), "no tie");
}

#[test]
fn the_best_saves_something_or_is_what_the_file_has() {
    for name in ["small", "shapes", "mixed", "retries"] {
        let recording = snapshot(name);
        for capacity in [None, Some(16 << 30)] {
            let found = tuned(&recording, capacity);
            let (best, recorded) = (found.best.unwrap(), 0);
            assert!(found.tried[recorded].candidate.is_recorded);
            let [now, then] = [recorded, best].map(|at| cost_of(&found.tried[at], capacity).unwrap());
            let saves = then.0 as f64 <= now.0 as f64 * 0.99 && then.0 < now.0;
            let is_cheaper = (then.1.stalls, then.1.driver_calls) < (now.1.stalls, now.1.driver_calls);
            assert!(best == recorded || saves || is_cheaper, "{name}: {}", found.tried[best].line);
        }
    }
}

#[test]
fn a_setting_that_saves_less_than_a_hundredth_and_no_call_is_not_the_best() {
    let cost = |stalls, driver_calls| Cost { peak_bytes: 0, stalls, driver_calls, driver_ns: 0 };
    let small = tuned(&snapshot("small"), None).tried.swap_remove(0);
    let tried = |bytes, cost| Tried {
        smallest: Some(Smallest { bytes, cost, also_served: Vec::new(), failed_below: None }),
        ..small.clone()
    };
    let of = |best: (u64, Cost)| {
        let all = [tried(1000, cost(3, 50)), tried(best.0, best.1)];
        if_better(&all, None, 1, Some(0))
    };
    assert_eq!(of((995, cost(3, 50))), 0, "half of a hundredth");
    assert_eq!(of((1000, cost(3, 51))), 0);
    assert_eq!(of((980, cost(3, 60))), 1, "two hundredths");
    assert_eq!(of((1000, cost(3, 49))), 1, "a call");
    assert_eq!(of((1000, cost(2, 60))), 1, "a stall");
    assert_eq!(of((1100, cost(0, 1))), 0, "it needs more");
}

#[test]
fn with_a_capacity_the_fewest_stalls_in_it_win() {
    let recording = snapshot("fragmented");
    let least = tuned(&recording, None);
    let capacity = least.tried.iter().map(|tried| tried.smallest.as_ref().unwrap().bytes).max().unwrap();
    let roomy = tuned(&recording, Some(2 * capacity));
    let stalls = |number: usize| roomy.tried[number].at_capacity.unwrap().stalls;
    assert_eq!(stalls(roomy.best.unwrap()), 0);
    // 720 MiB are live. PyTorch needs more than that, and no allocator can do with less.
    let tight = tuned(&recording, Some(720 * MIB));
    assert_eq!(tight.best, None);
    let best = &tight.tried[tight.best_of_all.unwrap()];
    assert_eq!(best.candidate.stack, "cuda+pool");
    assert!(
        printed(&tight)
            .contains("none of the framework's own settings that were tried serves every request in 720MiB")
    );
    let short = tuned(&recording, Some(700 * MIB));
    assert_eq!(short.best_of_all, None);
    assert!(printed(&short).contains("no allocator can serve this file in 700MiB"), "{}", printed(&short));
}

#[test]
fn a_log_is_tuned_for_rmm() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               7,05:01:18.946606,allocate,0x7f00,3000000,0\n\
               7,05:01:18.946607,allocate,0x8f00,5000000,0\n\
               7,05:01:18.946609,free,0x7f00,3000000,0\n";
    let recording = import::read("log", log.as_bytes(), &import::Options::default()).unwrap();
    let found = tuned(&recording, None);
    assert!(found.fidelity.is_none());
    let arena = found.tried.iter().find(|tried| tried.candidate.stack == "rmm_arena:size=100%").unwrap();
    let bytes = arena.smallest.as_ref().unwrap().bytes;
    assert_eq!(bytes, 8 * MIB);
    let line = "ArenaMemoryResource(rmm.mr.CudaMemoryResource(), arena_size=8 << 20)";
    assert!(arena.line.contains(line), "{}", arena.line);
    assert_eq!(arena.peak_without_limit, None);
    let least = found.bound_host_order as f64;
    assert_eq!(arena.over_host_order, Some(bytes as f64 / least));
    assert!(printed(&found).contains("/ least") && !printed(&found).contains("/ apart"), "one stream");
    let streams = tuned(&snapshot("streams"), None);
    assert!(printed(&streams).contains("/ least  / apart"), "{}", printed(&streams));
    assert!(printed(&found).contains("rmm.mr.set_current_device_resource"), "{}", printed(&found));
    // A capacity that is no whole number of pages leaves no candidate out.
    let unaligned = tuned(&recording, Some(20 * MIB + 12_345));
    let of = |tried: &&Tried| tried.candidate.stack == "rmm_pool:initial=100%";
    let whole = unaligned.tried.iter().find(of).unwrap();
    assert!(whole.at_capacity.is_some(), "{:?}", whole.failure);
    assert!(unaligned.best.is_some());
}

#[test]
fn a_resource_without_a_cache_is_the_best_only_if_no_other_serves() {
    // Every second block is freed, and larger ones follow: pools have holes, the driver does not.
    let row = |action: &str, block: u64, bytes: u64| {
        format!("7,05:01:18.946606,{action},{:#x},{bytes},0\n", (block + 1) << 32)
    };
    let (small, large) = (20 * MIB, 22 * MIB);
    let rows = (0..16).map(|block| row("allocate", block, small));
    let rows = rows.chain((0..16).step_by(2).map(|block| row("free", block, small)));
    let rows = rows.chain((16..23).map(|block| row("allocate", block, large)));
    let log = format!("Thread,Time,Action,Pointer,Size,Stream\n{}", rows.collect::<String>());
    let recording = import::read("log", log.as_bytes(), &import::Options::default()).unwrap();
    let found = tuned(&recording, None);
    let stack = |tried: &Tried| tried.candidate.stack.clone();
    let stacks: Vec<String> = found.tried.iter().map(stack).collect();
    assert!(["cuda", "cuda+pool+binning"].iter().all(|wanted| stacks.iter().any(|stack| stack == wanted)));
    // The driver's pool needs as little memory, and does not stall.
    let mut others = found.tried.clone();
    others.retain(|tried| tried.candidate.family == Family::Rmm && tried.candidate.stack != "cuda_async");
    let name = |number: Option<usize>| stack(&others[number.unwrap()]);
    assert_eq!(name(best(&others, None, |_| true)), "cuda");
    assert_eq!(name(best_with_cache(&others, None, |_| true)), "rmm_pool:initial=100%");
    let plain = |tried: &Tried| tried.candidate.stack == "cuda";
    assert_eq!(name(best_with_cache(&others, None, plain)), "cuda");
    assert!(printed(&found).contains("\ncuda  "), "{}", printed(&found));
}

#[test]
fn the_least_is_that_of_plan_and_is_not_above_what_a_stack_takes() {
    // A hundred thousand blocks of 256 bytes, which neither RMM nor millpond rounds up.
    let blocks = (0..100_000).map(|block| format!("b{block},0,10,256\n"));
    let csv: String = std::iter::once("id,lower,upper,size\n".to_owned()).chain(blocks).collect();
    let recording = import::read("blocks", csv.as_bytes(), &import::Options::default()).unwrap();
    let request = Request { capacity: None, time: Duration::from_secs(600) };
    let found = tune(&recording, &request, &crate::layers(), &mut |_| ()).unwrap();
    assert_eq!(found.bound_host_order, 25_600_000);
    let best = found.tried[found.best.unwrap()].smallest.as_ref().unwrap();
    assert_eq!((best.bytes, best.failed_below), (26 * MIB, None));
    let text = printed(&found);
    assert!(
        text.contains("any allocator needs at least 24.41MiB, and memory comes in pages of 2MiB"),
        "{text}"
    );
    assert!(!text.contains("no allocator can serve the file with less"), "{text}");
}

#[test]
fn a_capacity_time_or_file_beyond_all_devices_is_answered() {
    let recording = snapshot("small");
    let ask = |recording: &Recording, capacity| {
        let request = Request { capacity, time: Duration::from_secs(u64::MAX) };
        tune(recording, &request, &crate::layers(), &mut |_| ()).map_err(|error| error.to_string())
    };
    assert!(!ask(&recording, None).unwrap().timed_out);
    for (capacity, why) in [(9_000_000_000_000_000_000, "at most 16 TiB"), (1 << 20, "at least 2 MiB")] {
        let error = ask(&recording, Some(capacity)).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    for bytes in [18_u64 << 40, 1 << 62] {
        let csv = format!("id,lower,upper,size\na,0,10,{bytes}\n");
        let huge = import::read("huge", csv.as_bytes(), &import::Options::default()).unwrap();
        let error = ask(&huge, None).unwrap_err();
        assert!(error.contains("a simulated device has at most 16TiB"), "{error}");
    }
}

#[test]
fn a_file_that_was_recorded_with_garbage_collection_is_replayed_with_it() {
    let found = tuned(&snapshot("garbage"), None);
    let recorded = &found.tried[0];
    assert_eq!(recorded.candidate.stack, "torch:garbage_collection_threshold=0.6,limit=100%");
    assert!(recorded.candidate.is_recorded && recorded.failure.is_none() && recorded.smallest.is_some());
    let bytes = recorded.smallest.as_ref().unwrap().bytes;
    let limit = format!("set_per_process_memory_fraction(({} << 20) /", bytes / MIB);
    assert!(recorded.line.contains("garbage_collection_threshold:0.6  # and"), "{}", recorded.line);
    assert!(recorded.line.contains(&limit), "{}", recorded.line);
    let same = found.tried.iter().filter(|tried| tried.candidate.stack == recorded.candidate.stack);
    assert_eq!(same.count(), 1);
    let text = printed(&found);
    assert!(text.contains("fidelity --limit SIZE"), "{text}");
}

#[test]
fn when_the_time_is_up_it_says_so() {
    let request = Request { capacity: None, time: Duration::ZERO };
    let found = tune(&snapshot("small"), &request, &crate::layers(), &mut |_| ()).unwrap();
    assert!(found.timed_out && found.best.is_none());
    let text = printed(&found);
    assert!(text.contains("the search found no settings in the given time\n"), "{text}");
    assert!(!text.contains("none of the framework"), "{text}");
    let untried = text.lines().find(|line| line.contains("; not tried: torch torch:")).unwrap();
    assert!(untried.contains(" cuda+pool cuda+pool:pages=off torch:expandable"), "{untried}");
    assert!(!text.lines().any(|line| line.starts_with("torch")), "no rows: {text}");
    // Without a replay, it is known that no allocator can.
    let request = Request { capacity: Some(2 * MIB), time: Duration::ZERO };
    let short = tune(&snapshot("fragmented"), &request, &crate::layers(), &mut |_| ()).unwrap();
    assert!(printed(&short).contains("no allocator can serve this file in 2MiB"), "{}", printed(&short));
}

/// A replay merges the pools of graphs, so the program has other figures.
#[test]
fn no_setting_is_the_best_for_a_file_with_private_pools() {
    let mut found = tuned(&snapshot("graph"), None);
    assert_eq!((found.private_pools, found.best, found.best_of_all), (1, None, None));
    let text = printed(&found);
    assert!(!text.contains("best:") && !text.contains("replayed:") && !text.contains("better,"), "{text}");
    let reason = "the file has 1 private pool (CUDA graphs), which a replay merges: no setting can be \
                  recommended. See `millpond-replay explain ";
    assert!(text.find(reason) < text.find("\nsettings ") && text.contains(reason), "{text}");
    assert!(text.contains("\nwith private pools, the model places "), "{text}");
    assert!(text.contains("reserved); the replays below merge the pools\n"), "{text}");
    (found.private_pools, found.bound_host_order, found.bound_stream_safe) = (5, 26 << 30, 43 << 30);
    let text = printed(&found);
    assert!(
        text.contains("5 private pools") && text.contains("Share one graph pool: see `millpond-replay"),
        "{text}"
    );
    assert!(text.contains("any allocator needs at least 43GiB\n"), "{text}");
}

#[test]
fn settings_that_need_more_than_the_programs_device_are_not_the_best() {
    let mut found = tuned(&snapshot("fragmented"), None);
    let least = found.bound_host_order;
    found.available_bytes = Some(least - MIB);
    choose(&mut found);
    assert_eq!((found.best, found.best_of_all), (None, None));
    let text = printed(&found);
    let sentence = "no allocator makes this program fit on its device, where 719MiB were available when \
                    a request failed: it needs 720MiB; see `millpond-replay explain";
    assert!(text.contains(sentence) && !text.contains("best:"), "{text}");
    found.available_bytes = Some(least);
    choose(&mut found);
    assert_eq!(found.best, None);
    assert_eq!(found.best_of_all.map(|best| found.tried[best].candidate.stack.as_str()), Some("cuda+pool"));
    assert!(printed(&found).contains("on the program's device, where 720MiB were available when"));
}

#[test]
fn sizes_that_differ_have_different_texts_above_the_table_and_in_it() {
    let mut found = tuned(&snapshot("fragmented"), None);
    found.tried[0].smallest.as_mut().unwrap().bytes = 143_104 * MIB;
    (found.bound_host_order, found.bound_stream_safe) = (143_103 * MIB, 143_103 * MIB);
    let text = printed(&found);
    assert!(text.contains("any allocator needs at least 139.749GiB\n"), "{text}");
    assert!(text.contains(" 139.750GiB "), "{text}");
}

#[test]
fn a_capacity_leaves_a_named_rest_for_everything_else() {
    let found = tuned(&snapshot("fragmented"), Some(GIB));
    let smallest = found.tried[found.best_of_all.unwrap()].smallest.as_ref().unwrap().bytes;
    let rest = format_bytes(GIB - smallest);
    let sentence = format!("  fits only if everything else on the device needs at most {rest}\n");
    assert!(printed(&found).contains(&sentence), "{}", printed(&found));
}

#[test]
fn a_failure_by_growth_is_told_before_another_allocator() {
    let row = |action: &str, block: u64| format!("1,00:00:00,{action},{:#x},1000000,0\n", (block + 1) << 24);
    // Two of three blocks are freed.
    let rows = (0..150).map(|block| match block % 3 {
        0 => row("allocate", block),
        _ => row("allocate", block) + &row("free", block),
    });
    let head = "Thread,Time,Action,Pointer,Size,Stream\n";
    let log = format!("{head}{}{}", rows.collect::<String>(), row("allocate failure", 1 << 20));
    let recording = import::read("grows", log.as_bytes(), &import::Options::default()).unwrap();
    let text = printed(&tuned(&recording, None));
    let caution = "live memory grows until the end of the file: another allocator only delays the failure; \
                   see `millpond-replay explain grows`\n";
    assert!(text.contains(caution) && text.find(caution) < text.find("best"), "{text}");
}
