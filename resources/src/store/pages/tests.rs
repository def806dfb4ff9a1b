//! Tests pages with random programs, faults, and a device that checks every access.

use std::sync::Arc;

use millpond_core::driver::{Driver, DriverError, EventFlags, StreamFlags};
use millpond_core::{DevicePtr, Layout, StreamRef};
use millpond_driver::CallKind;
use millpond_driver::sim::{Access, FaultPlan, SimConfig, SimDevice};
use proptest::prelude::*;

use crate::block_map::ChunkId;
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::{Request, Whose};
use crate::store::Store;
use crate::store::pages::handles::AddressRange;
use crate::store::pages::{Pages, Plan, Refused, Release};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::Policy;

const OWNERS: Owner = 4;
const MIB: u64 = 1 << 20;

/// Small handles and few mappings, so that short programs reach every path.
const POLICY: Policy = Policy { handle_bytes: 4 * MIB, mappings: 32, saved_calls: u64::MAX / 2 };

#[derive(Clone, Copy, Debug)]
struct Block {
    id: ChunkId,
    addr: u64,
    bytes: u64,
    /// The stream that uses it.
    owner: Owner,
}

/// Pages on a simulated device that checks every block: no two blocks in use share memory, no block changes
/// streams before its work is done, every block is wholly accessible, and only idle memory is unmapped.
struct Bench {
    pages: Pages,
    device: Arc<SimDevice>,
    /// By owner; the first is the host's, for unowned blocks.
    streams: Vec<StreamRef>,
    blocks: Vec<Block>,
    under_way: Vec<(Plan, Owner, Request)>,
    releasing: Vec<Release>,
    live: u64,
    /// The epoch of the last block that was freed.
    epoch: Epoch,
    is_own_first: bool,
}

fn request(bytes: u64, alignment_log2: u32) -> Request {
    let layout = Layout::with_alignment(bytes, 1 << alignment_log2).expect("a power of two");
    Request::new(layout).expect("not too large")
}

impl Bench {
    fn new(capacity: u64, maximum_bytes: u64) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(capacity));
        let granularity = device.mem_get_allocation_granularity().expect("sim has virtual memory");
        let stream = |_| device.stream_create(StreamFlags::NON_BLOCKING).expect("the device creates streams");
        Self {
            pages: Pages::new(granularity, capacity, maximum_bytes, POLICY),
            streams: (0..=OWNERS).map(stream).collect(),
            device,
            blocks: Vec::new(),
            under_way: Vec::new(),
            releasing: Vec::new(),
            live: 0,
            epoch: 0,
            is_own_first: false,
        }
    }

    /// Returns the address in the primary mapping of the memory at an address.
    fn primary(&self, addr: u64) -> u64 {
        self.pages
            .aliases
            .at(addr)
            .map_or(addr, |(id, start)| self.pages.handles.get(id).primary + (addr - start))
    }

    fn lend(&mut self, owner: Owner, (id, addr): (ChunkId, u64), request: &Request) {
        let bytes = self.pages.bytes_of(id);
        assert_eq!(bytes, request.bytes);
        assert!(addr.is_multiple_of(request.alignment));
        let mut at = addr;
        for piece in self.pages.each_piece_of(id) {
            let ends = (self.primary(at), self.primary(at + piece.bytes - 1));
            assert_eq!(
                ends,
                (piece.addr, piece.addr + piece.bytes - 1),
                "the block's addresses map another piece"
            );
            at += piece.bytes;
        }
        let (stream, ptr) = (self.streams[owner as usize], DevicePtr::new(addr));
        self.device.lend(ptr, bytes, stream);
        let end = DevicePtr::new(addr + bytes - 256);
        let tag = addr ^ bytes;
        let write = [Access::read(ptr, bytes), Access::write(ptr, 256, tag), Access::write(end, 256, tag)];
        self.device.launch(stream, &write);
        self.live += bytes;
        self.blocks.push(Block { id, addr, bytes, owner });
    }

    fn find(&mut self, owner: Owner, request: &Request) -> bool {
        let whose = Whose::OwnOrUnowned { owner, is_own_first: self.is_own_first };
        let found = self.pages.find_best(whose, request);
        assert!(found.as_ref().is_none_or(|found| found.bytes >= request.bytes));
        let whose = if found.is_some() { whose } else { Whose::Joined(owner) };
        let taken = self.pages.take_best(whose, request);
        if let Some(taken) = taken {
            self.lend(owner, (taken.chunk, taken.addr), request);
        }
        taken.is_some()
    }

    /// Allocates as a pool does, and returns whether it succeeded.
    fn allocate(&mut self, owner: Owner, request: &Request, faults: FaultPlan) -> bool {
        if self.find(owner, request) {
            return true;
        }
        let free = self.free_chunks();
        let Ok(mut plan) = self.pages.plan_block(owner, request, false, self.live, u64::MAX) else {
            return false;
        };
        self.device.set_faults(faults);
        let outcome = plan.work.make_calls(&*self.device);
        self.device.set_faults(FaultPlan::none());
        if outcome.is_err() {
            self.pages.abort_plan(plan);
            self.assert_still_free(&free);
            return false;
        }
        let block = self.pages.commit_block(plan);
        self.lend(owner, block, request);
        true
    }

    /// Returns the address, the owner and the epoch of all free chunks.
    fn free_chunks(&self) -> Vec<(u64, Owner, Epoch)> {
        let free = |owner| AddressRange::ALL.map(|range| self.pages.heap(range).free_from(owner, 1));
        let chunks = (ANY_STREAM..=OWNERS).flat_map(|owner| {
            free(owner).into_iter().flatten().map(move |(_, chunk)| (chunk.addr, owner, chunk.epoch()))
        });
        chunks.collect()
    }

    /// Panics unless these chunks are free again after an aborted plan, in the same epoch or a later one.
    fn assert_still_free(&self, chunks: &[(u64, Owner, Epoch)]) {
        for &(addr, owner, epoch) in chunks {
            let chunk = self.pages.chunk_at(addr).expect("an aborted plan removed a chunk");
            assert!(chunk.is_free(), "{addr:#x} is no longer free");
            // An unowned chunk may have joined a chunk of the requester.
            assert!(chunk.owner() == owner || owner == ANY_STREAM, "{addr:#x} lost its owner {owner}");
            assert!(chunk.epoch() >= epoch, "{addr:#x} was free from epoch {epoch}, not {}", chunk.epoch());
        }
    }

    fn begin(&mut self, owner: Owner, request: Request) {
        if !self.find(owner, &request)
            && let Ok(plan) = self.pages.plan_block(owner, &request, false, self.live, u64::MAX)
        {
            self.under_way.push((plan, owner, request));
        }
    }

    fn commit(&mut self, index: usize, runs: bool) {
        if let Some(release) = self.releasing.pop_if(|_| !runs) {
            return self.end_release(release, FaultPlan::none());
        }
        let Some(at) = index.checked_rem(self.under_way.len()) else { return };
        let (mut plan, owner, request) = self.under_way.remove(at);
        if runs && plan.work.make_calls(&*self.device).is_ok() {
            let block = self.pages.commit_block(plan);
            self.lend(owner, block, &request);
        } else {
            self.pages.abort_plan(plan);
        }
    }

    fn span(&mut self, owner: Owner, bytes: u64, wanted: u64) {
        let small = request(bytes.clamp(1, wanted), 8);
        let take = |pages: &mut Pages, owner| pages.cut_span_of(owner, Epoch::MAX, wanted, &small, false);
        let taken = take(&mut self.pages, owner).or_else(|| take(&mut self.pages, ANY_STREAM));
        if let Some((id, addr, bytes, _)) = taken {
            assert!(bytes >= small.bytes && bytes <= wanted.max(small.bytes));
            self.lend(owner, (id, addr), &request(bytes, 8));
            return;
        }
        let span = request(wanted, 8);
        let Ok(mut plan) = self.pages.plan_block(owner, &span, true, self.live, u64::MAX) else { return };
        match plan.work.make_calls(&*self.device) {
            Ok(()) => {
                let block = self.pages.commit_block(plan);
                self.lend(owner, block, &span);
            }
            Err(_) => self.pages.abort_plan(plan),
        }
    }

    fn free(&mut self, index: usize) {
        if self.blocks.is_empty() {
            return;
        }
        let Block { id, addr, bytes, owner } = self.blocks.swap_remove(index % self.blocks.len());
        let (stream, ptr) = (self.streams[owner as usize], DevicePtr::new(addr));
        let tag = addr ^ bytes;
        let check =
            [Access::check(ptr, 256, tag), Access::check(DevicePtr::new(addr + bytes - 256), 256, tag)];
        self.device.launch(stream, &check);
        self.device.give_back(ptr, bytes, stream);
        self.epoch += 1;
        self.pages.free_block(id, owner, self.epoch);
        self.live -= bytes;
    }

    /// Moves an owner's free chunks to another owner in stream order, or makes them unowned once its work is
    /// done.
    fn migrate(&mut self, from: Owner, to: Owner) {
        if from == ANY_STREAM || from == to {
            return;
        }
        if to == ANY_STREAM {
            self.device.stream_synchronize(self.streams[from as usize]).expect("the device is well");
        } else {
            let event = self.device.event_create(EventFlags::default()).expect("the device is well");
            self.device.event_record(event, self.streams[from as usize]).expect("the device is well");
            self.device.stream_wait_event(self.streams[to as usize], event).expect("the device is well");
        }
        self.epoch += 1;
        self.pages.migrate(from, Epoch::MAX, to, self.epoch);
    }

    fn release(&mut self, keep: u64, calls: usize, faults: FaultPlan) {
        let Some(release) = self.pages.plan_release_of(keep, calls, false) else { return };
        self.end_release(release, faults);
    }

    fn end_release(&mut self, mut release: Release, faults: FaultPlan) {
        self.device.set_faults(faults);
        _ = release.make_calls(&*self.device);
        self.device.set_faults(FaultPlan::none());
        self.pages.commit_release(release);
    }

    fn validate(&self) {
        self.pages.validate_all();
        assert_eq!(self.device.violations(), []);
        let totals = self.pages.totals();
        assert_eq!(totals.blocks_in_use, self.blocks.len() as u64);
        // Plans have not been run yet. A release may have to unmap an alias of a handle that another release
        // has released since. The driver keeps that memory until then.
        let (held, counted) = (self.device.live_bytes(), totals.bytes_reserved - self.pages.planned);
        assert!(held == counted || held > counted && !self.releasing.is_empty(), "{held}, not {counted}");
        let kept = totals.bytes_reserved - self.pages.planned - self.pages.retiring - totals.bytes_free;
        assert!(kept == self.live || !self.under_way.is_empty(), "{kept}, not {}", self.live);
        let free = self.pages.heaps().iter().flat_map(Heap::free_by_owner).map(|(_, _, bytes, _)| bytes);
        assert_eq!(free.sum::<u64>(), totals.bytes_free);
    }

    /// Frees and releases everything, and panics if anything is left.
    fn end(mut self) {
        while !self.under_way.is_empty() || !self.releasing.is_empty() {
            self.commit(0, false);
        }
        while !self.blocks.is_empty() {
            self.free(0);
        }
        (1..=OWNERS).for_each(|owner| self.migrate(owner, ANY_STREAM));
        (0..2).for_each(|_| self.release(0, usize::MAX, FaultPlan::none()));
        self.validate();
        assert_eq!(self.device.live_bytes(), 0, "a handle was not released");
        self.pages.release_all().make_calls(&*self.device).expect("the device is well");
        assert_eq!(self.device.live_allocations(), 0, "a reservation is left");
        assert_eq!(self.device.violations(), []);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { owner: Owner, bytes: u64, alignment_log2: u32 },
    Fail { owner: Owner, bytes: u64, call: u64, persistent: bool },
    Begin { owner: Owner, bytes: u64 },
    Commit { index: usize, runs: bool },
    Span { owner: Owner, bytes: u64, wanted: u64 },
    Reserve { bytes: u64 },
    Free { index: usize },
    Migrate { from: Owner, to: Owner },
    Release { keep: u64, calls: usize, waits: bool },
    FailRelease { call: u64, persistent: bool },
    Spans { owner: Owner },
}

fn faults(call: u64, persistent: bool, code: i32) -> FaultPlan {
    let plan = FaultPlan::nth_call(call, code);
    if persistent { plan.persistent() } else { plan }
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let bytes = || {
        let odd = (0..12u64).prop_map(|n| 2 * n * MIB + 1);
        prop_oneof![3 => 1..(24 * MIB), 2 => 1..MIB, 1 => odd, 1 => 1..(120 * MIB)]
    };
    let step = prop_oneof![
        12 => (1..=OWNERS, bytes(), 8..24u32).prop_map(|(owner, bytes, log2)| Step::Allocate {
            owner, bytes, alignment_log2: if log2 > 9 && bytes % 5 != 0 { 8 } else { log2 }
        }),
        2 => (1..=OWNERS, bytes(), 0..20u64, any::<bool>())
            .prop_map(|(owner, bytes, call, persistent)| Step::Fail { owner, bytes, call, persistent }),
        2 => (1..=OWNERS, bytes()).prop_map(|(owner, bytes)| Step::Begin { owner, bytes }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(index, runs)| Step::Commit { index, runs }),
        1 => (1..=OWNERS, 1..MIB, 1..(2 * MIB))
            .prop_map(|(owner, bytes, wanted)| Step::Span { owner, bytes, wanted }),
        1 => (1..(64 * MIB)).prop_map(|bytes| Step::Reserve { bytes }),
        12 => any::<usize>().prop_map(|index| Step::Free { index }),
        4 => (1..=OWNERS, 0..=OWNERS).prop_map(|(from, to)| Step::Migrate { from, to }),
        2 => (0..(256 * MIB), 0..200usize, any::<bool>())
            .prop_map(|(keep, calls, waits)| Step::Release { keep, calls, waits }),
        1 => (0..20u64, any::<bool>()).prop_map(|(call, persistent)| Step::FailRelease { call, persistent }),
        1 => (1..=OWNERS).prop_map(|owner| Step::Spans { owner }),
    ];
    prop::collection::vec(step, 1..most)
}

fn run(bench: &mut Bench, step: Step) {
    match step {
        Step::Allocate { owner, bytes, alignment_log2 } => {
            bench.allocate(owner, &request(bytes, alignment_log2), FaultPlan::none());
        }
        Step::Fail { owner, bytes, call, persistent } => {
            let code = if bytes % 2 == 0 { DriverError::OUT_OF_MEMORY } else { DriverError::INVALID_VALUE };
            bench.allocate(owner, &request(bytes, 8), faults(call, persistent, code));
        }
        Step::Begin { owner, bytes } => bench.begin(owner, request(bytes, 8)),
        Step::Commit { index, runs } => bench.commit(index, runs),
        Step::Span { owner, bytes, wanted } => bench.span(owner, bytes, wanted.next_multiple_of(256)),
        Step::Reserve { bytes } => {
            let Ok(mut plan) = bench.pages.plan_reserve(bytes, u64::MAX) else { return };
            match plan.work.make_calls(&*bench.device) {
                Ok(()) => _ = bench.pages.add_handles(&plan),
                Err(_) => bench.pages.abort_plan(plan),
            }
        }
        Step::Free { index } => bench.free(index),
        Step::Migrate { from, to } => bench.migrate(from, to),
        Step::Release { keep, calls, waits: false } => bench.release(keep, calls, FaultPlan::none()),
        Step::Release { keep, calls, .. } => {
            bench.releasing.extend(bench.pages.plan_release_of(keep, calls, false))
        }
        Step::FailRelease { call, persistent } => {
            bench.release(0, usize::MAX, faults(call, persistent, DriverError::INVALID_VALUE));
        }
        Step::Spans { owner } => (0..4).for_each(|_| bench.span(owner, MIB, 2 * MIB)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 150 },
        ..ProptestConfig::default()
    })]

    /// Random programs, on a large device and on a small one, with driver calls that fail.
    #[test]
    fn pages_hold_their_invariants(
        steps in steps(if cfg!(miri) { 30 } else { 200 }),
        is_short in any::<bool>(),
        limited in any::<bool>(),
        has_one_stream in any::<bool>(),
        is_own_first in any::<bool>(),
    ) {
        let capacity = if is_short { 300 * MIB } else { 16 << 30 };
        let mut bench = Bench::new(capacity, if limited { 500 * MIB } else { u64::MAX });
        bench.pages.heaps_mut().iter_mut().for_each(|heap| heap.has_one_stream = has_one_stream);
        bench.is_own_first = is_own_first;
        for step in steps {
            run(&mut bench, step);
            bench.validate();
        }
        bench.end();
    }
}

/// Four blocks of 8 MiB. The first and the third are free, and 12 MiB need both.
fn with_two_free_blocks() -> Bench {
    let mut bench = Bench::new(16 << 30, u64::MAX);
    for _ in 0..4 {
        assert!(bench.allocate(1, &request(8 * MIB, 8), FaultPlan::none()));
    }
    bench.blocks.sort_unstable_by_key(|block| block.addr);
    bench.free(2);
    bench.blocks.sort_unstable_by_key(|block| block.addr);
    bench.free(0);
    bench.validate();
    bench
}

#[test]
fn free_blocks_are_stitched_in_an_alias_that_serves_again_without_a_driver_call() {
    let mut bench = with_two_free_blocks();
    let (twelve, reserved) = (request(12 * MIB, 8), bench.pages.bytes_reserved());
    assert!(bench.allocate(1, &twelve, FaultPlan::none()));
    assert_eq!(bench.pages.bytes_reserved(), reserved, "no new memory");
    let totals = bench.pages.totals();
    assert_eq!((bench.pages.aliases.iter().count(), totals.mappings), (1, 3), "handles of 4 MiB");
    let block = bench.blocks.len() - 1;
    assert!(bench.pages.each_piece_of(bench.blocks[block].id).count() > 1);
    let inside = bench.blocks[block].addr + 11 * MIB;
    assert!(bench.pages.chunk_at(inside).is_some_and(Chunk::is_in_use));
    bench.free(block);
    assert!(bench.pages.chunk_at(inside).is_some_and(Chunk::is_free));
    let calls = bench.device.driver_calls();
    assert!(bench.find(1, &twelve), "the alias does not serve again");
    assert!(!bench.find(2, &request(3 * MIB, 8)), "another stream got the owner's bytes");
    assert_eq!(bench.device.driver_calls(), calls);
    bench.validate();
    bench.end();
}

/// More bytes than the two free blocks: the plan takes old handles, new ones and a new alias.
const THIRTY: u64 = 30 * MIB;

#[test]
fn a_failed_call_leaves_nothing_behind() {
    let mut bench = with_two_free_blocks();
    let before = bench.device.driver_calls();
    assert!(bench.allocate(1, &request(THIRTY, 8), FaultPlan::none()));
    let calls = bench.device.driver_calls() - before;
    assert!(calls >= 10, "a reservation, creations and mappings: {calls}");
    bench.end();
    // Miri takes minutes for each.
    let step = if cfg!(miri) { 9 } else { 1 };
    for (call, persistent) in (0..calls).step_by(step).flat_map(|call| [(call, false), (call, true)]) {
        let mut bench = with_two_free_blocks();
        let before = (bench.pages.totals(), bench.device.live_bytes());
        assert!(!bench.allocate(
            1,
            &request(THIRTY, 8),
            faults(call, persistent, DriverError::INVALID_VALUE)
        ));
        bench.validate();
        // The next release also releases whatever could not be undone.
        bench.release(u64::MAX, usize::MAX, FaultPlan::none());
        bench.validate();
        assert_eq!((bench.pages.totals(), bench.device.live_bytes()), before);
        assert!(bench.allocate(1, &request(THIRTY, 8), FaultPlan::none()), "the next allocation fails, too");
        bench.end();
    }
}

#[test]
fn where_memory_is_short_handles_are_smaller() {
    let mut bench = Bench::new(16 << 30, u64::MAX);
    let faults = FaultPlan::nth_of(CallKind::MemCreate, 0, DriverError::OUT_OF_MEMORY);
    assert!(bench.allocate(1, &request(12 * MIB, 8), faults));
    let mut bytes: Vec<u64> = bench.pages.handles.iter().map(|(_, handle)| handle.bytes).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, [2 * MIB, 2 * MIB, 4 * MIB, 4 * MIB]);
    bench.validate();
    bench.end();
}

/// Small handles waste less memory when blocks are stitched, but each costs driver calls.
#[test]
fn handles_are_smaller_where_operations_have_earned_the_calls() {
    for (operations, handles) in [(0, 3), (1000, 4), (100_000, 6)] {
        let mut bench = Bench::new(16 << 30, u64::MAX);
        bench.pages.note_live(100 * MIB);
        bench.pages.note_operations(operations);
        assert!(bench.allocate(1, &request(12 * MIB, 8), FaultPlan::none()));
        assert_eq!(bench.pages.handles.iter().count(), handles, "after {operations} operations");
    }
}

/// Small blocks would break up a large free extent: the pool grows instead, as far as its peak allows.
#[test]
fn small_requests_leave_large_extents_alone_while_the_pool_may_grow() {
    let mut bench = Bench::new(16 << 30, u64::MAX);
    assert!(bench.allocate(1, &request(10 * MIB, 8), FaultPlan::none()));
    bench.free(0);
    let small = request(100_000, 8);
    let whose = Whose::OwnOrUnowned { owner: 1, is_own_first: false };
    assert!(bench.pages.find_best(whose, &small).is_some(), "the pool has reached its peak");
    bench.pages.note_live(100 * MIB);
    assert!(bench.pages.find_best(whose, &small).is_none());
    assert!(bench.pages.take_with_unowned(1, &small).is_none());
    // A large request may join a free extent of its stream and an unowned one.
    bench.pages.set_one_stream(false);
    bench.migrate(1, ANY_STREAM);
    assert!(bench.allocate(1, &request(6 * MIB, 8), FaultPlan::none()));
    bench.free(0);
    bench.pages.note_live(100 * MIB);
    assert!(bench.pages.take_with_unowned(1, &request(10 * MIB, 8)).is_some());
}

#[test]
fn the_maximum_holds_and_refusals_name_it() {
    let mut bench = Bench::new(16 << 30, 20 * MIB);
    assert!(bench.allocate(1, &request(10 * MIB, 8), FaultPlan::none()));
    let refused = bench.pages.plan_block(1, &request(12 * MIB, 8), false, 10 * MIB, u64::MAX);
    assert_eq!(refused.err(), Some(Refused(12 * MIB)));
    assert!(bench.pages.is_at_limit(&Refused(12 * MIB)));
    let refused = bench.pages.plan_block(1, &request(9 * MIB, 8), false, 10 * MIB, 4 * MIB);
    assert_eq!(refused.err(), Some(Refused(10 * MIB)));
    assert!(!bench.pages.is_at_limit(&Refused(10 * MIB)));
    assert!(bench.allocate(1, &request(9 * MIB, 8), FaultPlan::none()));
    bench.end();
}

#[test]
fn a_release_keeps_the_bytes_it_should_within_its_calls() {
    let mut bench = Bench::new(16 << 30, u64::MAX);
    let mut plan = bench.pages.plan_reserve(64 * MIB, u64::MAX).expect("no maximum");
    plan.work.make_calls(&*bench.device).expect("room");
    bench.pages.add_handles(&plan);
    bench.validate();
    bench.release(64 * MIB - 1, usize::MAX, FaultPlan::none());
    assert_eq!(bench.device.live_bytes(), 64 * MIB, "a release went below the bytes to keep");
    let calls = bench.device.driver_calls();
    bench.release(0, 5, FaultPlan::none());
    assert!(bench.device.driver_calls() - calls <= 5);
    let left = bench.device.live_bytes();
    assert!(left < 64 * MIB && left > 0);
    bench.validate();
    bench.release(10 * MIB, usize::MAX, FaultPlan::none());
    assert!((10 * MIB..18 * MIB).contains(&bench.device.live_bytes()));
    bench.end();
}

/// A handle that takes more calls than a release may make is released alone.
#[test]
fn a_handle_in_many_aliases_is_released() {
    let mut bench = with_two_free_blocks();
    assert!(bench.allocate(1, &request(12 * MIB, 8), FaultPlan::none()));
    while !bench.blocks.is_empty() {
        bench.free(0);
    }
    bench.migrate(1, ANY_STREAM);
    while bench.device.live_bytes() > 0 {
        let before = bench.device.live_bytes();
        bench.release(0, 1, FaultPlan::none());
        bench.validate();
        assert!(bench.device.live_bytes() < before, "nothing was released");
    }
    bench.end();
}

/// Neither reservations nor mappings pile up if a pool grows and shrinks often and some blocks stay.
#[test]
fn addresses_and_mappings_stay_bounded() {
    let mut bench = Bench::new(2 << 30, u64::MAX);
    let rounds = if cfg!(miri) { 60 } else { 6000 };
    for round in 0..rounds {
        let bytes = (1 + mix(round) % 40) * MIB - 256 * (mix(round) % 1000);
        if !bench.allocate(1 + (round % 3) as Owner, &request(bytes, 8), FaultPlan::none()) {
            (1..=OWNERS).for_each(|owner| bench.migrate(owner, ANY_STREAM));
        }
        while bench.live > 800 * MIB {
            bench.free(mix(round ^ bench.live) as usize);
        }
        if round % 16 == 0 {
            (1..=OWNERS).for_each(|owner| bench.migrate(owner, ANY_STREAM));
            let keep = if round % 160 == 0 { bench.live } else { u64::MAX };
            bench.release(keep, 500, FaultPlan::none());
        }
        if round % 50 == 0 {
            bench.validate();
        }
    }
    let totals = bench.pages.totals();
    // More than the policy's: mappings of handles in use stay.
    assert!(totals.mappings < 600, "{totals:?}");
    let spaces = bench.pages.handles.spaces.iter().chain([&bench.pages.aliases.space]);
    assert!(spaces.map(|space| space.reservations().len()).sum::<usize>() <= 10, "{totals:?}");
    bench.end();
}

/// A release may take the remaining driver calls, or half of the most that may be saved.
#[test]
fn calls_may_be_spent_while_more_are_left() {
    let policy = Policy { saved_calls: 10, ..POLICY };
    for (calls, operations, may) in [(2, 1000, true), (3, 1000, false), (9, 1999, false), (9, 2000, true)] {
        let mut pages = Pages::new(2 * MIB, 16 << 30, u64::MAX, policy);
        pages.budget.spend(10);
        assert_eq!(pages.may_spend(calls, operations), may, "{calls} calls after {operations} operations");
    }
}

/// Returns pseudorandom bits.
fn mix(number: u64) -> u64 {
    let bits = (number ^ 0x9e37_79b9).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits ^ (bits >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}
