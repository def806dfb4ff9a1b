//! Tests the order oracle against a naive model, which keeps for every point the set of all work before it.

use std::collections::BTreeSet;
use std::sync::Arc;

use millpond_core::driver::{Driver, Event, EventFlags, StreamFlags};
use millpond_core::{DevicePtr, StreamRef};
use millpond_driver::sim::{Access, Schedule, SimConfig, SimDevice, ViolationKind};

const BLOCK: u64 = 256;
const BLOCKS: usize = 4;
const STREAMS: usize = 5;
const PROGRAMS: u64 = 3000;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }
}

type Set = BTreeSet<u32>;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

/// Sets of work instead of clocks. Every piece of work, and every wait for something new, is one number.
struct Model {
    next: u32,
    kinds: [Kind; STREAMS],
    /// All work that each stream's next work comes after, without the legacy stream's rule and the host's
    /// waits.
    before: [Set; STREAMS],
    host: Set,
    /// The work of destroyed blocking streams that the legacy stream must wait for.
    departed: Set,
    /// For each existing stream, its work that uses no block.
    idle: [Set; STREAMS],
    gone: Set,
    events: Vec<Set>,
    /// For each block: the work that its next owner must come after, and its present owner's work.
    history: [Set; BLOCKS],
    uses: [Set; BLOCKS],
    lent_to: [Option<usize>; BLOCKS],
}

impl Model {
    fn new(kinds: [Kind; STREAMS]) -> Self {
        Self {
            next: 0,
            kinds,
            before: Default::default(),
            host: Set::new(),
            departed: Set::new(),
            idle: Default::default(),
            gone: Set::new(),
            events: Vec::new(),
            history: Default::default(),
            uses: Default::default(),
            lent_to: [None; BLOCKS],
        }
    }

    /// Everything that the next work on the stream would happen after.
    fn effective(&self, stream: usize) -> Set {
        let mut set: Set = self.before[stream].union(&self.host).copied().collect();
        if self.kinds[stream] == Kind::Legacy {
            set.extend(&self.departed);
        }
        for other in 0..STREAMS {
            let implied = matches!(
                (self.kinds[stream], self.kinds[other]),
                (Kind::Legacy, Kind::Blocking) | (Kind::Blocking, Kind::Legacy)
            );
            if implied {
                set.extend(&self.before[other]);
            }
        }
        set
    }

    /// Submits work that also waits for `extra`.
    fn submit(&mut self, stream: usize, extra: &Set) -> u32 {
        let mut set = self.effective(stream);
        set.extend(extra);
        self.next += 1;
        set.insert(self.next);
        self.idle[stream].insert(self.next);
        self.before[stream] = set;
        self.next
    }

    /// A record or a wait counts as work only if it adds something to wait for: by the legacy rule, or
    /// `extra`.
    fn join(&mut self, stream: usize, extra: &Set) {
        let mut wanted = self.effective(stream);
        wanted.extend(extra);
        let known = self.before[stream].union(&self.host).copied().collect::<Set>();
        if !wanted.is_subset(&known) {
            self.submit(stream, extra);
        }
    }

    /// The work that a new owner or a use on the stream should be ordered after, but is not.
    fn missing(&self, block: usize, stream: usize) -> Set {
        self.history[block].difference(&self.effective(stream)).copied().collect()
    }

    fn give_back(&mut self, block: usize, stream: usize) {
        let uses = std::mem::take(&mut self.uses[block]);
        self.history[block].extend(uses);
        let position = self.effective(stream);
        self.history[block].extend(position);
        self.lent_to[block] = None;
    }

    /// The stream is destroyed, and a new one takes its place.
    fn replace(&mut self, stream: usize, kind: Kind) {
        let before = std::mem::take(&mut self.before[stream]);
        self.gone.append(&mut self.idle[stream]);
        if self.kinds[stream] == Kind::Blocking {
            self.departed.extend(before);
        }
        self.kinds[stream] = kind;
    }
}

struct Pair {
    device: Arc<SimDevice>,
    model: Model,
    streams: [StreamRef; STREAMS],
    blocks: [DevicePtr; BLOCKS],
    events: Vec<Event>,
    forgotten: u64,
    /// Seed and step, for messages.
    place: (u64, u32),
}

impl Pair {
    fn new(seed: u64, rng: &mut Rng) -> Self {
        let schedule = if seed.is_multiple_of(4) { Schedule::Timed } else { Schedule::Seeded(seed) };
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30).schedule(schedule));
        let base = device.mem_alloc(BLOCK * BLOCKS as u64).unwrap();
        let mut kinds = [Kind::NonBlocking; STREAMS];
        let streams = std::array::from_fn(|index| {
            if index == 0 && rng.below(2) == 0 {
                kinds[0] = Kind::Legacy;
                return StreamRef::LEGACY;
            }
            let non_blocking = rng.below(2) == 0;
            kinds[index] = if non_blocking { Kind::NonBlocking } else { Kind::Blocking };
            device.stream_create(StreamFlags::default().non_blocking(non_blocking)).unwrap()
        });
        let blocks = std::array::from_fn(|index| base.offset(index as u64 * BLOCK));
        Self {
            device,
            model: Model::new(kinds),
            streams,
            blocks,
            events: Vec::new(),
            forgotten: 0,
            place: (0, 0),
        }
    }

    /// Makes one step of both. Returns whether a new owner or a use was in order, if the step checked one.
    fn step(&mut self, rng: &mut Rng) -> Option<bool> {
        let stream = rng.below(STREAMS);
        let handle = self.streams[stream];
        match rng.below(13) {
            0..=1 => {
                self.device.launch(handle, &[]);
                self.model.submit(stream, &Set::new());
            }
            2..=5 => return self.step_block(stream, rng),
            6..=7 => {
                let event = self.device.event_create(EventFlags::default()).unwrap();
                self.device.event_record(event, handle).unwrap();
                self.model.join(stream, &Set::new());
                self.events.push(event);
                let set = self.model.before[stream].clone();
                self.model.events.push(set);
            }
            8..=9 if !self.events.is_empty() => {
                let event = rng.below(self.events.len());
                self.device.stream_wait_event(handle, self.events[event]).unwrap();
                let set = self.model.events[event].clone();
                self.model.join(stream, &set);
            }
            10 if !self.events.is_empty() => {
                let event = rng.below(self.events.len());
                if self.device.event_query(self.events[event]).unwrap() {
                    let set = self.model.events[event].clone();
                    self.model.host.extend(set);
                }
            }
            11 if rng.below(8) == 0 => {
                self.device.stream_synchronize(handle).unwrap();
                let set = self.model.before[stream].clone();
                self.model.host.extend(set);
            }
            12 if rng.below(2) == 0 => self.replace(stream, rng),
            _ => {}
        }
        None
    }

    /// Destroys a stream and creates another; sometimes many, so that the simulator forgets old ones.
    fn replace(&mut self, stream: usize, rng: &mut Rng) {
        if self.model.kinds[stream] == Kind::Legacy {
            return;
        }
        for _ in 0..if rng.below(3) == 0 { 70 } else { 1 } {
            let non_blocking = rng.below(2) == 0;
            self.model.replace(stream, if non_blocking { Kind::NonBlocking } else { Kind::Blocking });
            // SAFETY: the stream is not used again.
            unsafe { self.device.stream_destroy(self.streams[stream]) }.unwrap();
            self.streams[stream] =
                self.device.stream_create(StreamFlags::default().non_blocking(non_blocking)).unwrap();
        }
    }

    /// Lends, uses or gives back a block.
    fn step_block(&mut self, stream: usize, rng: &mut Rng) -> Option<bool> {
        let index = rng.below(BLOCKS);
        let (block, handle) = (self.blocks[index], self.streams[stream]);
        match self.model.lent_to[index] {
            None => {
                self.model.lent_to[index] = Some(stream);
                self.device.lend(block, BLOCK, handle);
                return Some(self.in_order(index, stream));
            }
            Some(_) if rng.below(2) == 0 => {
                self.model.give_back(index, stream);
                self.device.give_back(block, BLOCK, handle);
            }
            Some(_) => {
                let work = self.model.submit(stream, &Set::new());
                self.model.uses[index].insert(work);
                self.model.idle[stream].remove(&work);
                self.device.launch(handle, &[Access::read(block, BLOCK)]);
                return Some(self.in_order(index, stream));
            }
        }
        None
    }

    /// Whether the oracle found the new owner or the use in order; the model must agree. The oracle may
    /// forget only work that used no block, of destroyed streams.
    fn in_order(&mut self, block: usize, stream: usize) -> bool {
        let found = self.device.take_violations();
        assert!(found.iter().all(|violation| violation.kind == ViolationKind::StreamOrder), "{found:?}");
        let missing = self.model.missing(block, stream);
        if found.is_empty() {
            assert!(missing.is_subset(&self.model.gone), "{:?}: not seen: {missing:?}", self.place);
            self.forgotten += u64::from(!missing.is_empty());
        } else {
            assert!(!missing.is_empty(), "{:?}: reported without a cause: {found:?}", self.place);
            self.model.history[block].clear();
        }
        found.is_empty()
    }
}

#[test]
fn the_oracle_says_what_a_naive_model_says() {
    let (mut allowed, mut refused, mut forgotten) = (0_u64, 0_u64, 0_u64);
    for seed in 0..PROGRAMS {
        let mut rng = Rng(seed);
        let mut pair = Pair::new(seed, &mut rng);
        for step in 0..120 {
            pair.place = (seed, step);
            match pair.step(&mut rng) {
                Some(true) => allowed += 1,
                Some(false) => refused += 1,
                None => {}
            }
        }
        forgotten += pair.forgotten;
        assert_eq!(pair.device.take_violations(), []);
    }
    assert!(allowed > 10_000 && refused > 5_000, "{allowed} allowed, {refused} refused: both must be common");
    assert!(forgotten * 1000 < refused, "{forgotten} forgotten: that must be rare");
}
