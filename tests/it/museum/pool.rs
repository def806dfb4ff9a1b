//! Mistakes in the pool itself. Each is one change of its source, and the programs and races of
//! `resources/tests/it/programs.rs` or `crowds.rs` must find it within their few seconds.
//!
//! Every test run checks that the changes can still be made. Making a change and running the tests takes a
//! build for each, so that happens only if `MILLPOND_MUSEUM` is set, in a copy of the sources below the build
//! folder.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A change of one place in a file of `resources/src/`, and a text from the run that finds it.
struct Mistake {
    /// The tests that find it: a file of `resources/tests/it/`.
    test: &'static str,
    name: &'static str,
    file: &'static str,
    from: &'static str,
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
    /// Returns the same mistake, to be found by the tests over many streams.
    const fn in_a_crowd(self) -> Self {
        Self { test: "crowds", ..self }
    }
}

const MISTAKES: &[Mistake] = &[
    mistake(
        "a stream cache hands a block to another stream",
        "pool/cache/thread_cache.rs",
        "self.stream_caches.lock().get(&stream).map(",
        "self.stream_caches.lock().values().next().map(",
        "Device(",
    ),
    mistake(
        "a flushed block keeps an epoch that is over",
        "pool/reclaim.rs",
        "let (owner, epoch) = (stream_cache.stream.owner, stream_cache.stream.epoch());",
        "let (owner, epoch) = (stream_cache.stream.owner, stream_cache.stream.epoch() - 1);",
        "Device(",
    ),
    mistake(
        "the block map keeps the entry of a block that a span starts at",
        "store/regions.rs",
        "        self.heap.remove_block(chunk);\n",
        "",
        "Panic",
    ),
    mistake(
        "a guard is made before the lock is taken",
        "sync/spin_lock.rs",
        "taken.then(|| SpinGuard { lock: self, value: PhantomData })",
        "taken.then_some(SpinGuard { lock: self, value: PhantomData })",
        "races_over_every_pool_keep_the_order ... FAILED",
    ),
    mistake(
        "a span goes back with a block in it",
        "heap/mod.rs",
        "first.is_free() && first.is_whole_region() && accepts(first)",
        "first.is_free() && accepts(first)",
        "I10",
    ),
    mistake(
        "a cached block is counted twice",
        "pool/cache/stream_cache.rs",
        "        if is_cached {\n            self.thread.count_push(size.bytes, requested);\n",
        "        if is_cached {\n            self.thread.count_push(size.bytes, requested);\n            \
         self.thread.count_push(size.bytes, requested);\n",
        "I24",
    ),
    mistake(
        "a block of an exact size goes into a class",
        "block_map/mod.rs",
        "self.requested() == bytes && self.key.load(Ordering::Relaxed) & EXACT_SIZE == 0",
        "self.requested() == bytes",
        "I22",
    ),
    mistake(
        "a flushed block is still counted as cached",
        "pool/cache/stream_cache.rs",
        "self.thread.count_flush(free(addr));",
        "free(addr);",
        "I24",
    ),
    mistake(
        "an evicted block is still counted as cached",
        "pool/cache/stream_cache.rs",
        "            self.thread.count_eviction(size.bytes);\n",
        "",
        "I24",
    ),
    mistake(
        "a cached block is still in use, for the block map",
        "pool/cache/stream_cache.rs",
        "        entry.set_requested(0);\n        slot.put(addr, entry);",
        "        slot.put(addr, entry);",
        "I21",
    ),
    mistake(
        "a flush does not see a class",
        "pool/cache/stream_cache.rs",
        "filled.store(filled.load(Ordering::Relaxed) | 1 << (class % 64), Ordering::Relaxed);",
        "",
        "I21",
    ),
    mistake(
        "an arena ignores the owner of a block",
        "pool/fast_path.rs",
        "= self.shared.take(shard, &mut arena, whose, &request) else",
        "= (0..9).map(|owner| Whose::OwnOrUnowned { owner, is_own_first: false }).chain([whose]) \
         .find_map(|whose| self.shared.take(shard, &mut arena, whose, &request)) else",
        "Device(",
    ),
    mistake(
        "a block freed past the stream cache is not counted",
        "pool/fast_path.rs",
        "        self.shared.count_free(&stream_cache.thread, bytes);\n        match Arenas",
        "        match Arenas",
        "I23",
    ),
    mistake(
        "the entry of a freed block stays in the block map",
        "pool/shared.rs",
        "        entry.end();\n",
        "",
        "Panic",
    ),
    mistake(
        "a recorded event does not end its epoch",
        "stream_order/streams.rs",
        "self.cell.epoch.fetch_add(1, Ordering::AcqRel)",
        "self.cell.epoch.load(Ordering::Acquire)",
        "I2",
    ),
    mistake(
        "a wait also covers later frees",
        "stream_order/streams.rs",
        "        raise(seen, donor, epoch);\n",
        "        raise(seen, donor, Epoch::MAX);\n",
        "I3",
    ),
    mistake(
        "a completed event covers later frees",
        "pool/central/collect.rs",
        "self.heaps.disown(request, owner, epoch)",
        "self.heaps.disown(request, owner, Epoch::MAX)",
        "Device(",
    ),
    mistake(
        "a stream that waits for another one takes what that one frees later",
        "pool/central/ladder.rs",
        "self.heaps.take(Whose::Of(donor, event.donor.epoch), &ask.request)?",
        "self.heaps.take(Whose::Of(donor, Epoch::MAX), &ask.request)?",
        "Device(",
    ),
    mistake(
        "a small block from a new span may be freed later than its stream was waited for",
        "pool/heaps.rs",
        "&mut arena, Whose::Of(owner, whose.upto()), request)",
        "&mut arena, Whose::Of(owner, Epoch::MAX), request)",
        "Device(",
    ),
    mistake(
        "the pool does not wait for streams",
        "pool/central/release.rs",
        "match self.driver.event_synchronize(recorded.event) {",
        "match millpond_core::driver::DriverResult::Ok(()) {",
        "Device(",
    ),
    mistake(
        "decay releases memory that a stream still owns",
        "store/pages/release.rs",
        "free_from(ANY_STREAM, from)",
        "free_from(1, from)",
        "Device(",
    ),
    mistake(
        "decay unmaps a handle that a block is in, in the primary mapping or in an alias",
        "store/pages/release.rs",
        "let (start, end) = (extent.addr, extent.addr + extent.bytes);",
        "let (start, end) = (extent.addr, extent.addr + extent.bytes + self.granularity);",
        "Device(",
    ),
    mistake(
        "decay ignores that work is pending",
        "pool/central/incremental.rs",
        "            Ok(false) => return Ok(()),\n",
        "            Ok(false) => {}\n",
        "Device(",
    ),
    mistake(
        "a block from an idle thread's cache is unowned",
        "pool/heaps.rs",
        "entry, stream.owner, stream.epoch())",
        "entry, ANY_STREAM, 0)",
        "Device(",
    ),
    mistake(
        "a class that was flushed incrementally is still counted as cached",
        "pool/cache/stream_cache/idle.rs",
        "self.thread.count_flush(free(addr));",
        "free(addr);",
        "I24",
    ),
    mistake(
        "of two blocks that join, the newer epoch is forgotten",
        "heap/mod.rs",
        "self.chunks[id].epoch().max(self.chunks[next].epoch())",
        "self.chunks[id].epoch()",
        "Device(",
    ),
    mistake(
        "a forgotten stream's number stays in what others have seen",
        "stream_order/streams.rs",
        "            slot.seen.retain(|(owner, _)| !gone.contains(owner));\n",
        "",
        "I3",
    )
    .in_a_crowd(),
    mistake(
        "a stream is forgotten while a thread caches its blocks",
        "stream_order/streams.rs",
        "Arc::strong_count(&slot.cell) == 1 && free_bytes(owner) == 0",
        "free_bytes(owner) == 0",
        "Device(",
    )
    .in_a_crowd(),
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

impl Mistake {
    /// Reads the file below a folder with the sources.
    fn read(&self, sources: &Path) -> String {
        let path = sources.join("resources/src").join(self.file);
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", self.file))
    }

    /// Returns the file's text with the mistake in it.
    fn made(&self, text: &str) -> String {
        let times = text.matches(self.from).count();
        assert_eq!(times, 1, "{}: its place appears {times} times in {}", self.name, self.file);
        text.replacen(self.from, self.to, 1)
    }
}

/// The test modules of `resources` that find the mistakes: each build has only these.
const FINDERS: [&str; 2] = ["crowds", "programs"];

/// A copy of the sources, and its build folder.
struct Copy {
    sources: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn new() -> Self {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join("museum");
        let copy = Self { sources: base.join("sources"), target: base.join("target") };
        if copy.sources.exists() {
            fs::remove_dir_all(&copy.sources).expect("the last copy can be removed");
        }
        copy_folder(root(), &copy.sources);
        let modules: String = FINDERS.iter().map(|name| format!("mod {name};\n")).collect();
        let main = format!("//! The tests that find mistakes.\n\nmod looks;\n{modules}");
        fs::write(copy.sources.join("resources/tests/it/main.rs"), main).expect("the copy can be written");
        copy
    }

    fn cargo_test(&self, test: &str, arguments: &[&str]) -> Output {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--locked", "--offline", "-p", "millpond-resources", "--test", "it"]);
        cargo
            .arg(format!("{test}::"))
            .args(arguments)
            .current_dir(&self.sources)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("MILLPOND_THOROUGH", "1");
        cargo.output().expect("cargo can be run")
    }

    /// Makes the mistake, checks that the tests find it, and takes it back. Returns a problem, if there is
    /// one.
    fn look_for(&self, mistake: &Mistake) -> Option<String> {
        let path = self.sources.join("resources/src").join(mistake.file);
        let right = mistake.read(&self.sources);
        fs::write(&path, mistake.made(&right)).expect("the copy can be written");
        let (built, run) = (self.cargo_test(mistake.test, &["--no-run"]), self.cargo_test(mistake.test, &[]));
        fs::write(&path, right).expect("the copy can be written");
        let said = |output: &Output| {
            let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
            both.join("\n")
        };
        let text = said(&run);
        let found = text.lines().find(|line| line.contains(mistake.found)).unwrap_or_default();
        println!("{}: {}", mistake.name, &found[..found.len().min(160)]);
        match (built.status.success(), run.status.success(), found) {
            (false, ..) => Some(format!("{} does not compile:\n{}", mistake.name, said(&built))),
            (_, true, _) => Some(format!("{} is not found", mistake.name)),
            (.., "") => Some(format!("{} is not found by {}:\n{text}", mistake.name, mistake.found)),
            _ => None,
        }
    }
}

/// Copies a folder, except for build outputs and git's files.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("a folder of the repository") {
        let entry = entry.expect("a readable entry");
        let (name, path) = (entry.file_name(), entry.path());
        if [".git", "target"].map(OsStr::new).contains(&name.as_os_str()) || path == to {
            continue;
        }
        if path.is_dir() {
            copy_folder(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).expect("a file can be copied");
        }
    }
}

#[test]
fn mistakes_of_the_pool_can_be_made() {
    for mistake in MISTAKES {
        mistake.made(&mistake.read(root()));
    }
}

#[test]
fn mistakes_of_the_pool_are_found() {
    if std::env::var_os("MILLPOND_MUSEUM").is_none() {
        println!("SKIPPED: MILLPOND_MUSEUM is not set");
        return;
    }
    let copy = Copy::new();
    for test in FINDERS {
        let right = copy.cargo_test(test, &[]);
        assert!(right.status.success(), "without a mistake: {}", String::from_utf8_lossy(&right.stdout));
    }
    let missed: Vec<String> = MISTAKES.iter().filter_map(|mistake| copy.look_for(mistake)).collect();
    assert!(missed.is_empty(), "\n{}", missed.join("\n\n"));
}
