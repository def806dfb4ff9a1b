//! Finds problems with the memory of a program, each with its evidence and lines that help.

use std::borrow::Borrow;
use std::collections::HashMap;

use millpond_core::format_bytes;
use millpond_engine::text::number_of;

use super::explanation::{Diagnosis, Explained, Occasion};
use super::holders::{self, HOLDERS};
use crate::recording::{EventKind, Id, LiveBlock, Moment, Recording, Sums, Unknown};

const MIB: u64 = 1 << 20;

/// The name of the diagnosis at the peak.
const ROUNDING: &str = "rounding";

/// Rounding is reported from this share of the active bytes.
const MUCH_ROUNDING: f64 = 0.05;

/// Held blocks are reported from this share of the active bytes.
const MUCH_HELD: f64 = 0.05;

/// Growth by changing sizes is reported from this ratio of reserved to active bytes.
const MUCH_RESERVED: f64 = 1.2;

/// With fewer bytes beyond the active ones, the ratio says nothing: a small program's segments.
const LEAST_BEYOND: u64 = 64 * MIB;

/// How many ends of a phase show a leak, and how many before them do not count.
const PHASES: usize = 4;
const WARM_UP: usize = 2;

/// A leak grows by at least this share of the live bytes, over all phases.
const MUCH_GROWTH: f64 = 0.01;

/// Finds the problem at one moment: why a request failed, or how much rounding takes at the peak.
pub(super) fn of_moment(recording: &Recording, explained: &Explained, moment: &Moment) -> Option<Diagnosis> {
    match explained.occasion {
        Occasion::Failure => failure(recording, explained, moment),
        Occasion::Peak => rounding(recording, explained, moment),
        Occasion::End => None,
    }
}

/// Returns all diagnoses, the failed requests first. `found` are the diagnoses of the moments.
pub(super) fn all(
    recording: &Recording,
    sums: &Sums,
    moments: &[Explained],
    found: Vec<Diagnosis>,
) -> Vec<Diagnosis> {
    let (rounding, mut diagnoses): (Vec<Diagnosis>, Vec<Diagnosis>) =
        found.into_iter().partition(|diagnosis| diagnosis.code == ROUNDING);
    if let Some(peak) = moments.iter().find(|explained| explained.occasion == Occasion::Peak) {
        diagnoses.extend(growth(recording, sums, peak));
        diagnoses.extend(held(recording, sums, moments));
    }
    diagnoses.extend(rounding);
    diagnoses.extend(leak(recording));
    diagnoses
}

/// Explains why a request failed.
fn failure(recording: &Recording, explained: &Explained, moment: &Moment) -> Option<Diagnosis> {
    let wanted = explained.wanted_bytes?;
    let ledger = &explained.ledger;
    let reserved = ledger.reserved_bytes?;
    let at = ledger.event + 1;
    let free = explained.device_free_bytes.unwrap_or(0);
    let (unused, largest) = (ledger.unused_bytes(), ledger.largest_free_bytes);
    let bytes = format_bytes;
    let mut evidence = vec![format!(
        "at event {at}, a request for {} failed; {} of {} reserved were active, {} wholly free, {} pinned by \
         live blocks; the largest free piece had {}",
        bytes(wanted),
        bytes(ledger.active_bytes),
        bytes(reserved),
        bytes(ledger.wholly_free_bytes),
        bytes(ledger.pinned_bytes),
        bytes(largest),
    )];
    if let Some(free) = explained.device_free_bytes {
        evidence.push(format!(
            "the device had {} free, but a limit of the process may forbid their use",
            bytes(free)
        ));
    }
    if wanted <= largest {
        return Some(other_pool(explained, moment, wanted, evidence));
    }
    if wanted <= unused {
        // An allocator gives back whole segments before it fails, except segments of private pools.
        return Some(match ledger.pinned_bytes {
            0 => other_pool(explained, moment, wanted, evidence),
            _ => fragmentation(recording, explained, moment, evidence),
        });
    }
    let asked = from_the_driver(wanted);
    if asked <= free {
        return Some(Diagnosis {
            code: "limit",
            what: format!(
                "the device had {} free, but a limit of the process forbade their use",
                bytes(free)
            ),
            evidence,
            holders: explained.holders.clone(),
            fixes: [
                vec!["raise torch.cuda.set_per_process_memory_fraction, or omit it".to_owned()],
                expandable(recording),
            ]
            .concat(),
        });
    }
    if ledger.pinned_bytes > 0 && asked <= unused.saturating_add(free) {
        return Some(fragmentation(recording, explained, moment, evidence));
    }
    Some(Diagnosis {
        code: "does_not_fit",
        what: format!(
            "the program does not fit: {} in use and {} requested; saving all the memory that the allocator \
             wastes would not be enough",
            bytes(ledger.active_bytes),
            bytes(wanted)
        ),
        evidence,
        holders: explained.holders.clone(),
        fixes: vec![
            "use less memory in the code of the stacks above: a smaller batch, checkpointing, offloading"
                .to_owned(),
        ],
    })
}

/// Returns how much PyTorch asks the driver for at a request: a segment of 2 MiB or 20 MiB, or the request's
/// own size in pages of 2 MiB.
fn from_the_driver(wanted: u64) -> u64 {
    match wanted {
        ..=MIB => 2 * MIB,
        _ if wanted < 10 * MIB => 20 * MIB,
        _ => wanted.checked_next_multiple_of(2 * MIB).unwrap_or(u64::MAX),
    }
}

/// Explains a failed request although enough memory was free.
fn other_pool(explained: &Explained, moment: &Moment, wanted: u64, mut evidence: Vec<String>) -> Diagnosis {
    let ledger = &explained.ledger;
    let is_one_piece = wanted <= ledger.largest_free_bytes;
    evidence.extend(pools(moment, if is_one_piece { wanted } else { 1 }));
    let largest = format_bytes(ledger.largest_free_bytes);
    let what = if is_one_piece {
        format!(
            "{largest} were free in one piece, but this request could not use it: it belongs to another pool \
             or stream, or max_split_size forbids splitting it"
        )
    } else {
        let free = format_bytes(ledger.wholly_free_bytes);
        format!("{free} were free in whole segments, but they belong to other pools or streams")
    };
    let share = "share one graph pool among graphs that never run at the same time: \
                 torch.cuda.graph(graph, pool=other.pool())";
    let flush = "call torch.cuda.empty_cache() when a stream is no longer used";
    Diagnosis {
        code: "other_pool",
        what,
        evidence,
        holders: Vec::new(),
        fixes: vec![share.to_owned(), flush.to_owned()],
    }
}

/// Explains a failed request for which the free memory would suffice in one piece.
fn fragmentation(
    recording: &Recording,
    explained: &Explained,
    moment: &Moment,
    mut evidence: Vec<String>,
) -> Diagnosis {
    let (blocks, segments) = pinning(moment);
    let pinning = sum_of(&blocks);
    evidence.push(format!(
        "{} of {} together {} {} in {} from returning to the driver",
        number_of(blocks.len() as u64, "block"),
        format_bytes(pinning),
        if blocks.len() == 1 { "keeps" } else { "keep" },
        format_bytes(explained.ledger.pinned_bytes),
        number_of(segments, "segment"),
    ));
    let unused = format_bytes(explained.ledger.unused_bytes());
    Diagnosis {
        code: "fragmentation",
        what: format!("{unused} were free, but in pieces that were too small: fragmentation"),
        evidence,
        holders: holders::by_stack(recording, blocks, HOLDERS),
        fixes: expandable(recording),
    }
}

/// Lists free memory that would have sufficed, by pool and stream.
fn pools(moment: &Moment, wanted: u64) -> Vec<String> {
    let free = moment.segments().iter().filter(|segment| moment.blocks_in(segment).is_empty());
    let mut lines: Vec<String> = free
        .filter(|segment| segment.bytes >= wanted)
        .map(|segment| {
            let lane = segment.lane;
            let pool = lane.pool.map_or("?".to_owned(), |(first, second)| format!("({first}, {second})"));
            let bytes = format_bytes(segment.bytes);
            format!("a free segment of {bytes} belongs to pool {pool}, stream {}", lane.stream)
        })
        .collect();
    lines.dedup();
    lines.truncate(HOLDERS);
    lines
}

/// Returns the bytes of blocks. The sum saturates, because a file may contain any numbers.
fn sum_of<'a>(blocks: impl IntoIterator<Item = &'a (impl Borrow<LiveBlock> + 'a)>) -> u64 {
    blocks.into_iter().fold(0, |sum, block| sum.saturating_add(block.borrow().rounded_bytes))
}

/// Returns the blocks in partly free segments, and the number of these segments.
fn pinning(moment: &Moment) -> (Vec<&LiveBlock>, u64) {
    let mut pinning: Vec<&LiveBlock> = Vec::new();
    let mut segments = 0;
    for segment in moment.segments() {
        let blocks = moment.blocks_in(segment);
        if !blocks.is_empty() && sum_of(blocks) < segment.bytes {
            segments += 1;
            pinning.extend(blocks);
        }
    }
    // A block may cross from one mapped range into the next.
    pinning.dedup_by_key(|block| block.address);
    (pinning, segments)
}

/// Returns the setting that lets segments grow, unless it is on.
fn expandable(recording: &Recording) -> Vec<String> {
    let is_on =
        recording.settings().iter().any(|(name, value)| name == "expandable_segments" && value == "True");
    if is_on {
        return vec![
            "expandable_segments is on: allocate long-lived blocks before short-lived ones".to_owned(),
        ];
    }
    vec![
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned(),
        "check with `millpond-replay tune FILE` that this lowers the need: some programs need more with it; \
         it does not work with vLLM's sleep mode, or if a library replaces PyTorch's allocator"
            .to_owned(),
    ]
}

/// Finds far more reserved memory than was ever active.
fn growth(recording: &Recording, sums: &Sums, peak: &Explained) -> Option<Diagnosis> {
    // If the beginning is missing, the peak may have been there.
    let is_late = |unknown: &Unknown| ["no_trace", "ring_wrapped", "began_late"].contains(&&*unknown.code);
    if recording.unknowns().iter().any(is_late) {
        return None;
    }
    let (reserved, active) = (sums.peak_reserved_bytes?, peak.ledger.active_bytes);
    let beyond = reserved.saturating_sub(active);
    if (reserved as f64) < MUCH_RESERVED * active as f64 || active == 0 || beyond < LEAST_BEYOND {
        return None;
    }
    let mut sizes: Vec<u64> = Vec::new();
    for event in recording.events().filter(|event| event.kind == EventKind::Allocate) {
        sizes.push(event.bytes);
    }
    sizes.sort_unstable();
    let allocations = sizes.len();
    sizes.dedup();
    let ratio = reserved as f64 / active as f64;
    let evidence = vec![
        format!(
            "at most {} were reserved, and {} active at the peak: {ratio:.2} times as much",
            format_bytes(reserved),
            format_bytes(active)
        ),
        format!(
            "{} of {}",
            number_of(allocations as u64, "allocation"),
            number_of(sizes.len() as u64, "different size")
        ),
    ];
    let mut fixes = expandable(recording);
    fixes.push("or, if few sizes repeat: PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:8".to_owned());
    Some(Diagnosis {
        code: "reserved_beyond_need",
        what: "the allocator reserved much more than the program ever used at once".to_owned(),
        evidence,
        holders: Vec::new(),
        fixes,
    })
}

/// Finds blocks that wait for other streams, at the moment with the most of them.
fn held(recording: &Recording, sums: &Sums, moments: &[Explained]) -> Option<Diagnosis> {
    let mut held_since: HashMap<u64, (u64, Option<u64>, Option<Id>)> = HashMap::new();
    let (mut bytes_now, mut most, mut most_at) = (0_u64, 0, 0);
    let mut byte_seconds = 0.0;
    for (number, event) in recording.events().enumerate() {
        match event.kind {
            EventKind::FreeRequested => {
                let known = (event.bytes, event.time(), event.stack);
                if held_since.insert(event.address, known).is_none() {
                    bytes_now = bytes_now.saturating_add(event.bytes);
                }
                if bytes_now > most {
                    (most, most_at) = (bytes_now, number);
                }
            }
            EventKind::Free => {
                if let Some((bytes, since, _)) = held_since.remove(&event.address) {
                    bytes_now = bytes_now.saturating_sub(bytes);
                    let time = event.time().zip(since).map_or(0, |(now, since)| now.saturating_sub(since));
                    byte_seconds += bytes as f64 * time as f64 / 1e9;
                }
            }
            _ => {}
        }
    }
    let active = moments.iter().map(|explained| explained.ledger.active_bytes).max().unwrap_or(0);
    if most == 0 || (most as f64) < MUCH_HELD * active as f64 {
        return None;
    }
    let moment = recording.moment(most_at);
    let waiting = moment.blocks().iter().filter(|block| block.is_held);
    Some(Diagnosis {
        code: "held_by_streams",
        what: format!("up to {} were freed but waited for other streams (record_stream)", format_bytes(most)),
        evidence: vec![
            format!("{} waited; the most at event {}", number_of(sums.held_blocks, "free"), most_at + 1),
            format!("together they held {:.3} GiB-seconds of memory", byte_seconds / f64::from(1 << 30)),
        ],
        holders: holders::by_stack(recording, waiting, HOLDERS),
        fixes: vec![
            "let the block's own stream wait for the other one before the free, instead of record_stream: \
             torch.cuda.current_stream().wait_stream(side)"
                .to_owned(),
            "with NCCL: TORCH_NCCL_AVOID_RECORD_STREAMS=1".to_owned(),
        ],
    })
}

/// Finds much memory lost to rounding at the peak.
fn rounding(recording: &Recording, peak: &Explained, moment: &Moment) -> Option<Diagnosis> {
    let ledger = &peak.ledger;
    let share = ledger.rounding_bytes as f64 / ledger.active_bytes.max(1) as f64;
    if share < MUCH_ROUNDING || ledger.reserved_bytes.is_none() {
        return None;
    }
    let rounded = moment.blocks().iter().filter(|block| block.rounded_bytes > block.bytes);
    Some(Diagnosis {
        code: ROUNDING,
        what: format!("rounding takes {:.0} % of the active bytes at the peak", 100.0 * share),
        evidence: vec![format!(
            "{} were requested, {} allocated",
            format_bytes(ledger.requested_bytes),
            format_bytes(ledger.active_bytes)
        )],
        holders: holders::by_stack(recording, rounded, HOLDERS),
        fixes: vec![
            "combine many small tensors in one; or unset roundup_power2_divisions, if it is set".to_owned(),
        ],
    })
}

/// Finds a leak: live memory that grows at each end of a phase.
fn leak(recording: &Recording) -> Option<Diagnosis> {
    let mut ends: HashMap<Id, Vec<(usize, u64)>> = HashMap::new();
    let mut live: HashMap<u64, u64> = HashMap::new();
    let mut bytes = 0_u64;
    for (number, event) in recording.events().enumerate() {
        match event.kind {
            EventKind::Allocate => {
                let older = live.insert(event.address, event.bytes).unwrap_or(0);
                bytes = bytes.saturating_sub(older).saturating_add(event.bytes);
            }
            EventKind::Free => bytes = bytes.saturating_sub(live.remove(&event.address).unwrap_or(0)),
            EventKind::PhaseEnd => {
                if let Some(tag) = event.tag {
                    ends.entry(tag).or_default().push((number, bytes));
                }
            }
            _ => {}
        }
    }
    let (tag, ends) = ends.into_iter().max_by_key(|(tag, ends)| (ends.len(), std::cmp::Reverse(*tag)))?;
    let ends = ends.get(WARM_UP..).filter(|ends| ends.len() >= PHASES)?;
    let (first, last) = (ends.first()?, ends.last()?);
    let grows = ends.windows(2).all(|pair| pair[1].1 > pair[0].1);
    if !grows || (last.1 - first.1) as f64 <= MUCH_GROWTH * first.1 as f64 {
        return None;
    }
    let moment = recording.moment(last.0);
    let born = |block: &&LiveBlock| (first.0..ends[ends.len() - 2].0).contains(&block.event);
    let name: String = recording.tag(tag).chars().take(80).collect();
    Some(Diagnosis {
        code: "leak",
        what: format!("live memory grows with each `{name}`: a leak"),
        evidence: vec![format!(
            "over {} of them it grew every time, from {} to {}",
            ends.len(),
            format_bytes(first.1),
            format_bytes(last.1)
        )],
        holders: holders::by_stack(recording, moment.blocks().iter().filter(born), HOLDERS),
        fixes: vec![
            "check what these stacks keep: a list of losses without .item(), a cache, a hook".to_owned(),
        ],
    })
}
