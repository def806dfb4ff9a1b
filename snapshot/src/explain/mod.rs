//! Explains where the memory of a recorded program is: at its peak, at each failed request, and at its end.
//!
//! For each of these moments, an [`Explanation`] has a [`Ledger`](crate::recording::Ledger) and the stacks
//! that hold the most memory. It also has the [`Diagnosis`]es that the evidence supports, each with lines
//! that help, and the gaps of the recording.

mod diagnoses;
mod explanation;
mod failure;
mod holders;
mod leak;
mod settings;
mod text;
mod verdict;

use crate::placement;
use crate::record::Framework;
use crate::recording::{Event, EventKind, Recording};

pub use explanation::{Diagnosis, Explained, Explanation, Occasion, Verdict};
pub use holders::{Holder, HolderFrame};
pub use text::{Style, print};

use holders::HOLDERS;
use verdict::Case;

/// How many failed requests are explained at most: the first ones and the last one.
const MAX_FAILURES: usize = 10;

/// Explains a recording. `device_bytes` is the size of the device, if it is known; otherwise the recording's
/// own is used, if its source has it.
pub fn explain(recording: &Recording, device_bytes: Option<u64>) -> Explanation {
    let device_bytes = device_bytes.or_else(|| recording.device_bytes());
    let sums = recording.sums();
    let failures = failures(recording);
    let mut moments: Vec<Explained> = Vec::new();
    let mut found: Vec<Diagnosis> = Vec::new();
    // Otherwise the file has the memory at the failed requests only.
    let has_all = failures.is_empty() || !recording.lacks("no_trace");
    // Only one moment is in memory at a time, because it has all live blocks.
    let mut add = |occasion, number: usize, wanted: Option<u64>| {
        let moment = recording.moment(number);
        let ledger = moment.ledger();
        let next = recording.event(number + 1).filter(|_| wanted.is_some());
        let free = next.filter(|event| event.kind == EventKind::DeviceFree).map(|event| event.bytes);
        let known = device_bytes.zip(free).zip(ledger.reserved_bytes);
        let explained = Explained {
            occasion,
            ledger,
            wanted_bytes: wanted,
            wanted_by: wanted.and_then(|_| asker(recording, number)),
            device_free_bytes: free,
            outside_bytes: known
                .map(|((total, free), reserved)| total.saturating_sub(free).saturating_sub(reserved)),
            holders: match recording.has_sums_only() {
                true => Vec::new(),
                false => holders::by_stack(recording, moment.blocks(), HOLDERS),
            },
        };
        found.extend(diagnoses::of_moment(recording, &explained, &moment, device_bytes));
        moments.push(explained);
    };
    if has_all {
        add(Occasion::Peak, sums.peak_event as usize, None);
    }
    for (number, event) in failures {
        add(Occasion::Failure, number, Some(event.bytes));
    }
    if has_all {
        add(Occasion::End, recording.len().saturating_sub(1), None);
    }
    let mut diagnoses = diagnoses::all(recording, &sums, &moments, found);
    diagnoses.extend(settings::without_effect(recording));
    let bounds = placement::bounds(recording);
    let verdict = Case {
        recording,
        sums: &sums,
        moments: &moments,
        diagnoses: &diagnoses,
        failure: last_failure(&moments, &diagnoses),
        device_bytes,
        largest: verdict::largest_request(recording),
    };
    Explanation {
        version: 1,
        file: recording.file().to_owned(),
        verdict: verdict.verdict(),
        source: recording.source().clone(),
        device: recording.device(),
        is_simulated: recording.is_simulated(),
        sums,
        bound_host_order: bounds.map(|bounds| bounds.host_order),
        bound_stream_safe: bounds.map(|bounds| bounds.stream_safe),
        state_check: recording.check().cloned(),
        moments,
        diagnoses,
        not_known: recording.unknowns().to_vec(),
        lines_to_record: Framework::to_record_again(recording).map(Framework::lines),
    }
}

/// Returns the user's line that made the request with this number.
fn asker(recording: &Recording, number: usize) -> Option<String> {
    let stack = recording.event(number)?.stack?;
    Some(recording.user_stack(stack).lead(recording.user_folder()))
}

/// Returns the failed requests to explain.
fn failures(recording: &Recording) -> Vec<(usize, &Event)> {
    let failed = |(_, event): &(usize, &Event)| event.kind == EventKind::AllocateFailure;
    let mut failures: Vec<(usize, &Event)> = Vec::new();
    for failure in recording.events().enumerate().filter(failed) {
        failures.truncate(MAX_FAILURES - 1);
        failures.push(failure);
    }
    failures
}

/// Returns the last failed request and its diagnosis. Each failed request has one diagnosis, and they come
/// first.
fn last_failure<'a>(
    moments: &'a [Explained],
    diagnoses: &'a [Diagnosis],
) -> Option<(&'a Explained, &'a Diagnosis)> {
    let failed: Vec<&Explained> =
        moments.iter().filter(|moment| moment.occasion == Occasion::Failure).collect();
    Some((*failed.last()?, diagnoses.get(failed.len() - 1)?))
}
