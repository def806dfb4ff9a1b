//! Replays allocation logs through [`Pages`] alone: what a policy reaches, without the rest of the pool.
//!
//! ```text
//! MILLPOND_LOGS=<folder of CSV files> cargo test -p millpond-resources logs_replay -- --nocapture
//! ```
//!
//! `MILLPOND_COPIES=n` replays n copies besides, in which each distinct size is multiplied by a fixed factor
//! between 0.7 and 1.4, and prints means: one log alone says little, since the figures are chaotic in the
//! parameters. `MILLPOND_PASSES=n` replays each log n times in the same pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_core::Layout;
use millpond_core::driver::Driver;
use millpond_driver::sim::{SimConfig, SimDevice};
use rustc_hash::FxHashMap;

use super::super::classes::rounded;
use super::super::heap::Heap;
use super::*;

const OWNER: Owner = 1;

/// Blocks of at most so many bytes come from spans of so many.
const IN_ARENA: u64 = 128 << 10;
const SPAN: u64 = 2 << 20;

/// A row of a log: a block's number and size, or the number of one that goes back.
#[derive(Clone, Copy)]
enum Row {
    Allocate(u32, u64),
    Deallocate(u32),
}

struct Log {
    name: String,
    rows: Vec<Row>,
    blocks: usize,
}

fn read(path: &Path) -> Log {
    let text = std::fs::read_to_string(path).expect("a log is a text file");
    let (mut numbers, mut rows, mut blocks) = (FxHashMap::default(), Vec::new(), 0);
    for line in text.lines().skip(1) {
        let columns: Vec<&str> = line.split(',').collect();
        let [_, _, action, pointer, size, ..] = columns[..] else { continue };
        if action == "allocate" {
            numbers.insert(pointer, blocks);
            rows.push(Row::Allocate(blocks, size.trim().parse().expect("a size in bytes")));
            blocks += 1;
        } else if let Some(block) = numbers.remove(pointer) {
            rows.push(Row::Deallocate(block));
        }
    }
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Log { name, rows, blocks: blocks as usize }
}

/// Bits that differ for each size and seed.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Log {
    fn copy(&self, seed: u64) -> Self {
        let scale = |bytes: u64| {
            let bits = mix(bytes.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(seed)) >> 11;
            ((bytes as f64 * (0.7 + 0.7 * bits as f64 / (1u64 << 53) as f64)) as u64).max(1)
        };
        let rows = self.rows.iter().map(|row| match *row {
            Row::Allocate(block, bytes) => Row::Allocate(block, scale(bytes)),
            other => other,
        });
        Self { name: self.name.clone(), rows: rows.collect(), blocks: self.blocks }
    }
}

#[derive(Clone, Copy)]
enum Block {
    Large(ChunkId),
    Small(ChunkId),
}

/// A pool in small: one stream, one arena for small blocks, no fronts.
struct Bench {
    pages: Pages,
    device: Arc<SimDevice>,
    arena: Heap,
    /// Spans by address.
    spans: FxHashMap<u64, ChunkId>,
    live: u64,
    peak_live: u64,
    misses: u64,
    plans: u64,
    operations: u64,
    in_driver: Duration,
}

impl Bench {
    fn new(policy: Policy) -> Self {
        let device = SimDevice::new(SimConfig::h200());
        let granularity = device.mem_get_allocation_granularity().expect("sim has virtual memory");
        Self {
            pages: Pages::new(granularity, 139 << 30, u64::MAX, policy),
            device,
            arena: Heap::new(32),
            spans: FxHashMap::default(),
            live: 0,
            peak_live: 0,
            misses: 0,
            plans: 0,
            operations: 0,
            in_driver: Duration::ZERO,
        }
    }

    fn grow(&mut self, request: &Request, is_span: bool) -> (ChunkId, u64) {
        self.plans += 1;
        self.pages.note_operations(self.operations);
        let plan = self.pages.plan(OWNER, request, is_span, self.live, u64::MAX);
        let mut plan = plan.expect("the pool has no maximum");
        let start = Instant::now();
        plan.carry_out(&*self.device).expect("the device is large enough");
        self.in_driver += start.elapsed();
        let block = self.pages.commit(plan);
        if let Some(mut release) = self.pages.plan_tidying() {
            release.carry_out(&*self.device).expect("what is mapped can be unmapped");
            self.pages.finish_release(release);
        }
        block
    }

    /// What the pool does before it grows: whole spans go back, and what is done becomes anyone's: on an idle
    /// device, all.
    fn gather(&mut self) {
        self.misses += 1;
        while let Some((region, _, _)) = self.arena.remove_free_region(|_| true) {
            let span = self.spans.remove(&region.base).expect("a region is a span");
            self.pages.give(span, OWNER, 1);
        }
        self.pages.migrate(OWNER, Epoch::MAX, ANYONE, 0);
    }

    fn allocate(&mut self, bytes: u64) -> Block {
        let layout = Layout::new(bytes);
        let request = Request { bytes: rounded(bytes), ..Request::new(layout).expect("not too large") };
        if bytes <= IN_ARENA {
            return Block::Small(self.allocate_small(&request));
        }
        if let Some(found) = self.pages.find_for(OWNER, &request, false) {
            return Block::Large(self.pages.take(found, &request).0);
        }
        self.gather();
        if let Some(found) = self.pages.find_for(OWNER, &request, false) {
            return Block::Large(self.pages.take(found, &request).0);
        }
        Block::Large(self.grow(&request, false).0)
    }

    fn take_span(&mut self, request: &Request) -> Option<(ChunkId, u64, u64, Epoch)> {
        let mut take = |owner| self.pages.take_span(owner, Epoch::MAX, SPAN, request);
        take(OWNER).or_else(|| take(ANYONE))
    }

    fn allocate_small(&mut self, request: &Request) -> ChunkId {
        if let Some(chunk) = self.arena.find(OWNER, Epoch::MAX, request) {
            return self.arena.take(chunk, request.bytes, request.alignment);
        }
        let (span, addr, bytes) = match self.take_span(request) {
            Some((span, addr, bytes, _)) => (span, addr, bytes),
            None => {
                let (span, addr) = self.grow(&Request { bytes: SPAN, ..*request }, true);
                (span, addr, self.pages.bytes_of(span))
            }
        };
        self.spans.insert(addr, span);
        let chunk = self.arena.add_region(addr, bytes, OWNER, 0);
        self.arena.take(chunk, request.bytes, request.alignment)
    }

    /// Replays a log; says how long it took without the driver.
    fn pass(&mut self, log: &Log) -> Duration {
        // Spans that an arena still holds would make each pass another program.
        self.gather();
        let before = self.in_driver;
        let start = Instant::now();
        let mut blocks = vec![None; log.blocks];
        for row in &log.rows {
            self.operations += 1;
            match *row {
                Row::Allocate(number, bytes) => {
                    blocks[number as usize] = Some((self.allocate(bytes), bytes));
                    self.live += bytes;
                    self.peak_live = self.peak_live.max(self.live);
                }
                Row::Deallocate(number) => {
                    let (block, bytes) = blocks[number as usize].take().expect("a block goes back once");
                    self.deallocate(block, bytes);
                }
            }
        }
        blocks.into_iter().flatten().for_each(|(block, bytes)| self.deallocate(block, bytes));
        start.elapsed() - (self.in_driver - before)
    }

    fn deallocate(&mut self, block: Block, bytes: u64) {
        self.live -= bytes;
        match block {
            Block::Large(id) => self.pages.give(id, OWNER, 1),
            Block::Small(id) => self.arena.give(id, OWNER, 1),
        }
    }
}

/// Costs measured on an H200, in nanoseconds: a new handle at home, a second mapping.
const CREATE_NS: f64 = 25_500.0;
const MAP_NS: f64 = 20_000.0;

struct Outcome {
    ratio: f64,
    ns_in_calls: f64,
    text: String,
}

fn replay(log: &Log, policy: Policy, passes: usize) -> Outcome {
    let mut bench = Bench::new(policy);
    let rows = log.rows.len() as f64;
    let mut text = String::new();
    let mut ns_in_calls = 0.0;
    for pass in 0..passes {
        let before = bench.pages.totals();
        let took = bench.pass(log);
        let totals = bench.pages.totals();
        let (creates, maps) = (totals.handles - before.handles, totals.mappings - before.mappings);
        let calls = (creates as f64 * CREATE_NS + maps as f64 * MAP_NS) / rows;
        if pass == 0 {
            ns_in_calls = calls;
        }
        let ratio = bench.pages.totals().peak_bytes_reserved as f64 / bench.peak_live as f64;
        text += &format!(
            "  {ratio:.4}  creates {creates:4} maps {maps:4} views {:3} plans {:4} searches {:4}  \
             ns/row {calls:4.0} in calls, {:3.0} beside",
            totals.views,
            bench.plans,
            bench.misses,
            took.as_nanos() as f64 / rows,
        );
    }
    bench.pages.validate();
    let totals = bench.pages.totals();
    assert_eq!(bench.device.peak_bytes(), totals.peak_bytes_reserved);
    Outcome { ratio: totals.peak_bytes_reserved as f64 / bench.peak_live as f64, ns_in_calls, text }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What a program asks for, in bytes: no spans, which come and go as memory is short.
const SIZES: [u64; 10] = [
    300_000, 1_100_000, 2_500_000, 4_194_304, 6_000_000, 9_437_184, 17_000_000, 22_000_000, 33_554_432,
    49_000_000,
];

/// Blocks that live for a while: about 400 MiB of them, and 512 now and then.
fn made_up() -> Log {
    let (mut rows, mut live, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut blocks = 0;
    for step in 0..1000 {
        let size = SIZES[mix(step % 60) as usize % SIZES.len()];
        live.push((blocks, size));
        rows.push(Row::Allocate(blocks, size));
        (blocks, bytes) = (blocks + 1, bytes + size);
        let most = if step % 40 == 0 { 512 << 20 } else { 400 << 20 };
        while bytes > most {
            let (block, size) = live.swap_remove(mix(step % 60) as usize % live.len());
            rows.push(Row::Deallocate(block));
            bytes -= size;
        }
    }
    Log { name: "made up".into(), rows, blocks: blocks as usize }
}

#[test]
fn little_is_held_beyond_what_is_live_and_a_program_that_comes_again_asks_for_nothing() {
    let log = made_up();
    let mut bench =
        Bench::new(Policy { first_calls: u64::MAX / 2, most_saved_calls: u64::MAX / 2, ..Policy::default() });
    bench.pass(&log);
    let ratio = bench.pages.totals().peak_bytes_reserved as f64 / bench.peak_live as f64;
    assert!(ratio < 1.1, "{ratio}");
    assert_eq!(bench.device.peak_bytes(), bench.pages.totals().peak_bytes_reserved);
    // Each pass finds more in views; before long, all.
    let asks = |bench: &mut Bench| {
        let calls = bench.device.driver_calls();
        bench.pass(&log);
        bench.device.driver_calls() > calls
    };
    let passes = (1..40).find(|_| !asks(&mut bench));
    assert!(passes.is_some(), "{:?}", bench.pages.totals());
    bench.pages.validate();
}

/// Prints what [`Policy`] reaches on the logs that `MILLPOND_LOGS` names.
#[test]
fn logs_replay() {
    let Ok(folder) = std::env::var("MILLPOND_LOGS") else { return };
    let entries = std::fs::read_dir(folder).expect("the folder of logs can be read");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
    paths.sort();
    let policy = Policy::default();
    let (copies, passes) = (number("MILLPOND_COPIES", 0), number("MILLPOND_PASSES", 1));
    let (mut base, mut means) = (0.0, 0.0);
    for log in paths.iter().map(|path| read(path)) {
        let outcome = replay(&log, policy, passes);
        println!("{:20}{}", log.name, outcome.text);
        let copies: Vec<Outcome> =
            (1..=copies as u64).map(|seed| replay(&log.copy(seed), policy, 1)).collect();
        let all = || copies.iter().chain([&outcome]);
        let count = all().count() as f64;
        let mean = all().map(|outcome| outcome.ratio).sum::<f64>() / count;
        let most = all().map(|outcome| outcome.ratio).fold(0.0, f64::max);
        let calls = all().map(|outcome| outcome.ns_in_calls).sum::<f64>() / count;
        if count > 1.0 {
            println!("{:20}  mean {mean:.4}, most {most:.4}, ns/row {calls:.0} in calls", "");
        }
        base += outcome.ratio.ln() / paths.len() as f64;
        means += mean.ln() / paths.len() as f64;
    }
    println!("geometric mean {:.4}, of the means {:.4}", base.exp(), means.exp());
}
