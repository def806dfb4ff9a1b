//! Explains why a request failed.

use std::borrow::Borrow;
use std::collections::HashMap;

use millpond_engine::text::{bytes_among, file_word, number_of, option_bytes, readable_bytes};

use super::explanation::{Diagnosis, Explained};
use super::fixes::{keep_less, less_fragmentation, less_rounding, other_users, raise_limit, share_streams};
use super::gaps;
use super::holders::{self, HOLDERS, Holder};
use super::leak::{self, Copying};
use super::private::Private;
use crate::peers::torch::settings::Settings;
use crate::recording::{EventKind, Ledger, LiveBlock, Moment, Recording, Segment, Source};

const MIB: u64 = 1 << 20;

/// The size in bytes of the segment from which PyTorch serves requests from 1 MiB to 10 MiB.
const LARGE_SEGMENT: u64 = 20 * MIB;

/// The code of a failed request whose cause the file does not record.
const UNEXPLAINED: &str = "unexplained";

/// More bytes than any device has.
pub(super) const BEYOND_ANY_DEVICE: u64 = 16 << 40;

/// If one code line has at least this number of live blocks, the program may keep old blocks by accident.
const MANY_BLOCKS: u64 = 8;

/// The most bytes that CUDA's context and a few libraries usually use.
const OF_CUDA: u64 = 2 << 30;

/// Explains why a request failed. `device_bytes` is the size of the device, if it is known.
pub(super) fn explained(
    recording: &Recording,
    explained: &Explained,
    moment: &Moment,
    device_bytes: Option<u64>,
) -> Option<Diagnosis> {
    let wanted = explained.wanted_bytes?;
    let ledger = &explained.ledger;
    let Some(reserved) = ledger.reserved_bytes else {
        return Some(without_segments(recording, explained, wanted, device_bytes));
    };
    let (unused, largest) = (ledger.unused_bytes(), ledger.largest_free_bytes);
    let bytes = readable_bytes;
    let mut evidence = vec![format!(
        "{} failed; {} of {} reserved were active, {}",
        request(recording, explained, wanted),
        bytes(ledger.active_bytes),
        bytes(reserved),
        pieces(ledger)
    )];
    let asked = from_the_driver(recording, wanted);
    evidence.extend(explained.device_free_bytes.map(|free| could_take(recording, free)));
    if wanted <= largest {
        let split = unsplit(recording, explained, moment, wanted);
        return Some(match split {
            Some(max_split) => max_split_size(explained, max_split, evidence),
            None => other_pool(recording, explained, moment, wanted, evidence),
        });
    }
    if wanted <= unused {
        // Before an allocator fails, it frees whole segments, except segments of private pools.
        return Some(match ledger.pinned_bytes {
            0 => other_pool(recording, explained, moment, wanted, evidence),
            _ => fragmentation(recording, explained, moment, evidence),
        });
    }
    if let Some(limit) = recording.limit_bytes().filter(|limit| reserved.saturating_add(asked) > *limit) {
        let what = format!("the allocator may take at most {} from the device", bytes(limit));
        let fixes = [vec![raise_limit(recording)], less_fragmentation(recording)].concat();
        return Some(with_holders("limit", what, evidence, explained, fixes));
    }
    let Some(free) = explained.device_free_bytes else {
        let what = "the file does not record how much memory the device had free, so the cause is not known";
        let fixes = less_fragmentation(recording);
        return Some(with_holders(UNEXPLAINED, what.to_owned(), evidence, explained, fixes));
    };
    if asked <= free {
        let what = format!(
            "the device had {} free, so probably a memory limit of the process forbade using it; the file \
             does not record such a limit",
            bytes(free)
        );
        let fixes = [vec![raise_limit(recording)], less_fragmentation(recording)].concat();
        return Some(with_holders("limit", what, evidence, explained, fixes));
    }
    if ledger.pinned_bytes > 0 && asked <= unused.saturating_add(free) {
        return Some(fragmentation(recording, explained, moment, evidence));
    }
    let short = asked.saturating_sub(unused.saturating_add(free));
    if ledger.rounding_bytes >= short.max(ledger.active_bytes / 8) {
        return Some(lost_to_rounding(recording, explained, short, evidence));
    }
    Some(does_not_fit(recording, explained, wanted, short, evidence))
}

/// Describes the free memory of the allocator.
fn pieces(ledger: &Ledger) -> String {
    let bytes = readable_bytes;
    match ledger.has_pieces() {
        false => format!("{} free in segments of the allocator", bytes(ledger.unused_bytes())),
        true if ledger.unused_bytes() == 0 => "no piece was free".to_owned(),
        true => format!(
            "{} wholly free, {} pinned by live blocks; the largest free piece had {}",
            bytes(ledger.wholly_free_bytes),
            bytes(ledger.pinned_bytes),
            bytes(ledger.largest_free_bytes),
        ),
    }
}

/// Explains a failed request that would have succeeded without the bytes that rounding adds to live blocks.
fn lost_to_rounding(
    recording: &Recording,
    explained: &Explained,
    short: u64,
    evidence: Vec<String>,
) -> Diagnosis {
    let (rounding, active) =
        (readable_bytes(explained.ledger.rounding_bytes), readable_bytes(explained.ledger.active_bytes));
    let what = format!(
        "the request needed {} more, and {rounding} of {active} in use were never requested: the allocator \
         rounded sizes up",
        readable_bytes(short)
    );
    with_holders("lost_to_rounding", what, evidence, explained, less_rounding(recording))
}

/// Returns changes with which the program would fit, as far as the call stacks show them. If live memory
/// `grew`, blocks that the program keeps come first.
fn savings(recording: &Recording, explained: &Explained, grew: bool) -> Vec<String> {
    let mut fixes = vec![
        "use less memory in the code that holds the most: a smaller batch, checkpointing, offloading"
            .to_owned(),
    ];
    let active = explained.ledger.active_bytes;
    let is_much = |holder: &&Holder| holder.blocks >= MANY_BLOCKS && holder.bytes >= active / 3;
    if let Some(holder) = explained.holders.iter().find(is_much) {
        let kept = format!(
            "{} of {} are live: if the program keeps old ones by accident, drop them: {}",
            number_of(holder.blocks, "block"),
            holder.lead,
            keep_less(recording)
        );
        fixes.insert(usize::from(!grew), kept);
    }
    let mut before = recording.events().take(explained.ledger.event as usize);
    if before.any(|event| event.kind == EventKind::AllocateFailure) {
        fixes.push(
            "a request failed before this one: if the program tries again in the `except` block, leave the \
             block first, because the exception keeps the frames and tensors of the first try"
                .to_owned(),
        );
    }
    if explained.outside_bytes.is_none() && recording.limit_bytes().is_none() {
        let reserved = explained.ledger.reserved_bytes.unwrap_or(0);
        let could_have = reserved.saturating_add(explained.device_free_bytes.unwrap_or(0));
        fixes.push(format!(
            "if the device has much more than {}, another process or a library holds the rest: {}",
            readable_bytes(could_have),
            other_users(recording)
        ));
    }
    fixes
}

/// Returns a diagnosis with the call stacks that held memory.
fn with_holders(
    code: &'static str,
    what: String,
    evidence: Vec<String>,
    explained: &Explained,
    fixes: Vec<String>,
) -> Diagnosis {
    Diagnosis { code, what, evidence, holders: explained.holders.clone(), fixes }
}

/// Explains a request that would fail even if the allocator wasted no memory. `short` is the number of
/// missing bytes.
fn does_not_fit(
    recording: &Recording,
    explained: &Explained,
    wanted: u64,
    short: u64,
    mut evidence: Vec<String>,
) -> Diagnosis {
    let bytes = readable_bytes;
    if let Some(outside) =
        explained.outside_bytes.filter(|outside| *outside >= OF_CUDA.saturating_add(short.max(1)))
    {
        let reserved = explained.ledger.reserved_bytes.unwrap_or(0);
        let own = recording.own_bytes().map(|own| own.saturating_sub(reserved).min(outside));
        let is_own = own.is_some_and(|own| own > outside / 2);
        let outside = bytes(outside);
        evidence.push(format!("{outside} of the device's memory are used outside of the allocator"));
        evidence.extend(own.map(|own| format!("of these, this process uses {}", bytes(own))));
        evidence.extend(
            recording
                .other_processes()
                .map(|(process, used)| format!("of these, process {process} uses {}", bytes(used))),
        );
        let (users, fix) = match is_own {
            true => (
                "by other libraries of this process, or by the CUDA context",
                "see which library holds it: millpond-replay run --record log.csv -- PROGRAM",
            ),
            false => ("by another process, by libraries, or by the CUDA context", other_users(recording)),
        };
        let what = format!(
            "the request needed {} more, and {outside} were used outside of the allocator: {users}",
            bytes(short)
        );
        let fixes = vec![fix.to_owned()];
        return with_holders("outside", what, evidence, explained, fixes);
    }
    let left = explained.ledger.unused_bytes().saturating_add(explained.device_free_bytes.unwrap_or(0));
    let segment = match wanted <= left {
        true => format!(", which needs a segment of {}", bytes(from_the_driver(recording, wanted))),
        false => String::new(),
    };
    let grew = leak::growth(recording);
    let copying = grew.and_then(|_| Copying::of(recording));
    let growth = match &copying {
        Some(copying) => Some(copying.sentence()),
        None => grew.map(|(first, last)| leak::rise(first, last)),
    };
    let what = format!(
        "the program does not fit: with {} in use, {} were left in the allocator and on the device for a \
         request for {}{segment}: {} were missing{}",
        bytes(explained.ledger.active_bytes),
        bytes(left),
        size_of_request(recording, wanted),
        bytes(short),
        growth.map_or(String::new(), |growth| format!("; {growth}"))
    );
    let mut fixes = savings(recording, explained, grew.is_some());
    if let Some(copying) = copying {
        fixes.insert(0, copying.fix());
    }
    with_holders("does_not_fit", what, evidence, explained, fixes)
}

/// Describes the size of a failed request. A message of PyTorch shows the size of the segment that PyTorch
/// asked for, and the segments of small requests are much larger than the requests.
pub(super) fn size_of_request(recording: &Recording, wanted: u64) -> String {
    let is_of_segment = recording.detail_of(Recording::VERSION).is_some() && wanted <= LARGE_SEGMENT;
    format!("{}{}", if is_of_segment { "up to " } else { "" }, readable_bytes(wanted))
}

/// Describes a failed request.
fn request(recording: &Recording, explained: &Explained, wanted: u64) -> String {
    let request = format!("a request for {}", size_of_request(recording, wanted));
    match recording.has_sums_only() {
        true => request,
        false => format!("at event {}, {request}", explained.ledger.event + 1),
    }
}

/// Returns what a source without the allocator's reserved bytes shows about a failed request.
fn evidence_without_segments(recording: &Recording, explained: &Explained, wanted: u64) -> Vec<String> {
    let live = readable_bytes(explained.ledger.active_bytes);
    let were_live = match (recording.has_failures_only(), recording.has_sums_only()) {
        (true, _) => String::new(),
        (false, true) => format!("{live} were live; "),
        (false, false) => {
            format!("{live} were live in {}; ", number_of(explained.ledger.live_blocks, "block"))
        }
    };
    let reserved = match recording.pool_bytes() {
        Some(pool) => format!("the pool had {}", readable_bytes(pool)),
        None => "the file does not record how much the allocator reserved".to_owned(),
    };
    let failed = format!("{} failed; {were_live}{reserved}", request(recording, explained, wanted));
    let free = explained.device_free_bytes.map(|free| could_take(recording, free));
    [failed].into_iter().chain(free).collect()
}

/// Explains a failed request if the source does not record the allocator's reserved bytes.
fn without_segments(
    recording: &Recording,
    explained: &Explained,
    wanted: u64,
    device_bytes: Option<u64>,
) -> Diagnosis {
    let bytes = readable_bytes;
    let needed = explained.ledger.active_bytes.saturating_add(wanted);
    let is_live_known = !recording.has_failures_only();
    let evidence = evidence_without_segments(recording, explained, wanted);
    let try_stacks = |device_bytes: u64| match recording.require_blocks() {
        Ok(()) => format!(
            "find a stack that serves the request: millpond-replay {} --device sim:{}",
            file_word(recording.file()),
            option_bytes(device_bytes)
        ),
        Err(_) => other_users(recording).to_owned(),
    };
    // The size of the device has the same form in all sentences.
    let exact = |bytes: u64, other: u64| bytes_among(bytes, &[bytes, other]);
    let limit = recording.limit_bytes().filter(|limit| !is_live_known || needed > *limit);
    if is_live_known
        && limit.is_none()
        && device_bytes.is_none_or(|device| needed <= device)
        && let Some(found) = gaps::fragmentation(recording, explained, wanted, &evidence)
    {
        return found;
    }
    let (code, what, fix) = match (limit, device_bytes) {
        (Some(limit), _) => (
            "limit",
            format!("the allocator may take at most {} from the device", bytes(limit)),
            raise_limit(recording),
        ),
        (None, Some(device)) if needed > device => (
            "does_not_fit",
            format!(
                "the program does not fit: {} are needed, and the device has {}",
                exact(needed, device),
                exact(device, needed)
            ),
            match leak::growth(recording) {
                Some(_) => "live memory grows, so a smaller batch only delays the failure: keep less",
                None => "use less memory at once, for example with a smaller batch",
            }
            .to_owned(),
        ),
        (None, _) if !is_live_known => return by_its_text(recording, explained, evidence),
        (None, Some(device)) => (
            UNEXPLAINED,
            format!(
                "{} would have sufficed, and the device has {}: the allocator wasted the rest or was \
                 limited, or another process used it",
                exact(needed, device),
                exact(device, needed)
            ),
            try_stacks(device),
        ),
        (None, None) => (
            UNEXPLAINED,
            format!("{} were needed; the size of the device is not known", bytes(needed)),
            format!("give the size of the device, as in --device-memory 80GiB; and {}", try_stacks(80 << 30)),
        ),
    };
    with_holders(code, what, evidence, explained, vec![fix])
}

/// Explains a failed request by the cause that its text names.
fn by_its_text(recording: &Recording, explained: &Explained, evidence: Vec<String>) -> Diagnosis {
    let (code, what, fixes) = match recording.detail_of(Recording::CAUSE) {
        Some(Recording::POOL_LIMIT) => {
            ("limit", "the pool has reached its maximum size", vec![raise_limit(recording)])
        }
        Some(Recording::DEVICE_FULL) => {
            let less = "use less memory at once, for example with a smaller batch".to_owned();
            let fixes = vec![other_users(recording).to_owned(), less];
            ("does_not_fit", "the device is full: the driver had no memory for the request", fixes)
        }
        _ => (
            UNEXPLAINED,
            "the file does not record the live memory, so the cause is not known",
            vec!["if the pool has a maximum size, raise it".to_owned()],
        ),
    };
    with_holders(code, what.to_owned(), evidence, explained, fixes)
}

/// If `max_split_size` forbids the use of a free segment that would hold a request, returns `max_split_size`.
fn unsplit(recording: &Recording, explained: &Explained, moment: &Moment, wanted: u64) -> Option<u64> {
    let max_split = Settings::of(recording).ok()?.max_split;
    let failed = recording.event(explained.ledger.event as usize)?;
    let lane = recording.lane(failed);
    let forbids = |segment: &Segment| {
        segment.bytes >= wanted.max(max_split)
            && segment.lane.stream == lane.stream
            && !segment.lane.is_private()
    };
    (wanted < max_split && moment.wholly_free_segments().any(forbids)).then_some(max_split)
}

/// Explains a failed request for which `max_split_size` forbade the use of a free segment.
fn max_split_size(explained: &Explained, max_split: u64, evidence: Vec<String>) -> Diagnosis {
    let (largest, max_split) =
        (readable_bytes(explained.ledger.largest_free_bytes), readable_bytes(max_split));
    Diagnosis {
        code: "max_split_size",
        what: format!(
            "{largest} were free in one piece, but max_split_size forbids splitting pieces above {max_split}"
        ),
        evidence,
        holders: Vec::new(),
        fixes: vec!["omit max_split_size_mb from the allocator's settings, or raise it".to_owned()],
    }
}

/// Says how much memory an allocator could still take from the device.
fn could_take(recording: &Recording, free: u64) -> String {
    match recording.source().format == Source::BFC {
        true => format!("the allocator could take {} more until its limit", readable_bytes(free)),
        false => format!("the device had {} free", readable_bytes(free)),
    }
}

/// Returns how many bytes the allocator requests from the driver for a request. For PyTorch, it is a segment
/// of 2 MiB or 20 MiB, or the request's own size in pages of 2 MiB; the messages of PyTorch show this size.
fn from_the_driver(recording: &Recording, wanted: u64) -> u64 {
    let exact = [Source::PYTORCH_MESSAGE, Source::BFC, Source::MILLPOND];
    match wanted {
        _ if exact.contains(&recording.source().format.as_str()) => wanted,
        ..=MIB => 2 * MIB,
        _ if wanted < 10 * MIB => LARGE_SEGMENT,
        _ => wanted.checked_next_multiple_of(2 * MIB).unwrap_or(u64::MAX),
    }
}

/// Explains why a request failed although enough memory was free.
fn other_pool(
    recording: &Recording,
    explained: &Explained,
    moment: &Moment,
    wanted: u64,
    mut evidence: Vec<String>,
) -> Diagnosis {
    let ledger = &explained.ledger;
    let is_one_piece = wanted <= ledger.largest_free_bytes;
    if let Some(private) = Private::of(recording, moment, if is_one_piece { wanted } else { 1 }) {
        let takers = takers(recording, explained, moment);
        return private.diagnosis(recording, evidence, holders::by_stack(recording, &takers, HOLDERS));
    }
    evidence.extend(pools(moment, if is_one_piece { wanted } else { 1 }));
    let is_of_others = are_of_others(recording, explained, moment, if is_one_piece { wanted } else { 1 });
    let probably = if is_of_others { "" } else { "probably " };
    let largest = readable_bytes(ledger.largest_free_bytes);
    let what = if is_one_piece {
        format!(
            "{largest} were free in one piece, but that piece {probably}belongs to another pool or stream, \
             so this request could not use it"
        )
    } else {
        let free = readable_bytes(ledger.wholly_free_bytes);
        format!("{free} were free in whole segments, but they {probably}belong to other pools or streams")
    };
    let fixes = share_streams(recording);
    Diagnosis {
        code: "other_pool",
        what,
        evidence,
        holders: match takers(recording, explained, moment) {
            takers if takers.is_empty() => {
                holders::by_stack(recording, of_others(recording, explained, moment), HOLDERS)
            }
            takers => holders::by_stack(recording, &takers, HOLDERS),
        },
        fixes,
    }
}

/// Returns whether the file shows segments with at least `bytes` free bytes, and all of them belong to other
/// streams than the failed request, or to the pools of graphs.
fn are_of_others(recording: &Recording, explained: &Explained, moment: &Moment, bytes: u64) -> bool {
    let Some(failed) = recording.event(explained.ledger.event as usize) else { return false };
    let stream = recording.lane(failed).stream;
    let has_room = |segment: &&Segment| {
        segment.bytes.saturating_sub(sum_of(moment.blocks_in(segment))) >= bytes && bytes > 0
    };
    let mut free = moment.segments().iter().filter(has_room).peekable();
    free.peek().is_some() && free.all(|segment| segment.lane.stream != stream || segment.lane.is_private())
}

/// Returns the blocks of other streams in partly free segments. These blocks keep the free memory around them
/// for their stream.
fn of_others<'a>(recording: &Recording, explained: &Explained, moment: &'a Moment) -> Vec<&'a LiveBlock> {
    let stream = recording.event(explained.ledger.event as usize).map(|event| recording.lane(event).stream);
    pinning(moment).0.into_iter().filter(|block| Some(block.lane.stream) != stream).collect()
}

/// Explains a failed request for which the free memory would have sufficed if it had been in one piece.
fn fragmentation(
    recording: &Recording,
    explained: &Explained,
    moment: &Moment,
    mut evidence: Vec<String>,
) -> Diagnosis {
    let (mut blocks, segments) = pinning(moment);
    if recording.has_sums_only() {
        blocks.clear();
    } else {
        evidence.push(format!(
            "{} of {} together {} {} in {} from returning to the driver",
            number_of(blocks.len() as u64, "block"),
            readable_bytes(sum_of(&blocks)),
            if blocks.len() == 1 { "keeps" } else { "keep" },
            readable_bytes(explained.ledger.pinned_bytes),
            number_of(segments, "segment"),
        ));
    }
    let is_enough = explained.wanted_bytes.is_some_and(|wanted| wanted <= explained.ledger.unused_bytes());
    let unused = readable_bytes(explained.ledger.unused_bytes());
    let device = readable_bytes(explained.device_free_bytes.unwrap_or(0));
    Diagnosis {
        code: "fragmentation",
        what: match (recording.has_sums_only(), is_enough) {
            (true, true) => format!(
                "{unused} were free in the allocator, but not for this request: fragmentation, or memory of \
                 another stream"
            ),
            (false, true) => format!("{unused} were free, but in pieces that were too small: fragmentation"),
            // Neither of the two would have sufficed alone.
            (_, false) => format!(
                "{unused} in the allocator and {device} on the device were free, but in pieces that were too \
                 small: fragmentation"
            ),
        },
        evidence,
        holders: holders::by_stack(recording, blocks, HOLDERS),
        fixes: less_fragmentation(recording),
    }
}

/// Returns the free segments as blocks. Each one has the call stack of the request for which the allocator
/// reserved the segment.
fn takers(recording: &Recording, explained: &Explained, moment: &Moment) -> Vec<LiveBlock> {
    let mut free: HashMap<u64, &Segment> =
        moment.wholly_free_segments().map(|segment| (segment.address, segment)).collect();
    let takes = |kind| matches!(kind, EventKind::SegmentAllocate | EventKind::SegmentMap);
    let mut takers = Vec::new();
    for at in (0..explained.ledger.event as usize).rev() {
        if free.is_empty() {
            break;
        }
        let Some(event) = recording.event(at).filter(|event| takes(event.kind)) else { continue };
        if let Some(segment) = free.remove(&event.address) {
            let Segment { address, bytes, lane, .. } = *segment;
            let stack = event.stack;
            takers.push(LiveBlock {
                address,
                bytes,
                rounded_bytes: bytes,
                is_held: false,
                stack,
                event: at,
                lane,
            });
        }
    }
    takers
}

/// Lists free memory that would have sufficed, by pool and stream.
fn pools(moment: &Moment, wanted: u64) -> Vec<String> {
    let mut lines: Vec<String> = moment
        .wholly_free_segments()
        .filter(|segment| segment.bytes >= wanted)
        .map(|segment| {
            let lane = segment.lane;
            let pool = lane.pool.map_or("?".to_owned(), |(first, second)| format!("({first}, {second})"));
            let bytes = readable_bytes(segment.bytes);
            format!("a free segment of {bytes} belongs to pool {pool}, stream {}", lane.stream)
        })
        .collect();
    lines.dedup();
    lines.truncate(HOLDERS);
    lines
}

/// Returns the sum of the blocks' bytes. A sum that overflows becomes the largest number, because a file may
/// contain any numbers.
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
    // A block may extend from one mapped range into the next.
    pinning.dedup_by_key(|block| block.address);
    (pinning, segments)
}
