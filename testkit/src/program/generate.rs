//! Chooses operations. They use few streams and sizes, so that blocks are reused. Phases fill and empty the
//! memory, so that requests take every step of a reuse ladder.

use std::collections::VecDeque;

use millpond_core::driver::CaptureMode;
use millpond_core::{ALLOCATION_ALIGNMENT, DriverError};
use millpond_driver::CallKind;

use super::Config;
use super::execution::Execution;
use super::op::{Block, Event, MAX_STREAMS, Mistake, Op, Scope, Stream};
use crate::Rng;

/// If a program has more streams than this, each stretch mostly uses this many of them.
const BUSY_STREAMS: usize = 12;

/// The calls that may fail. Calls that free are left out, because a failed free is a leak.
const FAILING: [CallKind; 12] = [
    CallKind::MemAlloc,
    CallKind::MemAddressReserve,
    CallKind::MemCreate,
    CallKind::MemMap,
    CallKind::MemSetAccess,
    CallKind::MemUnmap,
    CallKind::MemGetInfo,
    CallKind::Synchronize,
    CallKind::StreamWaitEvent,
    CallKind::EventCreate,
    CallKind::EventRecord,
    CallKind::EventQuery,
];

/// How a program chooses sizes.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    /// All sizes are equal, so every freed block fits.
    Equal(u64),
    /// Sizes close to those at which the behaviour changes.
    Edges,
    /// Sizes of any magnitude.
    Logarithmic,
    /// Shares of the device, so that memory runs out.
    Large,
    /// All of these.
    Mixed,
}

/// The most frequent operation in a stretch of a program.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Fill,
    Empty,
    Churn,
    Cross,
}

pub(super) struct Generator {
    rng: Rng,
    sizes: Sizes,
    largest_bytes: u64,
    largest_alignment: u64,
    capacity_bytes: u64,
    aligned_percent: u64,
    destroys: bool,
    passes_time: bool,
    phase: Phase,
    phase_left: u64,
    most_live: usize,
    faults: bool,
    streams: Vec<Stream>,
    /// The indexes in `streams` that this stretch of the program uses most.
    busy: Vec<usize>,
    next_stream: Stream,
    next_event: Event,
    next_block: Block,
    planned: VecDeque<Op>,
    special: Special,
    /// How many operations remain until the oldest capture ends.
    capture_left: u64,
    /// The streams that are open in a scope, on which most operations run.
    open: Vec<Stream>,
}

impl Generator {
    pub(super) fn new(seed: u64, config: &Config) -> Self {
        let mut rng = Rng::new(seed);
        let fewest = u64::from(config.fewest_streams.max(1));
        let wanted = rng.between(fewest, fewest.max(u64::from(config.streams))) as usize;
        let mut streams = Vec::new();
        if rng.percent(50) {
            streams.push(0);
        }
        if rng.percent(25) && streams.len() < wanted {
            streams.push(1);
        }
        let mut next_stream = 2;
        while streams.len() < wanted {
            streams.push(next_stream);
            next_stream += 1;
        }
        let equal = edge_or_log(&mut rng, config.largest_bytes).max(1);
        let sizes = match rng.below(6) {
            0 | 1 => Sizes::Equal(equal),
            2 => Sizes::Edges,
            3 => Sizes::Logarithmic,
            4 => Sizes::Large,
            _ => Sizes::Mixed,
        };
        Self {
            sizes,
            largest_bytes: config.largest_bytes,
            largest_alignment: config.largest_alignment,
            capacity_bytes: config.capacity_bytes,
            aligned_percent: if rng.percent(30) { 20 } else { 0 },
            destroys: rng.percent(50) && config.destroys,
            passes_time: config.decay.is_some(),
            phase: Phase::Fill,
            phase_left: 0,
            most_live: config.most_live,
            faults: config.faults,
            streams,
            busy: Vec::new(),
            next_stream,
            next_event: 0,
            next_block: 0,
            planned: VecDeque::new(),
            special: Special::new(config),
            capture_left: 0,
            open: Vec::new(),
            rng,
        }
    }

    pub(super) fn next(&mut self, execution: &Execution) -> Op {
        if let Some(op) = self.planned.pop_front() {
            return op;
        }
        self.open.clear();
        self.open.extend(execution.scopes.open.iter().map(|open| open.stream));
        if self.special.percent > 0 && self.rng.percent(self.special.percent) {
            return self.special(execution);
        }
        if let Some(capture) = execution.captures.live.first() {
            self.capture_left = self.capture_left.saturating_sub(1);
            if self.capture_left == 0 {
                return self.end_capture(capture.origin, capture.thread, execution);
            }
        }
        if self.phase_left == 0 {
            self.phase_left = self.rng.between(4, 40);
            self.phase = match self.rng.below(5) {
                0 => Phase::Fill,
                1 => Phase::Empty,
                2 => Phase::Churn,
                _ => Phase::Cross,
            };
            let places = self.streams.len() as u64;
            if self.streams.len() > BUSY_STREAMS {
                self.busy = (0..BUSY_STREAMS).map(|_| self.rng.below(places) as usize).collect();
            }
        }
        self.phase_left -= 1;
        let (allocate, deallocate) = match self.phase {
            Phase::Fill => (75, 10),
            Phase::Empty => (10, 70),
            Phase::Churn => (42, 42),
            Phase::Cross => (30, 30),
        };
        let roll = self.rng.below(100);
        let crowded = execution.live.len() >= self.most_live;
        if roll < allocate && !crowded {
            self.allocate()
        } else if roll < allocate + deallocate {
            self.deallocate(execution)
        } else {
            self.other(execution)
        }
    }

    fn stream(&mut self) -> Stream {
        if !self.open.is_empty() && self.rng.percent(50) {
            return self.rng.pick(&self.open).copied().unwrap_or(0);
        }
        self.any_stream()
    }

    fn any_stream(&mut self) -> Stream {
        if self.streams.len() > BUSY_STREAMS && self.rng.percent(80) {
            let place = self.rng.pick(&self.busy).copied().unwrap_or(0);
            return self.streams[place];
        }
        self.rng.pick(&self.streams).copied().unwrap_or(0)
    }

    fn event(&mut self) -> Event {
        self.rng.below(4) as Event
    }

    fn next_block(&mut self) -> Block {
        self.next_block += 1;
        self.next_block - 1
    }

    fn allocate(&mut self) -> Op {
        let block = self.next_block();
        let alignment = match self.rng.percent(self.aligned_percent) {
            true => (256 << self.rng.below(14)).min(self.largest_alignment),
            false => 256,
        };
        Op::Allocate { block, stream: self.stream(), bytes: self.bytes(), alignment }
    }

    fn bytes(&mut self) -> u64 {
        if self.rng.percent(1) {
            return 0;
        }
        let rng = &mut self.rng;
        let unit = (self.capacity_bytes / 24).min(self.largest_bytes / 6).max(1000);
        let large = |rng: &mut Rng| rng.between(1, 16) * unit - rng.below(1000);
        let bytes = match self.sizes {
            Sizes::Equal(bytes) => bytes,
            Sizes::Edges => edge(rng),
            Sizes::Logarithmic => logarithmic(rng, self.largest_bytes),
            Sizes::Large => large(rng),
            Sizes::Mixed => match rng.below(4) {
                0 => 1000,
                1 => large(rng),
                _ => edge_or_log(rng, self.largest_bytes),
            },
        };
        bytes.min(self.largest_bytes)
    }

    fn deallocate(&mut self, execution: &Execution) -> Op {
        let Some(&block) = self.rng.pick(&execution.live) else { return self.allocate() };
        let own = execution.blocks.get(&block).map_or(0, |live| live.stream);
        let keeps_own = execution.config.habits.frees_on_own_stream;
        let takes_own = keeps_own || (self.rng.percent(60) && self.can_use(execution, own));
        let stream = if takes_own { own } else { self.stream() };
        self.after_ordering(execution, block, stream, Op::Deallocate { block, stream })
    }

    /// Plans the operations that order `stream` after all uses of the block, followed by `op`.
    fn after_ordering(&mut self, execution: &Execution, block: Block, stream: Stream, op: Op) -> Op {
        self.after_stream(execution, execution.missing(stream, block), stream, op)
    }

    /// Plans the operations that order `stream` after the missing stream, followed by `op`.
    fn after_stream(&mut self, execution: &Execution, missing: Option<Stream>, stream: Stream, op: Op) -> Op {
        match missing {
            None => op,
            Some(other) if self.can_use(execution, other) => {
                // Usually one stream is missing. If there are more, the operation is skipped.
                let event = self.next_event;
                self.next_event = (self.next_event + 1) % 8;
                self.planned.extend([Op::Wait { stream, event }, op]);
                Op::Record { event, stream: other }
            }
            Some(_) => {
                self.planned.push_back(op);
                Op::SyncDevice
            }
        }
    }

    fn other(&mut self, execution: &Execution) -> Op {
        if self.passes_time && self.rng.percent(15) {
            // From less than a tick of a ten-second decay to more than the whole decay.
            return Op::PassTime { ms: self.rng.between(100, 12_000) };
        }
        if self.faults && self.rng.percent(15) {
            let code =
                *self.rng.pick(&[DriverError::OUT_OF_MEMORY, DriverError::INVALID_VALUE]).unwrap_or(&1);
            let next = self.allocate();
            self.planned.push_back(next);
            let kind = *self.rng.pick(&FAILING).unwrap_or(&CallKind::MemAlloc);
            return Op::FailCall { kind, nth: self.rng.below(3) as u8, code };
        }
        let (stream, event) = (self.stream(), self.event());
        match self.rng.below(100) {
            0..20 => match self.rng.pick(&execution.live) {
                Some(&block) => self.after_ordering(execution, block, stream, Op::Read { block, stream }),
                None => Op::Record { event, stream },
            },
            20..40 => match self.rng.pick(&execution.live) {
                Some(&block) => self.after_ordering(execution, block, stream, Op::Write { block, stream }),
                None => Op::Record { event, stream },
            },
            40..55 => Op::Record { event, stream },
            55..70 => Op::Wait { stream, event },
            70..80 => Op::QueryEvent { event },
            80..84 => Op::SyncEvent { event },
            84..88 => Op::SyncStream { stream },
            88..90 => Op::SyncDevice,
            90..98 => self.destroy(execution, stream),
            _ => Op::Trim {
                keep_bytes: if self.rng.percent(50) { 0 } else { self.rng.below(self.capacity_bytes) },
            },
        }
    }

    /// Destroys a stream, with or without another one ordered after it, and creates a new one in its place.
    fn destroy(&mut self, execution: &Execution, stream: Stream) -> Op {
        let replaceable = usize::from(self.next_stream) < MAX_STREAMS;
        if !self.destroys || !replaceable || stream < 2 || !execution.is_alive(stream) {
            return Op::QueryEvent { event: self.event() };
        }
        for slot in &mut self.streams {
            if *slot == stream {
                *slot = self.next_stream;
            }
        }
        self.next_stream += 1;
        if self.rng.percent(50) {
            return Op::DestroyStream { stream };
        }
        let (event, follower) = (self.event(), self.stream());
        self.planned.extend([Op::DestroyStream { stream }, Op::Wait { stream: follower, event }]);
        Op::Record { event, stream }
    }

    /// Whether the program can name a stream that it named before.
    fn can_use(&self, execution: &Execution, stream: Stream) -> bool {
        execution.is_alive(stream) && (!self.special.is_any || execution.can_name(stream))
    }

    /// Chooses an operation on captures, scopes, mistakes, or the end of the program.
    fn special(&mut self, execution: &Execution) -> Op {
        let stream = self.stream();
        let kind = self.rng.pick(&self.special.kinds).copied().unwrap_or(Kind::Mistake);
        match kind {
            Kind::Capture if self.rng.percent(50) && execution.whole_graph().is_some() => {
                self.launch(execution, stream)
            }
            Kind::Capture if self.rng.percent(60) => {
                self.capture_left = self.rng.between(2, 30);
                let modes = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
                let mode = self.rng.pick(&modes).copied().unwrap_or_default();
                Op::BeginCapture { stream, mode }
            }
            Kind::Capture => match self.rng.pick(&execution.captures.live) {
                Some(capture) => Op::EndCapture { stream: capture.origin },
                None => Op::SyncStream { stream },
            },
            Kind::Scope => self.scope_op(),
            Kind::Mistake => {
                let Some(&block) = self.rng.pick(&execution.live) else { return self.allocate() };
                let mistakes = [Mistake::DoubleFree, Mistake::WrongSize, Mistake::Inside];
                let mistake = self.rng.pick(&mistakes).copied().unwrap_or(Mistake::DoubleFree);
                let own = execution.blocks.get(&block).map_or(0, |live| live.stream);
                let stream = if self.can_use(execution, own) { own } else { stream };
                self.after_ordering(execution, block, stream, Op::Misuse { block, stream, mistake })
            }
            Kind::Ending if self.rng.percent(3) => match self.rng.percent(60) {
                true => Op::ResetContext,
                false => Op::LoseDevice,
            },
            Kind::Ending => Op::QueryEvent { event: self.event() },
        }
    }

    /// Launches a graph, or first plans the operations that must come before the launch.
    fn launch(&mut self, execution: &Execution, stream: Stream) -> Op {
        let back = execution.whole_graph().unwrap_or(0);
        let op = Op::LaunchGraph { back, stream };
        self.after_stream(execution, execution.missing_for_launch(back, stream), stream, op)
    }

    /// Opens or closes a scope. Few streams are open at once, so scopes also close for all streams.
    fn scope_op(&mut self) -> Op {
        let scope = if self.rng.percent(70) { 0 } else { self.rng.below(3) as Scope };
        let open = self.rng.pick(&self.open).copied();
        match open {
            Some(stream) if self.rng.percent(65) => Op::CloseScope { stream },
            Some(_) if self.rng.percent(15) => Op::DropScope { scope },
            _ => {
                let stream = self.any_stream();
                if self.rng.percent(30) {
                    self.plan_capture(stream);
                }
                Op::OpenScope { scope, stream }
            }
        }
    }

    /// Plans a capture on a stream that is open in a scope by then, the end of both, and a launch. One block
    /// of the scope lives from before the capture into it, and one only within it.
    fn plan_capture(&mut self, stream: Stream) {
        let mode = CaptureMode::ThreadLocal;
        let [before, within] = [(); 2].map(|()| self.next_block());
        let mut allocate = |block| {
            let (bytes, alignment) = (self.bytes(), ALLOCATION_ALIGNMENT);
            Op::Allocate { block, stream, bytes, alignment }
        };
        let [first, second] = [before, within].map(&mut allocate);
        let launches_on = self.any_stream();
        self.planned.extend([
            first,
            Op::BeginCapture { stream, mode },
            second,
            Op::Deallocate { block: before, stream },
            Op::Deallocate { block: within, stream },
            Op::EndCapture { stream },
            Op::CloseScope { stream },
            Op::SyncStream { stream },
            Op::LaunchGraph { back: 0, stream: launches_on },
        ]);
    }

    /// Ends a capture on the thread that began it.
    fn end_capture(&mut self, stream: Stream, thread: u8, execution: &Execution) -> Op {
        self.capture_left = self.rng.between(2, 30);
        if thread == execution.thread {
            return Op::EndCapture { stream };
        }
        self.planned.push_back(Op::EndCapture { stream });
        Op::Thread { thread }
    }
}

/// The kinds of operations that only some programs have.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Capture,
    Scope,
    Mistake,
    Ending,
}

/// The operations that only some programs have.
#[derive(Debug)]
struct Special {
    percent: u64,
    kinds: Vec<Kind>,
    /// Whether an operation may use streams that cannot be named now.
    is_any: bool,
}

impl Special {
    fn new(config: &Config) -> Self {
        let refuses = config.refuses;
        let mistakes = refuses.double_free || refuses.foreign_pointer || refuses.wrong_size;
        let kinds = [
            (config.captures, Kind::Capture),
            (config.new_scope.is_some(), Kind::Scope),
            (mistakes, Kind::Mistake),
            (config.endings, Kind::Ending),
        ];
        let kinds: Vec<Kind> = kinds.into_iter().filter(|(is_on, _)| *is_on).map(|(_, kind)| kind).collect();
        let is_any = config.captures || config.threads > 1;
        Self { percent: 4 * kinds.len() as u64, kinds, is_any }
    }
}

/// Sizes at which rounding, pages or regions change, and their neighbours.
fn edge(rng: &mut Rng) -> u64 {
    const EDGES: [u64; 9] = [256, 512, 1024, 4096, 64 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
    let edge = rng.pick(&EDGES).copied().unwrap_or(256);
    match rng.below(5) {
        0 => edge - 1,
        1 => edge + 1,
        2 => 1,
        _ => edge,
    }
}

/// Every magnitude is equally likely.
fn logarithmic(rng: &mut Rng, largest: u64) -> u64 {
    let magnitude = rng.between(0, u64::from(largest.max(1).ilog2()));
    (1 << magnitude) + rng.below(1 << magnitude)
}

fn edge_or_log(rng: &mut Rng, largest: u64) -> u64 {
    if rng.percent(50) { edge(rng) } else { logarithmic(rng, largest) }.min(largest)
}
