//! Counts all blocks of a recording for the page, in one pass.

use foldhash::HashMap;

use super::places::Places;
use super::texts::Texts;
use crate::recording::{Event, EventKind, Id, Recording};

/// The thresholds for temporary blocks, as memray defines them. A block is temporary if its thread made at
/// most this number of other allocations before the block was freed.
pub(super) const THRESHOLDS: [u64; 3] = [1, 10, 100];

/// The number of parts of a power of two. Areas of blocks (bytes times events) are distinguished by these
/// parts.
const PER_OCTAVE: f64 = 8.0;
/// A number above the part of the largest area, which has 64 bits of bytes and 32 bits of events.
const AREAS: usize = 97 * 8;

/// A number of blocks, and the sum of their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) blocks: u64,
    pub(super) bytes: u64,
}

impl Sum {
    pub(super) fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The blocks of one call stack on one thread and stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin {
    pub(super) stack: u32,
    pub(super) lane: u32,
    pub(super) all: Sum,
    pub(super) freed: u64,
    /// The sum of the lives of freed blocks, in events, and in the unit of the clock.
    pub(super) life: u64,
    pub(super) lasted: u64,
    /// The temporary blocks, by threshold.
    pub(super) temporary: [Sum; 3],
    pub(super) at_peak: Sum,
    pub(super) at_end: Sum,
}

/// The fewest and the most live bytes in each of equal parts of the events.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) low: Vec<u64>,
    pub(super) high: Vec<u64>,
    step: usize,
}

impl Course {
    pub(super) fn new(step: usize) -> Self {
        Self { low: Vec::new(), high: Vec::new(), step }
    }

    pub(super) fn add(&mut self, event: usize, bytes: u64) {
        if event.is_multiple_of(self.step) {
            self.low.push(bytes);
            self.high.push(bytes);
        } else if let (Some(low), Some(high)) = (self.low.last_mut(), self.high.last_mut()) {
            *low = (*low).min(bytes);
            *high = (*high).max(bytes);
        }
    }
}

/// The times of events, from the first event on. An event without a time gets the time of the previous event.
#[derive(Debug, Default)]
pub(super) struct Times {
    first: Option<u64>,
    latest: u64,
    /// The time of the first event of each part, and of the last event.
    pub(super) edges: Vec<u64>,
    /// The greatest common divisor of all times.
    pub(super) unit: u64,
}

impl Times {
    /// Returns the time of an event. The event must not be before the previous one.
    pub(super) fn next(&mut self, event: &Event) -> u64 {
        if let Some(time) = event.time() {
            let first = *self.first.get_or_insert(time);
            self.latest = self.latest.max(time.saturating_sub(first));
        }
        self.latest
    }

    /// Returns whether the times distinguish events.
    pub(super) fn are_known(&self) -> bool {
        self.latest > 0
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

struct Live {
    block: u32,
    start: u32,
    bytes: u64,
    time: u64,
    /// The number of allocations of the block's thread up to this block.
    allocations: u64,
}

/// The counts of all blocks.
#[derive(Debug)]
pub(super) struct Census {
    /// The number of the event that ended each block, in the order in which the blocks began. If no event
    /// ended a block, this is the number of events.
    pub(super) ends: Vec<u32>,
    /// The number of the origin of each block.
    pub(super) block_origins: Vec<u32>,
    pub(super) origins: Vec<Origin>,
    /// The most bytes that each group of call stacks had at one time.
    pub(super) group_peaks: Vec<u64>,
    pub(super) live: Course,
    pub(super) times: Times,
    /// The event after which the most bytes were live.
    pub(super) peak: usize,
    pub(super) places: Places,
    /// The number of blocks by area, which is bytes times events.
    areas: Vec<u64>,
    /// The blocks by [`shape`], and how many of these blocks were never freed.
    pub(super) shapes: Vec<(Sum, u64)>,
}

/// Returns the number of a combination of size and life. Both are distinguished by powers of two.
fn shape(bytes: u64, events: u64) -> usize {
    (bytes.max(1).ilog2() * 64 + events.max(1).ilog2()) as usize
}

impl Census {
    /// Counts the blocks of a recording that has this number of allocations. The course of live memory has
    /// one part for each `step` events.
    pub(super) fn of<'a>(
        recording: &'a Recording,
        texts: &mut Texts<'a>,
        step: usize,
        allocations: usize,
    ) -> Self {
        let mut counter = Counter::new(recording, texts, step);
        counter.census.ends.reserve_exact(allocations);
        counter.census.block_origins.reserve_exact(allocations);
        for (at, event) in recording.events().enumerate() {
            let time = counter.time(at, event, step);
            match event.kind {
                EventKind::Allocate => counter.allocate(at, event, time),
                EventKind::Free => {
                    if let Some(live) = counter.live.remove(&event.address) {
                        counter.end(&live, Some((at, time)));
                    }
                }
                _ => {}
            }
            if counter.bytes > counter.most {
                counter.most = counter.bytes;
                counter.census.peak = at;
            }
            counter.census.live.add(at, counter.bytes);
        }
        counter.finish()
    }

    /// Returns the part to which a block belongs by its area.
    pub(super) fn area(bytes: u64, events: u64) -> usize {
        let area = bytes as f64 * events as f64 + 1.0;
        ((area.log2() * PER_OCTAVE) as usize).min(AREAS - 1)
    }

    /// Returns the smallest area among the `limit` largest blocks, and how many of these blocks have this
    /// area.
    pub(super) fn least_area(&self, limit: u64) -> (usize, u64) {
        let mut left = limit;
        for (area, &count) in self.areas.iter().enumerate().rev() {
            if count > left {
                return (area, left);
            }
            left -= count;
        }
        (0, u64::MAX)
    }

    /// For all blocks, returns the start event, the block, and its number, in the order of their starts.
    pub(super) fn blocks<'a>(
        &self,
        recording: &'a Recording,
    ) -> impl Iterator<Item = (usize, &'a Event, usize)> {
        let events = recording.events().enumerate();
        let allocated = events.filter(|(_, event)| event.kind == EventKind::Allocate);
        allocated.zip(0..).map(|((start, event), block)| (start, event, block))
    }

    /// Adds up the bytes that each origin holds at the peak and at the end.
    fn add_moments(&mut self, recording: &Recording) {
        let mut origins = std::mem::take(&mut self.origins);
        for (start, event, block) in self.blocks(recording) {
            let (origin, end) = (&mut origins[self.block_origins[block] as usize], self.ends[block] as usize);
            if start <= self.peak && self.peak < end {
                origin.at_peak.add(event.bytes);
            }
            if end == recording.len() {
                origin.at_end.add(event.bytes);
            }
        }
        self.origins = origins;
    }
}

/// The state of the count.
struct Counter<'a, 't> {
    census: Census,
    recording: &'a Recording,
    texts: &'t mut Texts<'a>,
    live: HashMap<u64, Live>,
    bytes: u64,
    most: u64,
    numbers: HashMap<(Option<Id>, bool, u32), u32>,
    /// The number of allocations of each thread so far.
    allocations: HashMap<u64, u64>,
    /// The live bytes of each group of call stacks.
    groups: Vec<u64>,
}

impl<'a, 't> Counter<'a, 't> {
    fn new(recording: &'a Recording, texts: &'t mut Texts<'a>, step: usize) -> Self {
        let census = Census {
            ends: Vec::new(),
            block_origins: Vec::new(),
            origins: Vec::new(),
            group_peaks: Vec::new(),
            live: Course::new(step),
            times: Times::default(),
            peak: 0,
            places: Places::default(),
            areas: vec![0; AREAS],
            shapes: vec![(Sum::default(), 0); 64 * 64],
        };
        let (numbers, allocations) = (HashMap::default(), HashMap::default());
        let (live, groups) = (HashMap::default(), Vec::new());
        Self { census, recording, texts, live, bytes: 0, most: 0, numbers, allocations, groups }
    }

    fn time(&mut self, at: usize, event: &Event, step: usize) -> u64 {
        let times = &mut self.census.times;
        let before = times.latest;
        let time = times.next(event);
        if time > before {
            times.unit = greatest_common_divisor(time, times.unit);
        }
        if at.is_multiple_of(step) {
            times.edges.push(time);
        }
        time
    }

    fn allocate(&mut self, at: usize, event: &Event, time: u64) {
        let origin = self.origin(at, event);
        let allocations = self.allocations.entry(self.recording.lane(event).thread).or_default();
        *allocations += 1;
        let block = self.census.ends.len() as u32;
        let live = Live { block, start: at as u32, bytes: event.bytes, time, allocations: *allocations };
        self.census.ends.push(u32::MAX);
        self.census.block_origins.push(origin);
        self.census.places.add(event.address, event.bytes);
        self.census.origins[origin as usize].all.add(event.bytes);
        // If the address is still live, the source lost the block's free.
        if let Some(lost) = self.live.insert(event.address, live) {
            self.end(&lost, Some((at, time)));
        }
        self.bytes = self.bytes.saturating_add(event.bytes);
        let group = self.texts.groups[self.census.origins[origin as usize].stack as usize];
        if group >= self.groups.len() {
            self.groups.resize(group + 1, 0);
            self.census.group_peaks.resize(group + 1, 0);
        }
        self.groups[group] = self.groups[group].saturating_add(event.bytes);
        self.census.group_peaks[group] = self.census.group_peaks[group].max(self.groups[group]);
    }

    /// Returns the number of the origin of a block.
    fn origin(&mut self, at: usize, event: &Event) -> u32 {
        let key = (event.stack, event.is_before, event.lane);
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let stack = self.texts.stack(self.recording, event.stack, at);
        let number = self.census.origins.len() as u32;
        self.census.origins.push(Origin { stack, lane: event.lane, ..Origin::default() });
        self.numbers.insert(key, number);
        number
    }

    /// Ends a block at an event and its time, or at the end of the recording.
    fn end(&mut self, live: &Live, ended: Option<(usize, u64)>) {
        let at = ended.map_or(self.recording.len(), |(at, _)| at);
        let block = live.block as usize;
        self.census.ends[block] = at as u32;
        let life = at as u64 - u64::from(live.start);
        self.census.areas[Census::area(live.bytes, life)] += 1;
        let (sum, kept) = &mut self.census.shapes[shape(live.bytes, life)];
        sum.add(live.bytes);
        *kept += u64::from(ended.is_none());
        let origin = &mut self.census.origins[self.census.block_origins[block] as usize];
        let Some((_, time)) = ended else { return };
        origin.freed += 1;
        origin.life += life;
        origin.lasted = origin.lasted.saturating_add(time - live.time);
        let lane = self.recording.lanes().get(origin.lane as usize).copied().unwrap_or_default();
        let made = self.allocations.get(&lane.thread).copied().unwrap_or(0);
        for (threshold, sum) in THRESHOLDS.iter().zip(&mut origin.temporary) {
            if made - live.allocations <= *threshold {
                sum.add(live.bytes);
            }
        }
        self.bytes = self.bytes.saturating_sub(live.bytes);
        let group = &mut self.groups[self.texts.groups[origin.stack as usize]];
        *group = group.saturating_sub(live.bytes);
    }

    fn finish(mut self) -> Census {
        // The order of the map's entries differs between runs.
        let mut live: Vec<(u64, Live)> = std::mem::take(&mut self.live).into_iter().collect();
        live.sort_unstable_by_key(|(address, _)| *address);
        for (_, live) in live {
            self.end(&live, None);
        }
        let mut census = self.census;
        let latest = census.times.latest;
        census.times.edges.push(latest);
        census.times.unit = census.times.unit.max(1);
        census.add_moments(self.recording);
        census
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import;

    #[test]
    fn a_block_is_temporary_by_the_allocations_of_its_own_thread() {
        // Thread 1 makes one allocation in the life of 0xa00, and two in the life of 0xc00.
        let rows = [
            "1,0,allocate,0xa00,100,0",
            "2,0,allocate,0xb00,200,0",
            "1,0,allocate,0xc00,300,0",
            "1,0,free,0xa00,100,0",
            "1,0,allocate,0xd00,400,0",
            "1,0,allocate,0xe00,500,0",
            "2,0,free,0xc00,300,0",
        ];
        let csv = format!("Thread,Time,Action,Pointer,Size,Stream\n{}\n", rows.join("\n"));
        let recording = import::read("log", csv.as_bytes(), &import::Options::default()).unwrap();
        let mut texts = Texts::default();
        let census = Census::of(&recording, &mut texts, 1, 5);
        let of_thread = |thread| {
            let lanes = recording.lanes();
            *census.origins.iter().find(|origin| lanes[origin.lane as usize].thread == thread).unwrap()
        };
        let first = of_thread(1);
        assert_eq!(first.temporary.map(|sum| (sum.blocks, sum.bytes)), [(1, 100), (2, 400), (2, 400)]);
        assert_eq!((first.all.blocks, first.all.bytes, first.freed, first.life), (4, 1300, 2, 7));
        assert_eq!((first.at_peak.bytes, first.at_end.bytes, of_thread(2).at_end.bytes), (1200, 900, 200));
        assert_eq!((census.peak, census.ends), (5, vec![3, 7, 6, 7, 7]));
        assert_eq!(census.group_peaks, [1400]);
    }
}
