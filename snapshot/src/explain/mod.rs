//! Explains what uses the memory of a recorded program: at its peak, at each failed request, and at its end.
//!
//! An [`Explanation`] describes each of these moments by a [`Ledger`](crate::recording::Ledger), and by the
//! call stacks whose blocks hold the most memory. It also contains the problems that the recording shows
//! evidence of ([`Diagnosis`]), each with changes that help. At the end, it lists the data that the recording
//! lacks.

mod device;
mod diagnoses;
mod explanation;
mod failure;
mod fixes;
mod gaps;
mod holders;
mod leak;
mod pinned;
mod private;
mod settings;
mod text;
mod verdict;

use std::thread;

use crate::placement;
use crate::record::Framework;
use crate::recording::{Event, EventKind, Recording, Walk};

pub use explanation::{Diagnosis, Explained, Explanation, Occasion, Verdict};
pub use holders::{Holder, HolderFrame};
pub use text::{Style, print};

use holders::HOLDERS;
use verdict::Case;

/// The most failed requests that are explained: the first ones and the last one.
const MAX_FAILURES: usize = 10;

/// Explains a recording. `device_bytes` is the size of the device, for a recording that does not contain this
/// size. [`Explanation::check_device_bytes`] checks whether the size is possible.
pub fn explain(recording: &Recording, device_bytes: Option<u64>) -> Explanation {
    let device_bytes = recording.device_bytes().or(device_bytes);
    // Large recordings have millions of blocks, so two threads share the work.
    let (sums, bounds) = beside(|| recording.sums(), &|| placement::bounds(recording));
    let mut occasions: Vec<(Occasion, usize, Option<u64>)> = failures(recording)
        .into_iter()
        .map(|(number, event)| (Occasion::Failure, number, Some(event.bytes)))
        .collect();
    // If the file has no trace, it has the memory at the failed requests only.
    if occasions.is_empty() || !recording.lacks("no_trace") {
        occasions.insert(0, (Occasion::Peak, sums.peak_event as usize, None));
        occasions.push((Occasion::End, recording.len().saturating_sub(1), None));
    }
    let (moments, found) = explained(recording, &occasions, device_bytes);
    let mut diagnoses = diagnoses::all(recording, &sums, &moments, found);
    diagnoses.extend(settings::without_effect(recording));
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
        version: 3,
        file: recording.file().to_owned(),
        contradicts_itself: verdict.contradiction().is_some(),
        recorded_device_bytes: recording.device_bytes(),
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

/// Explains these moments, and finds the problem at each of them.
fn explained(
    recording: &Recording,
    occasions: &[(Occasion, usize, Option<u64>)],
    device_bytes: Option<u64>,
) -> (Vec<Explained>, Vec<Diagnosis>) {
    // Only one moment at a time is in memory, because a moment contains all live blocks.
    let mut walk = Walk::new(recording);
    let mut ordered: Vec<usize> = (0..occasions.len()).collect();
    ordered.sort_by_key(|&at| occasions[at].1);
    let mut found: Vec<(usize, Explained, Option<Diagnosis>)> = Vec::new();
    for at in ordered {
        let (occasion, number, wanted) = occasions[at];
        walk.go_to(number);
        let moment = walk.moment();
        let ledger = moment.ledger().as_recorded(recording);
        let free = wanted.and_then(|_| recording.device_free_bytes(number));
        let known = device_bytes.zip(free).zip(ledger.reserved_bytes);
        let explained = Explained {
            occasion,
            ledger,
            wanted_bytes: wanted.filter(|_| !recording.asked_for_pinned_memory()),
            wanted_by: wanted.and_then(|_| asker(recording, number)),
            device_free_bytes: free,
            outside_bytes: known
                .map(|((total, free), reserved)| total.saturating_sub(free).saturating_sub(reserved)),
            holders: match recording.has_sums_only() {
                true => Vec::new(),
                false => holders::by_stack(recording, moment.blocks(), HOLDERS),
            },
        };
        let diagnosis = diagnoses::of_moment(recording, &explained, &moment, device_bytes);
        found.push((at, explained, diagnosis));
    }
    found.sort_by_key(|&(at, ..)| at);
    let (moments, diagnoses): (Vec<_>, Vec<_>) =
        found.into_iter().map(|(_, explained, diagnosis)| (explained, diagnosis)).unzip();
    (moments, diagnoses.into_iter().flatten().collect())
}

/// Returns the results of two functions. If a thread can be started, it runs the second function.
fn beside<A, B: Send>(first: impl FnOnce() -> A, second: &(impl Fn() -> B + Sync)) -> (A, B) {
    thread::scope(|scope| {
        let other = thread::Builder::new().spawn_scoped(scope, second);
        let first = first();
        let other = other.ok().and_then(|other| other.join().ok());
        (first, other.unwrap_or_else(second))
    })
}

/// Returns the user's code line that made the request with this number, and the function that it called.
fn asker(recording: &Recording, number: usize) -> Option<String> {
    let stack = recording.event(number)?.stack?;
    Some(recording.user_stack(stack).lead_and_called(recording.user_folder()))
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

/// Returns the last failed request and its diagnosis. Each failed request has one diagnosis, and these
/// diagnoses come first.
fn last_failure<'a>(
    moments: &'a [Explained],
    diagnoses: &'a [Diagnosis],
) -> Option<(&'a Explained, &'a Diagnosis)> {
    let failed: Vec<&Explained> =
        moments.iter().filter(|moment| moment.occasion == Occasion::Failure).collect();
    Some((*failed.last()?, diagnoses.get(failed.len() - 1)?))
}
