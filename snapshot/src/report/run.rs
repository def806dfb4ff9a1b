//! The page's data about one recording: columns of its largest blocks, sums of the other blocks, and its call
//! stacks.

use std::io;

use millpond_planning::Block;
use serde::Serialize;

use super::Curve;
use super::bands::Bands;
use super::cells::{COLOURS, COLUMNS, Cells, ROWS};
use super::census::{Census, Course, Origin, THRESHOLDS, Times};
use super::pack::{Column, Pack};
use super::texts::Texts;
use crate::placement::Placement;
use crate::recording::{Clock, EventKind, Id, Lane, Life, Recording};

/// The most blocks in a page. If a recording has more, the page has the largest blocks by bytes times events.
const BLOCKS: usize = 200_000;

/// The most events for which the page has the live memory after each event.
const EVENTS: usize = 1_000_000;

/// The most parts of the course of a longer recording.
const PARTS: usize = 1 << 15;

/// The most ranges for which the page has the addresses.
const RANGES: usize = 1 << 14;

/// The most marks, failed requests, and segments.
const MARKS: usize = 1000;
const FAILURES: usize = 1000;
const SEGMENTS: usize = 50_000;

/// One recording, in the form that the script reads.
#[derive(Debug, Serialize)]
pub(super) struct Run<'a> {
    file: String,
    events: usize,
    /// The number of events in each part of the course.
    step: usize,
    clock: Clock,
    /// The unit of the page's times, in units of the clock.
    time_unit: u64,
    /// Whether the sizes of blocks are rounded, and the requested ones are unknown.
    is_rounded: bool,
    columns: Vec<Column>,
    /// The number of bytes in all ranges of addresses that were ever used.
    height: u64,
    /// The number of all blocks.
    blocks: usize,
    /// The event with the most live memory.
    peak: usize,
    /// The groups that have their own colours: the groups that hold the most bytes at the peak.
    holders: Vec<usize>,
    thresholds: [u64; 3],
    /// The columns and the rows of the map of small blocks.
    cells: [usize; 2],
    #[serde(flatten)]
    texts: Texts<'a>,
    lanes: Vec<LaneText>,
    tags: Vec<&'a str>,
    settings: &'a [(String, String)],
    marks: Vec<Mark<'a>>,
    /// How many marks the recording has.
    mark_count: usize,
    failures: Vec<Failure>,
    failure_count: usize,
    /// How many segments the recording has.
    segment_count: usize,
    /// How many blocks the plan has.
    planned_count: usize,
    /// The names of the curves.
    curves: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Failure {
    event: usize,
    bytes: u64,
    /// The code line that made the request.
    lead: Option<String>,
}

/// An event that the program named, or a snapshot.
#[derive(Debug, Serialize)]
struct Mark<'a> {
    event: usize,
    kind: &'static str,
    name: &'a str,
}

#[derive(Debug, Serialize)]
struct LaneText {
    thread: Option<String>,
    stream: Option<String>,
    pool: Option<String>,
}

/// The contents of the page in addition to the recording.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras<'a> {
    pub(super) placement: Option<&'a Placement>,
    pub(super) curves: &'a [Curve],
    /// Whether the page has only sums over the recording, and none of its blocks.
    pub(super) is_brief: bool,
}

impl<'a> Run<'a> {
    /// Packs a recording.
    pub(super) fn new(recording: &'a Recording, extras: Extras<'a>, pack: &mut Pack) -> io::Result<Self> {
        let is_allocation = |kind| kind == EventKind::Allocate;
        let allocations = recording.events().filter(|event| is_allocation(event.kind)).count();
        let is_whole = allocations <= BLOCKS && recording.len() <= EVENTS;
        let step = if is_whole { 1 } else { recording.len().div_ceil(PARTS).next_power_of_two() };
        let mut texts = Texts::default();
        let mut census = Census::of(recording, &mut texts, step, allocations);
        let segments = recording.segment_lives();
        for life in &segments {
            census.places.add(life.address, life.bytes);
        }
        let height = census.places.finish();
        let marks = Marks::of(recording);
        let holders = holders(&census, &texts);
        let mut run = Self {
            file: recording.file().to_owned(),
            events: recording.len().max(1),
            step,
            clock: recording.clock(),
            time_unit: census.times.unit,
            is_rounded: recording.lacks("rounded"),
            columns: Vec::new(),
            height: 0,
            blocks: census.ends.len(),
            peak: census.peak,
            holders,
            thresholds: THRESHOLDS,
            cells: [COLUMNS, ROWS],
            texts,
            lanes: lanes(recording),
            tags: Vec::new(),
            settings: recording.settings(),
            marks: marks.marks,
            mark_count: marks.mark_count,
            failures: marks.failures,
            failure_count: marks.failure_count,
            segment_count: segments.len(),
            planned_count: 0,
            curves: extras.curves.iter().map(|curve| curve.name.clone()).collect(),
        };
        if has_addresses(recording) {
            run.height = height;
        }
        run.sums(&census, pack)?;
        run.course(recording, &census, &segments, extras.is_brief, pack)?;
        if !extras.is_brief {
            run.shapes(&census, pack)?;
            run.blocks(recording, &census, is_whole, pack)?;
            run.segments(&census, segments, pack)?;
            run.extras(extras, pack)?;
        }
        Ok(run)
    }

    fn add(&mut self, column: io::Result<Column>) -> io::Result<()> {
        self.columns.push(column?);
        Ok(())
    }

    /// Packs the sums of each origin.
    fn sums(&mut self, census: &Census, pack: &mut Pack) -> io::Result<()> {
        let unit = census.times.unit;
        let mut add = |name: &str, of: &dyn Fn(&Origin) -> u64| {
            self.columns.push(pack.numbers(name, census.origins.iter().map(of))?);
            io::Result::Ok(())
        };
        add("origin_stack", &|origin| origin.stack.into())?;
        add("origin_lane", &|origin| origin.lane.into())?;
        add("origin_blocks", &|origin| origin.all.blocks)?;
        add("origin_bytes", &|origin| origin.all.bytes)?;
        add("origin_freed", &|origin| origin.freed)?;
        add("origin_life", &|origin| origin.life)?;
        add("origin_lasted", &|origin| origin.lasted / unit)?;
        for at in 0..THRESHOLDS.len() {
            add(&format!("origin_temporary_{at}"), &|origin| origin.temporary[at].blocks)?;
            add(&format!("origin_temporary_bytes_{at}"), &|origin| origin.temporary[at].bytes)?;
        }
        add("origin_peak_blocks", &|origin| origin.at_peak.blocks)?;
        add("origin_peak_bytes", &|origin| origin.at_peak.bytes)?;
        add("origin_end_blocks", &|origin| origin.at_end.blocks)?;
        add("origin_end_bytes", &|origin| origin.at_end.bytes)?;
        self.add(pack.numbers("group_most", census.group_peaks.iter().copied()))
    }

    /// Packs the numbers of blocks by size and life.
    fn shapes(&mut self, census: &Census, pack: &mut Pack) -> io::Result<()> {
        let shapes = (0..).zip(&census.shapes).filter(|(_, (sum, _))| sum.blocks > 0);
        self.add(pack.rising("shape", shapes.clone().map(|(shape, _)| shape)))?;
        self.add(pack.numbers("shape_blocks", shapes.clone().map(|(_, (sum, _))| sum.blocks)))?;
        self.add(pack.numbers("shape_bytes", shapes.clone().map(|(_, (sum, _))| sum.bytes)))?;
        self.add(pack.numbers("shape_kept", shapes.map(|(_, (_, kept))| *kept)))
    }

    /// Packs live and reserved bytes over events, unless the script can compute them. Also packs the times.
    fn course(
        &mut self,
        recording: &Recording,
        census: &Census,
        segments: &[Life],
        is_brief: bool,
        pack: &mut Pack,
    ) -> io::Result<()> {
        if self.step > 1 || is_brief {
            self.add(pack.numbers("live_low", census.live.low.iter().copied()))?;
            self.add(pack.numbers("live_high", census.live.high.iter().copied()))?;
            if !segments.is_empty() {
                let reserved = reserved(recording.len(), segments, self.step);
                self.add(pack.numbers("reserved_low", reserved.low))?;
                self.add(pack.numbers("reserved_high", reserved.high))?;
            }
        }
        if census.times.are_known() {
            let times = census.times.edges.iter().map(|time| time / census.times.unit);
            self.add(pack.rising("time", times))?;
        }
        Ok(())
    }

    /// Packs the largest blocks, and sums of the other blocks.
    fn blocks(
        &mut self,
        recording: &'a Recording,
        census: &Census,
        is_whole: bool,
        pack: &mut Pack,
    ) -> io::Result<()> {
        let limit = if is_whole { u64::MAX } else { BLOCKS as u64 };
        let (least, mut left) = census.least_area(limit);
        let fixed = self.marks.iter().map(|mark| mark.event);
        let fixed = fixed.chain(self.failures.iter().map(|failure| failure.event)).chain([self.peak]);
        let mut bands = Bands::new(recording.len(), fixed);
        let mut cells = (!is_whole && self.height > 0)
            .then(|| Cells::new(recording.len(), self.height, &self.coloured(census)));
        let mut largest: Vec<(u32, u32)> = Vec::new();
        for (start, event, block) in census.blocks(recording) {
            let (end, origin) = (census.ends[block] as usize, census.block_origins[block]);
            let area = Census::area(event.bytes, (end - start) as u64);
            let is_last = area == least && left > 0;
            left -= u64::from(is_last);
            if is_whole || area > least || is_last {
                largest.push((start as u32, block as u32));
                continue;
            }
            bands.add(origin, start, end, event.bytes);
            if let Some(cells) = &mut cells {
                let y = census.places.of_address(event.address);
                cells.add(origin, (start, end), y, event.bytes);
            }
        }
        self.largest(recording, census, &largest, pack)?;
        if is_whole {
            return Ok(());
        }
        self.add(pack.rising("mark", bands.marks()))?;
        let sums = bands.sums();
        self.add(pack.rising("band_origin", sums.iter().map(|(band, _)| band.origin.into())))?;
        self.add(pack.numbers("band_from", sums.iter().map(|(band, _)| band.from.into())))?;
        self.add(pack.numbers("band_length", sums.iter().map(|(band, _)| (band.to - band.from).into())))?;
        self.add(pack.numbers("band_blocks", sums.iter().map(|(_, sum)| sum.blocks)))?;
        self.add(pack.numbers("band_bytes", sums.iter().map(|(_, sum)| sum.bytes)))?;
        cells.map_or(Ok(()), |cells| self.cells(&cells, pack))
    }

    /// Packs the cells of small blocks.
    fn cells(&mut self, cells: &Cells, pack: &mut Pack) -> io::Result<()> {
        let covered = cells.finish();
        let mut add = |name: &str, values: &[u8]| {
            self.columns.push(pack.numbers(name, values.iter().copied().map(u64::from))?);
            io::Result::Ok(())
        };
        add("cell_share", &covered.shares)?;
        for (at, (layers, parts)) in covered.layers.iter().zip(&covered.parts).enumerate() {
            add(&format!("cell_layer_{at}"), layers)?;
            add(&format!("cell_part_{at}"), parts)?;
        }
        self.add(pack.numbers("cell_origin", cells.origins()))
    }

    /// Returns the number of blocks and the colour of each origin.
    fn coloured(&self, census: &Census) -> Vec<(u64, u8)> {
        let colour = |origin: &Origin| {
            let group = self.texts.groups[origin.stack as usize];
            let rank = self.holders.iter().position(|&holder| holder == group);
            (origin.all.blocks, rank.unwrap_or(COLOURS - 1) as u8)
        };
        census.origins.iter().map(colour).collect()
    }

    /// Packs blocks with their start events and their numbers.
    fn largest(
        &mut self,
        recording: &'a Recording,
        census: &Census,
        largest: &[(u32, u32)],
        pack: &mut Pack,
    ) -> io::Result<()> {
        let event = |start: u32| recording.event(start as usize);
        let bytes = |start| event(start).map_or(0, |event| event.bytes);
        self.add(pack.rising("start", largest.iter().map(|&(start, _)| start.into())))?;
        let life = |&(start, block): &(u32, u32)| (census.ends[block as usize] - start).into();
        self.add(pack.numbers("life", largest.iter().map(life)))?;
        self.add(pack.numbers("bytes", largest.iter().map(|&(start, _)| bytes(start))))?;
        let origin = |&(_, block): &(u32, u32)| census.block_origins[block as usize].into();
        self.add(pack.numbers("origin", largest.iter().map(origin)))?;
        let address = |start| event(start).map_or(0, |event| event.address);
        if self.height > 0 {
            let y = |&(start, _): &(u32, u32)| census.places.of_address(address(start));
            self.add(pack.numbers("y", largest.iter().map(y)))?;
            let ranges = census.places.ranges();
            if ranges.len() <= RANGES {
                let (from, below): (Vec<u64>, Vec<u64>) = ranges.unzip();
                self.add(pack.rising("range_address", from))?;
                self.add(pack.rising("range_y", below))?;
            }
        }
        let rounded = |start| recording.rounded_bytes(start as usize).unwrap_or(0);
        if largest.iter().any(|&(start, _)| rounded(start) > 0) {
            self.add(pack.numbers("rounded", largest.iter().map(|&(start, _)| rounded(start))))?;
        }
        if self.step > 1 && census.times.are_known() {
            let (starts, lasted) = times(recording, census, largest);
            self.add(pack.rising("start_time", starts))?;
            self.add(pack.numbers("lasted", lasted))?;
        }
        self.names(recording, largest, pack)
    }

    /// Packs data about blocks from later events: the names that the program gave them, and how many events a
    /// free waited for other streams.
    fn names(&mut self, recording: &'a Recording, largest: &[(u32, u32)], pack: &mut Pack) -> io::Result<()> {
        let told = |kind| matches!(kind, EventKind::Annotate | EventKind::FreeRequested);
        let is_named = |event: &crate::recording::Event| {
            told(event.kind) || (event.kind == EventKind::Allocate && event.tag.is_some())
        };
        if !recording.events().any(is_named) {
            return Ok(());
        }
        let mut at_address = rustc_hash::FxHashMap::default();
        let mut names: Vec<Option<Id>> = vec![None; largest.len()];
        let mut requested: Vec<u64> = vec![0; largest.len()];
        let mut next = 0;
        for (at, event) in recording.events().enumerate() {
            match event.kind {
                EventKind::Allocate => {
                    at_address.remove(&event.address);
                    if largest.get(next).is_some_and(|&(start, _)| start as usize == at) {
                        at_address.insert(event.address, next);
                        names[next] = event.tag;
                        next += 1;
                    }
                }
                EventKind::Free => drop(at_address.remove(&event.address)),
                kind if told(kind) => {
                    let Some(&block) = at_address.get(&event.address) else { continue };
                    if kind == EventKind::Annotate {
                        names[block] = event.tag.or(names[block]);
                    } else {
                        requested[block] = (at - largest[block].0 as usize) as u64;
                    }
                }
                _ => {}
            }
        }
        let mut numbers = rustc_hash::FxHashMap::default();
        let number = |name: Option<Id>| {
            name.map_or(0, |name| {
                *numbers.entry(name).or_insert_with(|| {
                    self.tags.push(recording.tag(name));
                    self.tags.len() as u64
                })
            })
        };
        let names: Vec<u64> = names.into_iter().map(number).collect();
        self.add(pack.numbers("tag", names))?;
        self.add(pack.numbers("requested", requested))
    }

    fn segments(&mut self, census: &Census, mut segments: Vec<Life>, pack: &mut Pack) -> io::Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        keep_largest(&mut segments, SEGMENTS);
        self.lives("segment_", &segments, pack)?;
        if self.height > 0 {
            let y = |life: &Life| census.places.of_address(life.address);
            self.add(pack.numbers("segment_y", segments.iter().map(y)))?;
        }
        Ok(())
    }

    /// Packs the plan and the curves.
    fn extras(&mut self, extras: Extras<'_>, pack: &mut Pack) -> io::Result<()> {
        if let Some(placed) = extras.placement.and_then(Placement::placed) {
            self.planned_count = placed.len();
            let mut planned: Vec<Life> = placed.iter().map(planned).collect();
            keep_largest(&mut planned, BLOCKS);
            self.lives("plan_", &planned, pack)?;
            self.add(pack.numbers("plan_y", planned.iter().map(|life| life.address)))?;
        }
        for (at, curve) in extras.curves.iter().enumerate() {
            self.add(pack.numbers(format!("curve_{at}"), curve.bytes.iter().copied()))?;
        }
        Ok(())
    }

    /// Packs the columns of lives.
    fn lives(&mut self, prefix: &str, lives: &[Life], pack: &mut Pack) -> io::Result<()> {
        let length = |life: &Life| (life.end - life.start) as u64;
        self.add(pack.rising(format!("{prefix}start"), lives.iter().map(|life| life.start as u64)))?;
        self.add(pack.numbers(format!("{prefix}life"), lives.iter().map(length)))?;
        self.add(pack.numbers(format!("{prefix}bytes"), lives.iter().map(|life| life.bytes)))
    }
}

/// Keeps the lives with the most bytes times events, in the order of their starts.
fn keep_largest(lives: &mut Vec<Life>, limit: usize) {
    let area = |life: &Life| Census::area(life.bytes, (life.end - life.start) as u64);
    if lives.len() > limit {
        lives.sort_unstable_by_key(|life| std::cmp::Reverse((area(life), life.start)));
        lives.truncate(limit);
    }
    lives.sort_by_key(|life| life.start);
}

/// Returns the life of a block at its planned offset.
fn planned(&(block, offset): &(Block, u64)) -> Life {
    let (start, end) = (block.birth as usize, block.death as usize);
    Life { start, end, address: offset, bytes: block.size, stack: None }
}

/// Returns the reserved bytes over events.
fn reserved(events: usize, segments: &[Life], step: usize) -> Course {
    let mut changes: Vec<(usize, u64, bool)> = Vec::new();
    for life in segments {
        changes.push((life.start, life.bytes, true));
        changes.push((life.end, life.bytes, false));
    }
    // At one event, memory is returned before the remaining range begins.
    changes.sort_unstable_by_key(|&(event, _, is_taken)| (event, is_taken));
    let mut course = Course::new(step);
    let (mut bytes, mut next) = (0_u64, changes.into_iter().peekable());
    for event in 0..events {
        while let Some((_, change, is_taken)) = next.next_if(|&(at, ..)| at <= event) {
            bytes = if is_taken { bytes.saturating_add(change) } else { bytes.saturating_sub(change) };
        }
        course.add(event, bytes);
    }
    course
}

/// Returns the time at which each block began, and how long the block lived, in units of the page's times.
fn times(recording: &Recording, census: &Census, largest: &[(u32, u32)]) -> (Vec<u64>, Vec<u64>) {
    let mut wanted: Vec<u32> =
        largest.iter().flat_map(|&(start, block)| [start, census.ends[block as usize]]).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut clock = Times::default();
    let mut next = wanted.iter().copied().peekable();
    let mut known: Vec<u64> = Vec::with_capacity(wanted.len());
    let mut latest = 0;
    for (at, event) in (0..).zip(recording.events()) {
        latest = clock.next(event);
        if next.next_if_eq(&at).is_some() {
            known.push(latest / census.times.unit);
        }
    }
    // A block that was never freed lives until the end.
    known.resize(wanted.len(), latest / census.times.unit);
    let time = |event: u32| wanted.binary_search(&event).map_or(0, |at| known[at]);
    let starts = largest.iter().map(|&(start, _)| time(start));
    let lasted = largest.iter().map(|&(start, block)| time(census.ends[block as usize]) - time(start));
    (starts.collect(), lasted.collect())
}

/// Returns the groups that hold the most bytes at the peak. Each of them has its own colour.
fn holders(census: &Census, texts: &Texts<'_>) -> Vec<usize> {
    let mut held: Vec<(u64, usize)> = (0..census.group_peaks.len()).map(|group| (0, group)).collect();
    for origin in &census.origins {
        let (bytes, _) = &mut held[texts.groups[origin.stack as usize]];
        *bytes = bytes.saturating_add(origin.at_peak.bytes);
    }
    held.retain(|&(bytes, _)| bytes > 0);
    held.sort_unstable_by_key(|&(bytes, group)| (std::cmp::Reverse(bytes), group));
    held.truncate(COLOURS - 1);
    held.into_iter().map(|(_, group)| group).collect()
}

/// Returns the threads, streams and pools, each if the source tells it.
fn lanes(recording: &Recording) -> Vec<LaneText> {
    let lacks_streams = ["streams", "no_trace"].into_iter().any(|code| recording.lacks(code));
    let is_told = !lacks_streams && recording.clock() != Clock::Steps;
    let text = |lane: &Lane| LaneText {
        thread: (lane.thread != 0).then(|| lane.thread.to_string()),
        stream: (is_told || lane.stream != Lane::default().stream).then(|| lane.stream.to_string()),
        pool: lane.pool.map(|(first, second)| format!("{first}:{second}")),
    };
    recording.lanes().iter().map(text).collect()
}

fn has_addresses(recording: &Recording) -> bool {
    !recording.lacks("addresses") && !recording.lacks("no_addresses")
}

/// The first marks and failed requests.
struct Marks<'a> {
    marks: Vec<Mark<'a>>,
    mark_count: usize,
    failures: Vec<Failure>,
    failure_count: usize,
}

impl<'a> Marks<'a> {
    fn of(recording: &'a Recording) -> Self {
        let mut found = Self { marks: Vec::new(), mark_count: 0, failures: Vec::new(), failure_count: 0 };
        for (at, event) in recording.events().enumerate() {
            match event.kind {
                EventKind::AllocateFailure => {
                    found.failure_count += 1;
                    if found.failures.len() < FAILURES {
                        let lead = |stack| recording.user_stack(stack).lead(recording.user_folder());
                        let lead = event.stack.map(lead);
                        found.failures.push(Failure { event: at, bytes: event.bytes, lead });
                    }
                }
                EventKind::PhaseStart | EventKind::PhaseEnd | EventKind::Snapshot => {
                    found.mark_count += 1;
                    if found.marks.len() < MARKS {
                        let name = event.tag.map_or("", |tag| recording.tag(tag));
                        found.marks.push(Mark { event: at, kind: event.kind.name(), name });
                    }
                }
                _ => {}
            }
        }
        found
    }
}
