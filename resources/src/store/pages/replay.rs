//! Replays a program again and again on [`Pages`] alone, without the rest of the pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_core::Layout;
use millpond_core::driver::Driver;
use millpond_driver::sim::{SimConfig, SimDevice};
use rustc_hash::FxHashMap;

use crate::block_map::ChunkId;
use crate::heap::Heap;
use crate::heap::request::{Request, Whose};
use crate::heap::size_class::rounded;
use crate::store::Store;
use crate::store::pages::state::Pages;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::Policy;

const OWNER: Owner = 1;

/// Blocks of at most this many bytes come from spans.
const IN_ARENA: u64 = 128 << 10;
const SPAN: u64 = 2 << 20;

/// A row of a log: the number and size of a new block, or the number of a block to free.
#[derive(Clone, Copy)]
enum Row {
    Allocate(u32, u64),
    Deallocate(u32),
}

struct Log {
    rows: Vec<Row>,
    blocks: usize,
}

/// Returns pseudorandom bits.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[derive(Clone, Copy)]
enum Block {
    Large(ChunkId),
    Small(ChunkId),
}

/// A small pool: one stream, one arena for small blocks, no stream caches.
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
        let plan = self.pages.plan_block(OWNER, request, is_span, self.live, u64::MAX);
        let mut plan = plan.expect("the pool has no maximum");
        let start = Instant::now();
        plan.work.make_calls(&*self.device).expect("the device is large enough");
        self.in_driver += start.elapsed();
        let block = self.pages.commit_block(plan);
        if let Some(mut release) = self.pages.plan_tidying() {
            release.make_calls(&*self.device).expect("a mapped page can be unmapped");
            self.pages.commit_release(release);
        }
        block
    }

    /// Frees whole spans, and makes completed free chunks unowned, as the pool does before it grows. The
    /// device is idle, so all are completed.
    fn reclaim(&mut self) {
        self.misses += 1;
        while let Some((region, _, _)) = self.arena.remove_free_region(|_| true) {
            let span = self.spans.remove(&region.base).expect("a region is a span");
            self.pages.free_block(span, OWNER, 1);
        }
        self.pages.migrate(OWNER, Epoch::MAX, ANY_STREAM, 0);
    }

    fn allocate(&mut self, bytes: u64) -> Block {
        let layout = Layout::new(bytes);
        let request = Request { bytes: rounded(bytes), ..Request::new(layout).expect("not too large") };
        if bytes <= IN_ARENA {
            return Block::Small(self.allocate_small(&request));
        }
        let whose = Whose::OwnOrUnowned { owner: OWNER, is_own_first: false };
        if let Some(taken) = self.pages.take_best(whose, &request) {
            return Block::Large(taken.chunk);
        }
        self.reclaim();
        if let Some(taken) = self.pages.take_best(whose, &request) {
            return Block::Large(taken.chunk);
        }
        Block::Large(self.grow(&request, false).0)
    }

    fn take_span(&mut self, request: &Request) -> Option<(ChunkId, u64, u64, Epoch)> {
        let mut take = |owner| self.pages.cut_span_of(owner, Epoch::MAX, SPAN, request, false);
        take(OWNER).or_else(|| take(ANY_STREAM))
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

    /// Replays a log, and returns how long it took without the driver.
    fn pass(&mut self, log: &Log) -> Duration {
        // Spans that the arena still holds would make each pass a different program.
        self.reclaim();
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
                    let (block, bytes) = blocks[number as usize].take().expect("a log frees a block once");
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
            Block::Large(id) => self.pages.free_block(id, OWNER, 1),
            Block::Small(id) => self.arena.free(id, OWNER, 1),
        }
    }
}

/// Sizes of a program's requests in bytes. None is small, since spans come and go when memory is short.
const SIZES: [u64; 10] = [
    300_000, 1_100_000, 2_500_000, 4_194_304, 6_000_000, 9_437_184, 17_000_000, 22_000_000, 33_554_432,
    49_000_000,
];

/// Returns a log of blocks that live for a while: about 400 MiB, and at times 512 MiB.
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
    Log { rows, blocks: blocks as usize }
}

#[test]
fn little_is_reserved_beyond_live_bytes_and_a_repeated_program_makes_no_driver_call() {
    if cfg!(miri) {
        return; // too many steps
    }
    let log = made_up();
    let mut bench = Bench::new(Policy { saved_calls: u64::MAX / 2, ..Policy::default() });
    bench.pass(&log);
    let ratio = bench.pages.totals().peak_bytes_reserved as f64 / bench.peak_live as f64;
    assert!(ratio < 1.1, "{ratio}");
    assert_eq!(bench.device.peak_bytes(), bench.pages.totals().peak_bytes_reserved);
    // Each pass finds more of its blocks in aliases, and a later pass finds all of them there.
    let calls_driver = |bench: &mut Bench| {
        let calls = bench.device.driver_calls();
        bench.pass(&log);
        bench.device.driver_calls() > calls
    };
    let passes = (1..40).find(|_| !calls_driver(&mut bench));
    assert!(passes.is_some(), "{:?}", bench.pages.totals());
    bench.pages.validate_all();
}
