//! Tests the rungs of the ladder as a table: without a device, upstream or threads.

use millpond_core::{DevicePtr, DriverError, Error, LadderCounts, Layout, StreamRef};

use std::sync::atomic::Ordering;

use millpond_core::DeviceMemoryResourceExt;
use millpond_driver::sim::{SimConfig, SimDevice};

use super::*;
use crate::pool::central::Rules;
use crate::pool::central::steps::Look;
use crate::pool::heaps::Heaps;
use crate::stream_order::Reuse;
use crate::stream_order::backlog::Backlog;
use crate::stream_order::streams::Streams;
use crate::tuning::FAR_BEHIND_NS;
use crate::{CudaMemoryResource, PagesMode, PoolLayer};

const MIB: u64 = 1 << 20;

/// How the test answers the steps of a request.
#[derive(Clone, Copy, Default)]
struct Script {
    /// The stream captures a graph.
    captures: bool,
    /// The request exceeds the device's memory.
    is_beyond_device: bool,
    /// Upstream refuses regions of more than this many bytes.
    refuses_above: Option<u64>,
    /// Upstream reports this instead of memory.
    error: Option<i32>,
    /// The growth finds that the device has this many bytes available.
    available: Option<u64>,
    /// The driver has reached all events.
    all_is_done: bool,
    /// Events can be recorded on other streams.
    records: bool,
    /// A synchronisation fails.
    cannot_wait: bool,
    /// Other pools release memory this many times.
    peers: u32,
}

struct Setup {
    state: State,
    script: Script,
    next_base: u64,
    peers_asked: u32,
}

impl Setup {
    fn new(maximum: Option<u64>, script: Script) -> Self {
        let reuse = Reuse::ALL;
        let rules = Rules { reuse, maps_pages: false, upstream_is_ordered: false, has_peers: true };
        let state = State {
            rules,
            heaps: Heaps::new(maximum, None, Some(1 << 40), None),
            streams: Streams::new(),
            ladder: LadderCounts::default(),
            backlog: Backlog::default(),
            is_closed: false,
            #[cfg(not(millpond_loom))]
            follower: None,
        };
        Self { state, script, next_base: 1 << 40, peers_asked: 0 }
    }

    /// Adds a region that is free for a stream.
    fn add_region(&mut self, bytes: u64, stream: StreamRef) {
        let owner = self.state.owner_of(stream);
        let epoch = self.state.streams.slot(owner).epoch();
        self.add_region_of(bytes, owner, epoch);
    }

    fn add_region_of(&mut self, bytes: u64, owner: Owner, epoch: Epoch) {
        let base = self.base();
        let request = Request::new(Layout::new(bytes)).expect("not too large");
        let task = self.state.heaps.plan_growth(ANY_STREAM, &request, true, Try::Preferred, u64::MAX);
        let mut task = task.expect("no maximum");
        if let Task::Region(region) = &mut task {
            (region.base, region.owner) = (base, (owner, epoch));
        }
        self.state.heaps.commit(task);
    }

    fn base(&mut self) -> DevicePtr {
        self.next_base += 1 << 36;
        DevicePtr::new(self.next_base)
    }

    /// Answers a step as the script says.
    fn answer(&mut self, step: &mut Step) -> Answer {
        let Script { captures, is_beyond_device, refuses_above, error, available, .. } = self.script;
        let out_of_memory = || Error::out_of_memory(Layout::new(1), StreamRef::LEGACY);
        match step {
            Step::Look => {
                Answer::Looked(Look { is_beyond_device, is_capturing: captures, ..Look::default() })
            }
            Step::Run(Task::Region(region)) => {
                if let Some(code) = error {
                    return Answer::Failed(Error::from(DriverError::new(code, "cuMemAlloc")));
                }
                if let Some(available) = available.filter(|available| region.bytes > *available) {
                    return Answer::TooLittle(Reading::of(available));
                }
                if refuses_above.is_some_and(|most| region.bytes > most) {
                    return Answer::Failed(out_of_memory());
                }
                region.base = self.base();
                Answer::Done
            }
            Step::WaitFor(donor) if self.script.records => {
                let event = RecordedEvent::of_donor(*donor);
                Answer::Ordered { event, is_reached: self.script.all_is_done }
            }
            Step::WaitFor(_) => Answer::Skipped,
            Step::Synchronize { .. } if self.script.cannot_wait => Answer::Skipped,
            Step::Synchronize { .. } => {
                let owners: Vec<Owner> = self.state.streams.iter().map(|(owner, _)| owner).collect();
                owners.iter().for_each(|owner| _ = self.state.heaps.disown(None, *owner, Epoch::MAX));
                Answer::Done
            }
            Step::AskPeers if self.peers_asked < self.script.peers => {
                self.peers_asked += 1;
                self.script.refuses_above = None;
                *step = Step::Look;
                Answer::Looked(Look::default())
            }
            Step::Run(Task::Return(regions)) => {
                regions.left.clear();
                Answer::Done
            }
            Step::Collect(_) | Step::Run(_) => Answer::Done,
            _ => Answer::Skipped,
        }
    }

    /// Returns the steps of a request, in words.
    fn steps(&mut self, bytes: u64, stream: StreamRef) -> Vec<String> {
        let layout = Layout::new(bytes);
        let request = Request::new(layout).expect("not too large");
        let mut slow = self.state.slow_request(request, stream);
        let (mut said, mut step) = (Vec::new(), Step::Look);
        while said.len() < 99 {
            let name = match &step {
                Step::Look => "look".to_owned(),
                Step::Collect(_) => "collect".to_owned(),
                Step::WaitFor(_) => "wait".to_owned(),
                Step::Synchronize { .. } => "synchronize".to_owned(),
                Step::Run(Task::Region(region)) => format!("grow {}", region.bytes / MIB),
                Step::Run(Task::Return(_)) => "return".to_owned(),
                Step::Run(_) => "run".to_owned(),
                Step::AwaitRivals(_) => "rivals".to_owned(),
                Step::AskPeers => "peers".to_owned(),
                Step::Served(..) => "served".to_owned(),
                Step::Reserved => "reserved".to_owned(),
                Step::Refuse(NoMemory::OwnLimit) => "own limit".to_owned(),
                Step::Refuse(NoMemory::Below(cause)) => format!("below ({})", cause.is_some()),
                Step::Refuse(NoMemory::Impossible(_)) => "impossible".to_owned(),
                Step::Fail(_) => "fail".to_owned(),
            };
            said.push(name);
            if matches!(step, Step::Served(..) | Step::Reserved | Step::Refuse(_) | Step::Fail(_)) {
                return said;
            }
            let answer = self.answer(&mut step);
            step = self.state.next(&mut slow, step, answer);
        }
        panic!("the request does not end: {said:?}");
    }
}

fn stream(number: u64) -> StreamRef {
    StreamRef::from_raw_parts(number << 8, number)
}

#[test]
fn streams_that_may_be_destroyed_are_waited_for_if_they_own_more_than_little() {
    for (owned, others, expected) in
        [(1, 6, true), (1, 7, false), (1, 8, false), (1, 15, false), (2, 13, true)]
    {
        let mut setup = Setup::new(None, Script::default());
        setup.add_region(owned * MIB, stream(1));
        setup.add_region(others * MIB, stream(2));
        let mut slow =
            setup.state.slow_request(Request::new(Layout::new(MIB)).expect("not too large"), stream(3));
        let owner = setup.state.owner_of(stream(1));
        setup.state.streams.slot(owner).set_record_requested(true);
        slow.unreachable_bytes = setup.state.unreachable_bytes();
        assert_eq!(slow.unreachable_bytes, owned * MIB);
        let waits = setup.state.should_wait_for_unreachable(&slow);
        assert_eq!(waits, expected, "{owned} of {} MiB", owned + others);
    }
}

/// The row's name, the existing regions (MiB, stream), the maximum in MiB, the script, the request of stream
/// 1 in MiB, and its expected steps.
type Row = (&'static str, &'static [(u64, u64)], Option<u64>, Script, u64, &'static str);

const PLAIN: Script = Script {
    captures: false,
    is_beyond_device: false,
    refuses_above: None,
    error: None,
    available: None,
    all_is_done: false,
    records: true,
    cannot_wait: false,
    peers: 0,
};

const fn refuses(above: u64) -> Script {
    Script { refuses_above: Some(above * MIB), ..PLAIN }
}

const ROWS: [Row; 19] = [
    ("an empty pool grows", &[], None, PLAIN, 8, "look, grow 8, served"),
    ("a block came meanwhile", &[(8, 1)], None, PLAIN, 8, "look, served"),
    ("at the maximum", &[], Some(4), PLAIN, 8, "look, impossible"),
    ("at the maximum, with blocks in use", &[], Some(9), PLAIN, 8, "look, grow 8, served"),
    ("more than the device", &[], None, Script { is_beyond_device: true, ..PLAIN }, 8, "look, impossible"),
    (
        "another error",
        &[],
        None,
        Script { error: Some(DriverError::NOT_PERMITTED), ..PLAIN },
        8,
        "look, grow 8, fail",
    ),
    ("upstream refuses", &[], None, refuses(0), 8, "look, grow 8, peers, below (true)"),
    (
        "another pool helps",
        &[],
        None,
        Script { peers: 1, ..refuses(0) },
        8,
        "look, grow 8, peers, grow 8, served",
    ),
    (
        "too little",
        &[],
        None,
        Script { available: Some(0), ..PLAIN },
        8,
        "look, grow 8, rivals, peers, below (false)",
    ),
    ("own block too small", &[(4, 1)], None, PLAIN, 8, "look, collect, grow 8, served"),
    ("another stream's block", &[(8, 2)], None, PLAIN, 8, "look, collect, collect, grow 8, served"),
    (
        "another stream's block, while the stream captures",
        &[(8, 2)],
        None,
        Script { captures: true, ..PLAIN },
        8,
        "look, grow 8, served",
    ),
    (
        "another stream's block, where memory is short",
        &[(8, 2)],
        None,
        refuses(0),
        8,
        "look, collect, collect, grow 8, collect, wait, served",
    ),
    (
        "no wait while the stream captures",
        &[(8, 2)],
        None,
        Script { captures: true, ..refuses(0) },
        8,
        "look, grow 8, peers, below (true)",
    ),
    (
        "the other stream may be destroyed",
        &[(8, 2)],
        None,
        Script { records: false, ..refuses(0) },
        8,
        "look, collect, collect, grow 8, collect, wait, synchronize, served",
    ),
    (
        "free memory is returned",
        &[(4, 1), (4, 2)],
        None,
        refuses(0),
        8,
        "look, collect, collect, grow 8, collect, synchronize, return, return, grow 8, peers, below (true)",
    ),
    (
        "what was free elsewhere is unowned",
        &[(8, 2)],
        None,
        Script { all_is_done: true, ..refuses(0) },
        8,
        "look, collect, collect, grow 8, collect, wait, served",
    ),
    ("a smaller region", &[(64, 1), (64, 1)], None, refuses(100), 90, "look, collect, grow 90, served"),
    (
        "nothing helps",
        &[(4, 2)],
        None,
        Script { cannot_wait: true, records: false, ..refuses(0) },
        8,
        "look, collect, grow 8, collect, synchronize, peers, below (true)",
    ),
];

#[test]
fn a_request_goes_down_the_rungs() {
    let mut wrong = Vec::new();
    for (what, regions, maximum, script, mib, expected) in ROWS {
        let mut setup = Setup::new(maximum.map(|mib| mib * MIB), script);
        for (mib, number) in regions {
            setup.add_region(mib * MIB, stream(*number));
        }
        let steps = setup.steps(mib * MIB, stream(1)).join(", ");
        if steps != expected {
            wrong.push(format!("{what}: {steps}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}

/// Adds blocks in use to the pool, so that it prefers regions of 32 MiB, an eighth of its memory.
fn prefer_large_regions(setup: &mut Setup) {
    for mib in [256, 4, 8, 16] {
        setup.add_region(mib * MIB, stream(1));
        assert_eq!(setup.steps(mib * MIB, stream(1)).join(", "), "look, served");
    }
}

/// After each refusal the pool asks for half the region, down to the request.
#[test]
fn a_refused_region_is_tried_in_smaller_sizes() {
    let script = Script { refuses_above: Some(3 * MIB), ..Script::default() };
    let mut setup = Setup::new(None, script);
    prefer_large_regions(&mut setup);
    assert_eq!(
        setup.steps(2 * MIB, stream(1)).join(", "),
        "look, grow 32, grow 16, grow 8, grow 4, grow 2, served"
    );
    let mut setup = Setup::new(None, Script { available: Some(5 * MIB), ..Script::default() });
    prefer_large_regions(&mut setup);
    assert_eq!(setup.steps(2 * MIB, stream(1)).join(", "), "look, grow 32, grow 4, served");
}

/// A request is counted under the step whose rung served it.
#[test]
fn each_rung_counts_the_requests_that_it_serves() {
    let refuses = Script { refuses_above: Some(0), records: true, ..Script::default() };
    for (regions, script, count) in [
        (&[][..], Script::default(), LadderCounts::default().grow(1)),
        (&[(8, 1)], Script::default(), LadderCounts::default().own_stream(1)),
        (&[(8, 2)], refuses, LadderCounts::default().waited(1)),
        (&[(8, 2)], Script { all_is_done: true, ..refuses }, LadderCounts::default().completed(1)),
        (&[(8, 2)], Script { records: false, ..refuses }, LadderCounts::default().reclaim(1)),
    ] {
        let mut setup = Setup::new(None, script);
        for (mib, number) in regions {
            setup.add_region(mib * MIB, stream(*number));
        }
        setup.steps(8 * MIB, stream(1));
        assert_eq!(setup.state.ladder, count, "{regions:?}");
    }
}

/// Free regions go back before a growth if it sets a peak, the request may wait, and the streams keep up.
#[test]
fn free_regions_go_back_before_a_growth_that_sets_a_peak() {
    for (captures, peak, behind_ns, goes_back) in [
        (false, 0, 0, true),
        (false, 11, 0, true),
        (false, 12, 0, false),
        (true, 0, 0, false),
        (false, 0, FAR_BEHIND_NS, false),
    ] {
        let mut setup = Setup::new(None, Script { captures, ..PLAIN });
        setup.state.backlog.note(0, behind_ns);
        if peak > 0 {
            setup.add_region_of(peak * MIB, ANY_STREAM, 0);
            let all = Returning::Free { keep_bytes: 0, most_calls: 1 };
            let mut task = setup.state.heaps.store.plan_release(all).expect("it is free");
            if let Task::Return(regions) = &mut task {
                regions.left.clear();
            }
            setup.state.heaps.commit(task);
        }
        setup.add_region_of(4 * MIB, ANY_STREAM, 0);
        let steps = setup.steps(8 * MIB, stream(1));
        assert_eq!(steps.iter().any(|step| step == "return"), goes_back, "peak {peak} MiB: {steps:?}");
        assert_eq!(steps[steps.len() - 2..], ["grow 8", "served"]);
    }
}

/// The driver may refuse to grow during a capture. So a small request takes back all caches, not only its own
/// arena's.
#[test]
fn during_a_capture_the_caches_of_all_arenas_are_taken_back() {
    const SMALL: u64 = 64 << 10;
    for is_capturing in [false, true] {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = cuda.layer(PoolLayer::new().pages(PagesMode::On)).expect("an empty pool");
        let blocks = [(); 16].map(|()| pool.allocate_bytes(SMALL, StreamRef::LEGACY).expect("there is room"));
        for ptr in blocks {
            // SAFETY: each block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, SMALL, StreamRef::LEGACY) };
        }
        let counts = &pool.shared.thread_caches.my_cache(pool.id).counts;
        assert!(counts.totals().blocks_held > 0);
        // Threads contend, and this one has moved to another arena.
        let users = std::array::from_fn(|shard| if shard == 0 { 2 } else { 0 });
        counts.shard.store(pool.shared.arenas.next(0, &users), Ordering::Relaxed);
        let request = Request { shard: 0, ..Request::new(Layout::new(SMALL)).expect("not too large") };
        let mut slow = SlowRequest::new(request, request, true, StreamRef::LEGACY);
        slow.is_capturing = is_capturing;
        pool.central.state.lock().flush_and_take(&mut slow, Reclaim::Everything);
        assert_eq!((slow.has_flushed, counts.totals().blocks_held == 0), (is_capturing, is_capturing));
    }
}
