//! Finds problems with the memory of a program. Each problem comes with its evidence, and with lines that
//! help.

use std::collections::HashMap;

use millpond_engine::text::{number_of, readable_bytes, three_digits};

use super::explanation::{Diagnosis, Explained, Occasion};
use super::failure;
use super::fixes::{free_earlier, less_fragmentation, less_rounding};
use super::holders::{self, HOLDERS};
use super::leak;
use super::pinned;
use super::private;
use crate::recording::{EventKind, Id, Moment, Recording, Sums};

const MIB: u64 = 1 << 20;

/// The code of the diagnosis that reports rounding at the peak.
const ROUNDING: &str = "rounding";

/// Rounding is reported if it makes up at least this share of the active bytes.
const MUCH_ROUNDING: f64 = 0.05;

/// Held blocks are reported if they make up at least this share of the active bytes.
const MUCH_HELD: f64 = 0.05;

/// Growth is reported if the reserved bytes are at least this multiple of the active bytes.
const MUCH_RESERVED: f64 = 1.2;

/// If fewer bytes than this are reserved but not active, growth is not reported: the segments of a small
/// program explain them.
const LEAST_BEYOND: u64 = 64 * MIB;

/// Finds the problem at one moment: the reason why a request failed, or much rounding at the peak.
pub(super) fn of_moment(
    recording: &Recording,
    explained: &Explained,
    moment: &Moment,
    device_bytes: Option<u64>,
) -> Option<Diagnosis> {
    match explained.occasion {
        Occasion::Failure if recording.asked_for_pinned_memory() => Some(pinned::diagnosis()),
        Occasion::Failure => failure::explained(recording, explained, moment, device_bytes),
        Occasion::Peak => rounding(recording, explained, moment),
        Occasion::End => None,
    }
}

/// Returns all diagnoses, the failed requests first. `found` contains the diagnoses of the moments.
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
    diagnoses.extend(leak::found(recording));
    diagnoses
}

/// Finds reserved memory that is far more than the program's active memory ever was.
fn growth(recording: &Recording, sums: &Sums, peak: &Explained) -> Option<Diagnosis> {
    // If the beginning of the history is missing, the peak may have been before it.
    if recording.begins_late() {
        return None;
    }
    let (reserved, active) = (sums.peak_reserved_bytes?, peak.ledger.active_bytes);
    // Graphs keep the memory of their pools, whatever the settings are.
    let private = match recording.has_private_pools() {
        true => private::free_bytes(&recording.moment(peak.ledger.event as usize)),
        false => 0,
    };
    let needed = active.saturating_add(private);
    let beyond = reserved.saturating_sub(needed);
    if (reserved as f64) < MUCH_RESERVED * needed as f64 || active == 0 || beyond < LEAST_BEYOND {
        return None;
    }
    let mut sizes: Vec<u64> = Vec::new();
    for event in recording.events().filter(|event| event.kind == EventKind::Allocate) {
        sizes.push(event.bytes);
    }
    sizes.sort_unstable();
    let allocations = sizes.len();
    sizes.dedup();
    let evidence = vec![
        format!(
            "at most {} were reserved, and {} were active at the peak of live memory: the ratio is {}",
            readable_bytes(reserved),
            readable_bytes(active),
            three_digits(reserved as f64 / active as f64)
        ),
        format!(
            "{} of {}",
            number_of(allocations as u64, "allocation"),
            number_of(sizes.len() as u64, "different size")
        ),
    ];
    let fixes = less_fragmentation(recording);
    Some(Diagnosis {
        code: "reserved_beyond_need",
        what: "the allocator reserved much more than was active at the peak".to_owned(),
        evidence,
        holders: Vec::new(),
        fixes,
    })
}

/// Finds blocks that wait for other streams, at the moment with the most such memory.
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
        what: format!("up to {} of freed memory waited for other streams", readable_bytes(most)),
        evidence: vec![
            format!("{} waited; the most at event {}", number_of(sums.held_blocks, "free"), most_at + 1),
            format!(
                "together they held {} GiB-seconds of memory",
                three_digits(byte_seconds / f64::from(1 << 30))
            ),
        ],
        holders: holders::by_stack(recording, waiting, HOLDERS),
        fixes: free_earlier(recording),
    })
}

/// Finds rounding that wastes much memory at the peak.
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
            "{} were requested, but {} were allocated",
            readable_bytes(ledger.requested_bytes),
            readable_bytes(ledger.active_bytes)
        )],
        holders: holders::by_stack(recording, rounded, HOLDERS),
        fixes: less_rounding(recording),
    })
}
