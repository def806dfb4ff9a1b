//! Mistakes in the pool itself. Each is one change of its source, and the programs and races of
//! `resources/tests/it/` (`programs.rs`, `interruptions.rs` or `crowds.rs`) or the comparison with the model
//! of stream order must find it within their few seconds.
//!
//! Every test run checks that the changes can still be made. If `MILLPOND_MUSEUM` is set, a test also makes
//! them, in a copy of the sources below the build folder. It builds the copy once, with every mistake behind
//! a switch: a run makes the mistake whose number is in the variable `MILLPOND_MISTAKE`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The words of the comparison with the model (`resources/src/pool/central/tie/`).
const DIFFERS: &str = "the pool and the model differ";

/// A change of one place in a file of `resources/src/`, and a text from the run that finds it.
struct Mistake {
    /// The tests that find it: a file of `resources/tests/it/`, or a module of `tie`. It is one module: a
    /// search of `tie::tests` has no end if the pool and its model make the same mistake.
    test: &'static str,
    name: &'static str,
    file: &'static str,
    from: &'static str,
    /// The new text. `WRONG` stands for the switch, an expression that is true if the mistake is made.
    to: &'static str,
    found: &'static str,
}

const fn mistake(
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    found: &'static str,
) -> Mistake {
    Mistake { test: "programs", name, file, from, to, found }
}

impl Mistake {
    /// Returns the same mistake, to be found by other tests.
    const fn found_by(self, test: &'static str) -> Self {
        Self { test, ..self }
    }
}

const MISTAKES: &[Mistake] = &[
    mistake(
        "a stream cache hands a block to another stream",
        "pool/cache/thread_cache.rs",
        "self.stream_caches.lock().get(&stream).map(",
        "self.stream_caches.lock().iter().find(|(id, _)| WRONG || **id == stream).map(|(_, it)| it).map(",
        "Device(",
    ),
    mistake(
        "a flushed block keeps an epoch that is over",
        "pool/reclaim.rs",
        "let (owner, epoch) = (stream_cache.stream.owner, stream_cache.stream.epoch());",
        "let (owner, epoch) = (stream_cache.stream.owner, stream_cache.stream.epoch() - u64::from(WRONG));",
        "Device(",
    ),
    mistake(
        "the block map keeps the entry of a block that a span starts at",
        "store/regions.rs",
        "self.heap.remove_block(chunk);",
        "if !WRONG { self.heap.remove_block(chunk); }",
        "Panic",
    ),
    mistake(
        "a guard is made before the lock is taken",
        "sync/spin_lock.rs",
        "taken.then(|| SpinGuard { lock: self, value: PhantomData })",
        "if WRONG { return taken.then_some(SpinGuard { lock: self, value: PhantomData }); } \
         taken.then(|| SpinGuard { lock: self, value: PhantomData })",
        // The race fails, or the process dies of the broken memory.
        "test failed",
    ),
    mistake(
        "a span goes back with a block in it",
        "heap/mod.rs",
        "first.is_free() && first.is_whole_region() && accepts(first)",
        "first.is_free() && (WRONG || first.is_whole_region()) && accepts(first)",
        "I10",
    ),
    mistake(
        "a cached block is counted twice",
        "pool/cache/stream_cache.rs",
        "self.thread.count_push(size.bytes, requested);",
        "(0..1 + u8::from(WRONG)).for_each(|_| self.thread.count_push(size.bytes, requested));",
        "I24",
    ),
    mistake(
        "a block of an exact size goes into a class",
        "block_map/mod.rs",
        "self.requested() == bytes && self.key.load(Ordering::Relaxed) & EXACT_SIZE == 0",
        "self.requested() == bytes && (WRONG || self.key.load(Ordering::Relaxed) & EXACT_SIZE == 0)",
        "I22",
    ),
    mistake(
        "a flushed block is still counted as cached",
        "pool/cache/stream_cache.rs",
        "self.thread.count_flush(free(addr));",
        "let flushed = free(addr);\n                if !WRONG { self.thread.count_flush(flushed); }",
        "I24",
    ),
    mistake(
        "an evicted block is still counted as cached",
        "pool/cache/stream_cache.rs",
        "self.thread.count_eviction(size.bytes);",
        "if !WRONG { self.thread.count_eviction(size.bytes); }",
        "I24",
    ),
    mistake(
        "a cached block is still in use, for the block map",
        "pool/cache/stream_cache.rs",
        "        entry.set_requested(0);\n        slot.put(addr, entry);",
        "        if !WRONG { entry.set_requested(0); }\n        slot.put(addr, entry);",
        "I21",
    ),
    mistake(
        "a flush does not see a class",
        "pool/cache/stream_cache.rs",
        "filled.store(filled.load(Ordering::Relaxed) | 1 << (class % 64), Ordering::Relaxed);",
        "if !WRONG { filled.store(filled.load(Ordering::Relaxed) | 1 << (class % 64), Ordering::Relaxed); }",
        "I21",
    ),
    mistake(
        "an arena ignores the owner of a block",
        "pool/fast_path.rs",
        "= self.shared.take(shard, &mut arena, whose, &request) else",
        "= (0..if WRONG { 9 } else { 0 }).map(|owner| Whose::OwnOrUnowned { owner, is_own_first: false }) \
         .chain([whose]).find_map(|whose| self.shared.take(shard, &mut arena, whose, &request)) else",
        "Device(",
    ),
    mistake(
        "a block freed past the stream cache is not counted",
        "pool/fast_path.rs",
        "self.shared.count_free(&stream_cache.thread, bytes);\n        match Arenas",
        "if !WRONG { self.shared.count_free(&stream_cache.thread, bytes); }\n        match Arenas",
        "I23",
    ),
    mistake(
        "the entry of a freed block stays in the block map",
        "pool/shared.rs",
        "entry.end();",
        "if !WRONG { entry.end(); }",
        "Panic",
    ),
    mistake(
        "a recorded event does not end its epoch",
        "stream_order/streams.rs",
        "self.cell.epoch.fetch_add(1, Ordering::AcqRel)",
        "self.cell.epoch.fetch_add(u64::from(!WRONG), Ordering::AcqRel)",
        "I2",
    ),
    mistake(
        "a wait also covers later frees",
        "stream_order/streams.rs",
        "raise(seen, donor, epoch);",
        "raise(seen, donor, if WRONG { Epoch::MAX } else { epoch });",
        "I3",
    ),
    mistake(
        "a completed event covers later frees",
        "pool/central/collect.rs",
        "self.heaps.disown(request, owner, epoch)",
        "self.heaps.disown(request, owner, if WRONG { Epoch::MAX } else { epoch })",
        "Device(",
    ),
    mistake(
        "a stream that waits for another one takes what that one frees later",
        "pool/central/ladder.rs",
        "self.heaps.take(Whose::Of(donor, event.donor.epoch), &",
        "self.heaps.take(Whose::Of(donor, if WRONG { Epoch::MAX } else { event.donor.epoch }), &",
        "StreamOrder",
    )
    .found_by("interruptions"),
    mistake(
        "a small block from a new span may be freed later than its stream was waited for",
        "pool/heaps.rs",
        "&mut arena, Whose::Of(owner, whose.upto()), request)",
        "&mut arena, Whose::Of(owner, if WRONG { Epoch::MAX } else { whose.upto() }), request)",
        "StreamOrder",
    )
    .found_by("interruptions"),
    mistake(
        "the pool does not wait for streams",
        "pool/central/release.rs",
        "match self.driver.event_synchronize(recorded.event) {",
        "match if WRONG { Ok(()) } else { self.driver.event_synchronize(recorded.event) } {",
        "Device(",
    ),
    mistake(
        "decay releases memory that a stream still owns",
        "store/pages/release.rs",
        "free_from(ANY_STREAM, from)",
        "free_from(if WRONG { 1 } else { ANY_STREAM }, from)",
        "Device(",
    ),
    mistake(
        "decay unmaps a handle that a block is in, in the primary mapping or in an alias",
        "store/pages/release.rs",
        "let (start, end) = (extent.addr, extent.addr + extent.bytes);",
        "let beyond = if WRONG { self.granularity } else { 0 };\n        \
         let (start, end) = (extent.addr, extent.addr + extent.bytes + beyond);",
        "Device(",
    ),
    mistake(
        "decay ignores that work is pending",
        "pool/central/incremental.rs",
        "Ok(false) => return Ok(()),",
        "Ok(false) if WRONG => {}\n            Ok(false) => return Ok(()),",
        "Device(",
    ),
    mistake(
        "a block from an idle thread's cache is unowned",
        "pool/heaps.rs",
        "entry, stream.owner, stream.epoch())",
        "entry, if WRONG { ANY_STREAM } else { stream.owner }, if WRONG { 0 } else { stream.epoch() })",
        "Device(",
    ),
    mistake(
        "a class that was flushed incrementally is still counted as cached",
        "pool/cache/stream_cache/idle.rs",
        "self.thread.count_flush(free(addr));",
        "let flushed = free(addr);\n                if !WRONG { self.thread.count_flush(flushed); }",
        "I24",
    ),
    mistake(
        "of two blocks that join, the newer epoch is forgotten",
        "heap/mod.rs",
        "self.chunks[id].epoch().max(self.chunks[next].epoch())",
        "self.chunks[id].epoch().max(if WRONG { 0 } else { self.chunks[next].epoch() })",
        "Device(",
    ),
    mistake(
        "a forgotten stream's number stays in what others have seen",
        "stream_order/streams.rs",
        "slot.seen.retain(|(owner, _)| !gone.contains(owner));",
        "slot.seen.retain(|(owner, _)| WRONG || !gone.contains(owner));",
        "I3",
    )
    .found_by("crowds"),
    mistake(
        "a stream is forgotten while a thread caches its blocks",
        "stream_order/streams.rs",
        "Arc::strong_count(&slot.cell) == 1 && free_bytes(owner) == 0",
        "(WRONG || Arc::strong_count(&slot.cell) == 1) && free_bytes(owner) == 0",
        "Device(",
    )
    .found_by("crowds"),
    mistake(
        "RMM's issue 2489: an event also covers what its stream waited for after the record",
        "pool/central/collect.rs",
        "let (seen, recorded_ns) = (slot.recorded_seen.clone(), slot.recorded_ns);",
        "let seen = if WRONG { slot.seen().collect() } else { slot.recorded_seen.clone() };\n    \
         let recorded_ns = slot.recorded_ns;",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "a record has the order of the moment when it is noted",
        "stream_order/streams.rs",
        "slot.recorded_seen = pending_record.seen;",
        "slot.recorded_seen = if WRONG { slot.seen.clone() } else { pending_record.seen };",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "the record of an event that is not kept counts",
        "stream_order/streams.rs",
        "let recorded = recorded && is_its_event;",
        "let recorded = recorded && (WRONG || is_its_event);",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "a query's answer counts for a record that came after it",
        "pool/central/collect.rs",
        "            let epoch = recorded.donor.epoch;\n            let is_all",
        "            let latest = slot.recorded_epoch.filter(|_| WRONG).unwrap_or(0);\n            \
         let epoch = recorded.donor.epoch.max(latest);\n            let is_all",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "decay disowns the blocks of an epoch that is not over",
        "pool/central/incremental.rs",
        "self.heaps.disown_step(owner, recorded.donor.epoch, at)",
        "self.heaps.disown_step(owner, if WRONG { u64::MAX } else { recorded.donor.epoch }, at)",
        DIFFERS,
    )
    .found_by("tie::tests"),
    mistake(
        "a wait for the device covers frees during it",
        "pool/central/release.rs",
        "heaps.disown(None, owner, donor.epoch);",
        "heaps.disown(None, owner, if WRONG { u64::MAX } else { donor.epoch });",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "a wait for the device keeps a record that it covers",
        "pool/central/release.rs",
        "slot.recorded_epoch.is_some_and(|epoch| epoch <= donor.epoch)",
        "!WRONG && slot.recorded_epoch.is_some_and(|epoch| epoch <= donor.epoch)",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "a stream is forgotten while a thread holds an event",
        "pool/central/collect.rs",
        "if !turns.is_alone() {",
        "if !WRONG && !turns.is_alone() {",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "a stream is forgotten while a record is pending",
        "stream_order/streams.rs",
        "self.slots.iter().flatten().any(is_pending)",
        "!WRONG && self.slots.iter().flatten().any(is_pending)",
        DIFFERS,
    )
    .found_by("tie::tests"),
    mistake(
        "a forgotten stream's number stays in what events cover",
        "stream_order/streams.rs",
        "slot.recorded_seen.retain(|(owner, _)| !gone.contains(owner));",
        "slot.recorded_seen.retain(|(owner, _)| WRONG || !gone.contains(owner));",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "a wait is noted, and is not submitted",
        "pool/central/act.rs",
        "= self.driver.stream_wait_event(stream, event.event)",
        "= if WRONG { Ok(()) } else { self.driver.stream_wait_event(stream, event.event) }",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "an event counts as reached before it is",
        "pool/central/collect.rs",
        "if !self.is_reached(&recorded)? {",
        "if !self.is_reached(&recorded)? && !WRONG {",
        DIFFERS,
    )
    .found_by("tie::programs"),
    mistake(
        "a span has an earlier epoch than its memory",
        "pool/arena.rs",
        "self.heap.add_region(span.base, span.bytes, owner, span.epoch);",
        "self.heap.add_region(span.base, span.bytes, owner, if WRONG { 0 } else { span.epoch });",
        DIFFERS,
    )
    .found_by("tie::stacks"),
    mistake(
        "the last piece of a block over pages has an earlier epoch",
        "store/pages/state.rs",
        "heap.free(chunk, owner, epoch);",
        "heap.free(chunk, owner, epoch - u64::from(WRONG && next == NIL && chunk != unpack(block).1));",
        DIFFERS,
    )
    .found_by("tie::stacks"),
    mistake(
        "a stitched block gets bytes that were freed later",
        "store/pages/collect_ends.rs",
        "chunk.epoch() <= upto {",
        "(WRONG || chunk.epoch() <= upto) {",
        DIFFERS,
    )
    .found_by("tie::stacks"),
    mistake(
        "an event that is reached disowns later blocks of an arena",
        "pool/reclaim.rs",
        "arena.heap.migrate(owner, upto, ANY_STREAM, 0);",
        "arena.heap.migrate(owner, upto + u64::from(WRONG), ANY_STREAM, 0);",
        DIFFERS,
    )
    .found_by("tie::stacks"),
];

/// Added to the copy's `resources/src/lib.rs`: the switch of each mistake. Mistake 0 is none.
const SWITCH: &str = r#"
pub(crate) fn is_made(mistake: usize) -> bool {
    static MADE: std::sync::LazyLock<usize> = std::sync::LazyLock::new(|| {
        let made = std::env::var("MILLPOND_MISTAKE").expect("MILLPOND_MISTAKE is set");
        made.parse().expect("MILLPOND_MISTAKE is a number")
    });
    *MADE == mistake
}
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the repository")
}

/// Puts all mistakes into the sources below a folder; `write` gets each changed file's path and text.
fn make_mistakes(sources: &Path, mut write: impl FnMut(&Path, &str)) {
    let sources = sources.join("resources/src");
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let mut texts = BTreeMap::from([(sources.join("lib.rs"), read(&sources.join("lib.rs")) + SWITCH)]);
    for (mistake, number) in MISTAKES.iter().zip(1..) {
        let path = sources.join(mistake.file);
        let text = texts.entry(path.clone()).or_insert_with(|| read(&path));
        let times = text.matches(mistake.from).count();
        assert_eq!(times, 1, "{}: its place appears {times} times in {}", mistake.name, mistake.file);
        assert!(mistake.to.contains("WRONG"), "{}: it has no switch", mistake.name);
        let to = mistake.to.replace("WRONG", &format!("crate::is_made({number})"));
        *text = text.replacen(mistake.from, &to, 1);
    }
    texts.iter().for_each(|(path, text)| write(path, text));
}

/// The test modules of `resources` that find the mistakes: the copy has only these.
const FINDERS: [&str; 3] = ["crowds", "interruptions", "programs"];

/// A copy of the sources with all mistakes, and its build folder.
struct Copy {
    sources: PathBuf,
    target: PathBuf,
}

/// A command that has ended.
struct Run {
    command: String,
    passed: bool,
    said: String,
}

impl Run {
    /// Returns the command and the end of its output.
    fn end(&self) -> String {
        let lines: Vec<&str> = self.said.lines().collect();
        format!("{}\n{}", self.command, lines[lines.len().saturating_sub(60)..].join("\n"))
    }
}

impl Copy {
    fn new() -> Self {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join("museum");
        let copy = Self { sources: base.join("sources"), target: base.join("target") };
        if copy.sources.exists() {
            fs::remove_dir_all(&copy.sources).expect("the last copy can be removed");
        }
        copy_folder(root(), &copy.sources);
        make_mistakes(root(), |path, text| {
            let below = path.strip_prefix(root()).expect("a file below the root");
            fs::write(copy.sources.join(below), text).expect("the copy can be written");
        });
        let modules: String = FINDERS.iter().map(|name| format!("mod {name};\n")).collect();
        let main = format!("//! The tests that find mistakes.\n\nmod looks;\n{modules}");
        fs::write(copy.sources.join("resources/tests/it/main.rs"), main).expect("the copy can be written");
        copy
    }

    /// Runs the unit tests at their ordinary size, or the programs of `it` thoroughly, over the pool with a
    /// mistake.
    fn cargo_test(&self, mistake: usize, are_units: bool, filter: &str) -> Run {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["test", "--locked", "-p", "millpond-resources"])
            .args(if are_units { &["--lib"][..] } else { &["--test", "it"] })
            .arg(filter)
            .current_dir(&self.sources)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("MILLPOND_MISTAKE", mistake.to_string())
            .env_remove("MILLPOND_THOROUGH")
            .env_remove("MILLPOND_ORDER_OPS");
        if !are_units {
            cargo.env("MILLPOND_THOROUGH", "1");
        }
        let output = cargo.output().expect("cargo can be run");
        let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let said = format!("{}\n{}", both.join("\n"), output.status);
        Run { command: format!("{cargo:?}"), passed: output.status.success(), said }
    }

    /// Checks that the tests find the mistake. Returns a problem, if there is one.
    fn look_for(&self, number: usize, mistake: &Mistake) -> Option<String> {
        let start = Instant::now();
        // Unit tests may have modules of the same names.
        let are_units = mistake.test.starts_with("tie");
        let run = self.cargo_test(number, are_units, &format!("{}::", mistake.test));
        let found = run.said.lines().find(|line| line.contains(mistake.found));
        let shown: String = found.unwrap_or("NOT FOUND").chars().take(160).collect();
        println!("{number}, {} s: {}: {shown}", start.elapsed().as_secs(), mistake.name);
        match (run.passed, found) {
            (true, _) => Some(format!("{number} is not found: {}\n{}", mistake.name, run.command)),
            (false, None) => {
                Some(format!("{number}, {}, is not found by {}: {}", mistake.name, mistake.found, run.end()))
            }
            (false, Some(_)) => None,
        }
    }
}

/// Copies a folder, except for build outputs, such as the copy itself, and git's files.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("a folder of the repository") {
        let entry = entry.expect("a readable entry");
        let (name, path) = (entry.file_name(), entry.path());
        let is_output = Path::new(env!("CARGO_TARGET_TMPDIR")).starts_with(&path);
        if is_output || [".git", "target", "gpu-lane"].map(OsStr::new).contains(&name.as_os_str()) {
            continue;
        }
        if path.is_dir() {
            copy_folder(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        }
    }
}

#[test]
fn mistakes_of_the_pool_can_be_made() {
    make_mistakes(root(), |_, _| {});
}

#[test]
fn mistakes_of_the_pool_are_found() {
    if std::env::var_os("MILLPOND_MUSEUM").is_none() {
        println!("SKIPPED: MILLPOND_MUSEUM is not set");
        return;
    }
    let copy = Copy::new();
    for are_units in [false, true] {
        let right = copy.cargo_test(0, are_units, "");
        assert!(right.passed, "without a mistake: {}", right.end());
    }
    let look = |(mistake, number)| copy.look_for(number, mistake);
    let missed: Vec<String> = MISTAKES.iter().zip(1..).filter_map(look).collect();
    assert!(missed.is_empty(), "\n{}", missed.join("\n\n"));
}
