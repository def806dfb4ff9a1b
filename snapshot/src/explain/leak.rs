//! Finds possible leaks: live memory that grows in each part of the recording.

use std::collections::{BTreeMap, HashMap, HashSet};

use millpond_engine::log::notes::origin;
use millpond_engine::text::{number_of, readable_bytes};

use super::explanation::Diagnosis;
use super::fixes;
use super::holders::{self, HOLDERS};
use crate::recording::{Event, EventKind, Id, LiveBlock, Recording, Source};

/// A leak shows in the ends of at least `PHASES` phases. The first `WARM_UP` phases do not count.
const PHASES: usize = 4;
const WARM_UP: usize = 2;

/// Over all phases, a leak grows by at least this share of the live bytes.
const MUCH_GROWTH: f64 = 0.01;

/// A recording without phases is divided into this many equal parts.
const PARTS: usize = 10;

/// The first of these parts do not count, because the program is still building data that it keeps.
const FIRST_PARTS: usize = 3;

/// A part with fewer events than this shows nothing.
const LEAST_EVENTS: usize = 20;

/// Without phases, a leak makes up at least this share of the live bytes.
const LEAST_SHARE: f64 = 0.1;

/// Live memory that only grows counts as kept if the program frees at least one in this many blocks. A
/// program that only loads data frees fewer blocks.
const LEAST_FREES: u64 = 4;

/// With fewer copies than this, a tensor does not count as growing by copying.
const LEAST_COPIES: usize = 8;

/// The end of a sentence about a possible leak.
pub(super) const POSSIBLY: &str = ": possibly a leak";

/// Finds a possible leak as live memory that grows with each phase, or in each part of the recording.
pub(super) fn found(recording: &Recording) -> Option<Diagnosis> {
    by_phase(recording).or_else(|| by_part(recording))
}

/// Returns the advice about a leak.
fn advice(recording: &Recording) -> Vec<String> {
    let keeps = fixes::keep_less(recording);
    vec![format!("if these blocks are kept by accident, drop them: {keeps}")]
}

/// Describes blocks by their number and their requested bytes.
fn described(blocks: &[&LiveBlock]) -> String {
    let bytes = blocks.iter().fold(0_u64, |sum, block| sum.saturating_add(block.bytes));
    format!("{} of {}", number_of(blocks.len() as u64, "block"), readable_bytes(bytes))
}

/// Finds a possible leak as live memory that is larger at the end of each phase.
fn by_phase(recording: &Recording) -> Option<Diagnosis> {
    let mut ends: HashMap<Id, Vec<(usize, u64)>> = HashMap::new();
    for (number, (event, bytes)) in recording.live_bytes().enumerate() {
        if let Some(tag) = event.tag.filter(|_| event.kind == EventKind::PhaseEnd) {
            ends.entry(tag).or_default().push((number, bytes));
        }
    }
    let (tag, ends) = ends.into_iter().max_by_key(|(tag, ends)| (ends.len(), std::cmp::Reverse(*tag)))?;
    let ends = ends.get(WARM_UP..).filter(|ends| ends.len() >= PHASES)?;
    let (first, last) = (ends.first()?, ends.last()?);
    let grows = ends.windows(2).all(|pair| pair[1].1 > pair[0].1);
    if !grows || (last.1 - first.1) as f64 <= MUCH_GROWTH * first.1 as f64 {
        return None;
    }
    let (moment, end) = (recording.moment(last.0), recording.moment(usize::MAX));
    let born = |block: &&LiveBlock| (first.0..ends[ends.len() - 2].0).contains(&block.event);
    let kept: Vec<&LiveBlock> = moment.blocks().iter().filter(born).collect();
    let at_the_end: HashSet<usize> = end.blocks().iter().map(|block| block.event).collect();
    let freed = kept.iter().filter(|block| !at_the_end.contains(&block.event)).count();
    let later = match freed {
        0 => "none of these blocks was freed before the file ends".to_owned(),
        1 => "1 of these blocks was freed later".to_owned(),
        freed => format!("{freed} of these blocks were freed later"),
    };
    let name: String = recording.tag(tag).chars().take(80).collect();
    let steps = ends.len() - 1;
    Some(Diagnosis {
        code: "leak",
        what: format!(
            "live memory grew in each of {steps} phases `{name}`, by {} in all{POSSIBLY}",
            readable_bytes(last.1 - first.1)
        ),
        evidence: vec![
            format!(
                "at the ends of these phases, live memory grew from {} to {}",
                readable_bytes(first.1),
                readable_bytes(last.1)
            ),
            format!(
                "{} were allocated before the last of them and live at its end; {later}",
                described(&kept)
            ),
        ],
        holders: holders::by_stack(recording, kept, HOLDERS),
        fixes: advice(recording),
    })
}

/// The blocks of one part of the recording.
#[derive(Clone, Copy)]
struct Part {
    /// The fewest bytes that were live at one time in the part.
    low: u64,
    allocations: u64,
    frees: u64,
}

/// Computes the low of each part: its fewest live bytes. If each low is above the previous one, and the
/// program frees at least one in [`LEAST_FREES`] blocks that it allocates, returns the lows of the first and
/// the last part that count. The driver's own memory does not count.
pub(super) fn growth(recording: &Recording) -> Option<(u64, u64)> {
    let events = recording.len();
    if events < PARTS * LEAST_EVENTS {
        return None;
    }
    let mut parts = [Part { low: u64::MAX, allocations: 0, frees: 0 }; PARTS];
    let mut of_driver = 0_u64;
    for (number, (event, bytes)) in recording.live_bytes().enumerate() {
        if is_of_driver(recording, event) {
            of_driver = if event.kind == EventKind::Allocate { event.bytes } else { 0 };
            continue;
        }
        let part = &mut parts[number * PARTS / events];
        match event.kind {
            EventKind::Allocate => part.allocations += 1,
            EventKind::Free => part.frees += 1,
            _ => continue,
        }
        part.low = part.low.min(bytes.saturating_sub(of_driver));
    }
    let counted = &parts[FIRST_PARTS..];
    let (first, last) = (counted.first()?.low, counted.last()?.low);
    let rises = counted.windows(2).all(|pair| pair[1].low > pair[0].low);
    let frees = counted.iter().all(|part| part.frees > 0 && LEAST_FREES * part.frees >= part.allocations);
    let is_much = || (last - first) as f64 >= LEAST_SHARE * last as f64;
    (rises && frees && is_much()).then_some((first, last))
}

/// Returns whether a row shows the driver's own memory, as `millpond-replay run` writes it.
fn is_of_driver(recording: &Recording, event: &Event) -> bool {
    recording.source().format == Source::DRIVER_CALLS
        && event.tag.is_some_and(|tag| recording.tag(tag) == origin::DRIVER_TAG)
}

/// Finds a possible leak by the low of each part, which is its fewest live bytes.
fn by_part(recording: &Recording) -> Option<Diagnosis> {
    let (first, last) = growth(recording)?;
    if let Some(copying) = Copying::of(recording) {
        return Some(copying.diagnosis());
    }
    let since = first_counted(recording);
    let moment = recording.moment(usize::MAX);
    let is_own = |block: &&LiveBlock| {
        let event = recording.event(block.event);
        block.event >= since && event.is_none_or(|event| !is_of_driver(recording, event))
    };
    let kept: Vec<&LiveBlock> = moment.blocks().iter().filter(is_own).collect();
    let parts = PARTS - FIRST_PARTS;
    Some(Diagnosis {
        code: "leak",
        what: format!("{}{POSSIBLY}", rise(first, last)),
        evidence: vec![
            format!(
                "in each of the last {} tenths of the file, the least live memory was above the least of the \
                 tenth before",
                parts - 1
            ),
            format!(
                "{} were allocated in the last {parts} tenths, and not freed before the file ends",
                described(&kept)
            ),
        ],
        holders: holders::by_stack(recording, kept, HOLDERS),
        fixes: advice(recording),
    })
}

/// Returns the number of the first event of the parts that count.
fn first_counted(recording: &Recording) -> usize {
    FIRST_PARTS * recording.len() / PARTS
}

/// A tensor that grows by copying: each block replaces a smaller one of the same call stack, as with
/// `torch.cat`.
pub(super) struct Copying {
    /// The code line of the user that copies.
    lead: String,
    /// The sizes in bytes of the last copy and of the one before.
    new: u64,
    old: u64,
}

impl Copying {
    /// Finds such a tensor among the blocks that are live at the end: the call stack with the most bytes has
    /// a constant number of live blocks, and their sizes only grow.
    pub(super) fn of(recording: &Recording) -> Option<Self> {
        let since = first_counted(recording);
        let (begin, end) = (recording.moment(since), recording.moment(usize::MAX));
        let mut sums: BTreeMap<Id, u64> = BTreeMap::new();
        for block in end.blocks().iter().filter(|block| block.event >= since) {
            let sum = sums.entry(block.stack?).or_default();
            *sum = sum.saturating_add(block.bytes);
        }
        let (stack, _) = sums.into_iter().max_by_key(|&(_, bytes)| bytes)?;
        let live = |blocks: &[LiveBlock]| blocks.iter().filter(|block| block.stack == Some(stack)).count();
        if live(end.blocks()) > live(begin.blocks()) + 1 {
            return None;
        }
        let asks = |kind| matches!(kind, EventKind::Allocate | EventKind::AllocateFailure);
        let later = recording.events().skip(since);
        let asked = later.filter(|event| event.stack == Some(stack) && asks(event.kind));
        let sizes: Vec<u64> = asked.map(|event| event.bytes).collect();
        let new = *sizes.last().filter(|_| sizes.len() >= LEAST_COPIES && sizes.is_sorted())?;
        let old = *sizes.iter().rev().find(|size| **size < new)?;
        Some(Self { lead: recording.user_stack(stack).lead(recording.user_folder()), new, old })
    }

    /// Describes the growth.
    pub(super) fn sentence(&self) -> String {
        let Self { lead, new, old } = self;
        format!(
            "a tensor grows by copying ({lead}, by {} a step), and the old and the new one are live together \
             ({} and {})",
            readable_bytes(new - old),
            readable_bytes(*old),
            readable_bytes(*new)
        )
    }

    /// Returns the change that helps.
    pub(super) fn fix(&self) -> String {
        format!("at {}: allocate the tensor's final length once, and write into a slice of it", self.lead)
    }

    fn diagnosis(&self) -> Diagnosis {
        Diagnosis {
            code: "grows_by_copying",
            what: self.sentence(),
            evidence: vec![
                "the number of live blocks of this call stack is constant, and each new block is at least as \
                 large as the one before"
                    .to_owned(),
            ],
            holders: Vec::new(),
            fixes: vec![self.fix()],
        }
    }
}

/// Describes the growth that [`growth`] found.
pub(super) fn rise(first: u64, last: u64) -> String {
    format!(
        "the memory that stays live grew from {} to {} in the last {} % of the events",
        readable_bytes(first),
        readable_bytes(last),
        100 * (PARTS - FIRST_PARTS) / PARTS
    )
}
