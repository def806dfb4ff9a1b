//! The verdict on a recording: one code and one sentence. One table holds all verdicts.

use millpond_core::format_bytes;
use millpond_engine::text::{number_of, readable_bytes};

use super::explanation::{Diagnosis, Explained, Occasion, Verdict};
use super::failure::{BEYOND_ANY_DEVICE, size_of_request};
use super::{leak, pinned};
use crate::recording::{EventKind, Ledger, OVERLAPS, Recording, Source, Sums};

/// Free memory of an allocator is a problem if it makes up at least this share of its reserved bytes.
const MUCH_UNUSED: f64 = 0.2;

/// If fewer bytes than this are unused, the share is ignored: the segments of a small program explain them.
const LEAST_UNUSED: u64 = 64 << 20;

/// The facts that decide the verdict.
#[derive(Clone, Default, Debug)]
struct Facts {
    /// The code of the diagnosis of the last failed request.
    failure: Option<&'static str>,
    /// A request is larger than every device, or than the given device.
    is_beyond_device: bool,
    /// The file contradicts itself.
    contradicts: bool,
    /// Live memory grew in each part of the recording.
    leaks: bool,
    /// Live blocks pin much free memory, or much more memory was reserved than used.
    is_fragmented: bool,
    /// At the peak, many reserved bytes are in segments without blocks.
    is_idle: bool,
    /// Much freed memory waits for other streams.
    is_held: bool,
    /// Rounding wastes much memory.
    is_rounded: bool,
    /// A part of the history is missing.
    is_history_missing: bool,
    /// The file records no memory use that could be judged.
    is_too_little: bool,
    /// Some settings have no effect.
    has_idle_settings: bool,
}

/// Returns whether unused bytes are a problem.
fn is_much(unused: u64, sums: &Sums) -> bool {
    unused >= LEAST_UNUSED && unused as f64 >= MUCH_UNUSED * sums.peak_reserved_bytes.unwrap_or(0) as f64
}

/// A row of the table: the code of a verdict, and the condition.
type Row = (&'static str, fn(&Facts) -> bool);

/// The table. The first row whose condition holds gives the verdict.
const ROWS: [Row; 22] = [
    ("oom_beyond_device", |facts| facts.failure.is_some() && facts.is_beyond_device),
    ("oom_fragmentation", |facts| facts.failure == Some("fragmentation")),
    ("oom_max_split_size", |facts| facts.failure == Some("max_split_size")),
    ("oom_other_pool", |facts| facts.failure == Some("other_pool")),
    ("oom_limit", |facts| facts.failure == Some("limit")),
    ("oom_pinned_memory", |facts| facts.failure == Some(pinned::CODE)),
    ("oom_leak", |facts| facts.failure.is_some() && facts.leaks),
    ("oom_outside", |facts| facts.failure == Some("outside")),
    ("oom_rounding", |facts| facts.failure == Some("lost_to_rounding")),
    ("oom_does_not_fit", |facts| facts.failure == Some("does_not_fit")),
    ("oom_unexplained", |facts| facts.failure.is_some()),
    ("contradiction", |facts| facts.contradicts),
    ("beyond_device", |facts| facts.is_beyond_device),
    ("too_little_recorded", |facts| facts.is_too_little),
    ("leak", |facts| facts.leaks),
    ("fragmented", |facts| facts.is_fragmented),
    ("idle", |facts| facts.is_idle),
    ("held_by_streams", |facts| facts.is_held),
    ("rounding", |facts| facts.is_rounded),
    ("history_missing", |facts| facts.is_history_missing),
    ("settings_without_effect", |facts| facts.has_idle_settings),
    ("no_problem", |_| true),
];

impl Facts {
    fn of(case: &Case<'_>) -> Self {
        let Case { recording, sums, diagnoses, .. } = case;
        let has = |code: &str| diagnoses.iter().any(|diagnosis| diagnosis.code == code);
        let lacks = |codes: &[&str]| {
            recording.unknowns().iter().any(|unknown| codes.contains(&unknown.code.as_str()))
        };
        let unused = case.unused();
        let is_pinned = unused.is_some_and(|(pinned, _)| is_much(pinned, sums));
        let is_idle = unused.is_some_and(|(_, idle)| is_much(idle, sums));
        Self {
            failure: case.failure.map(|(_, diagnosis)| diagnosis.code),
            is_beyond_device: case.largest > case.device_bytes.unwrap_or(BEYOND_ANY_DEVICE),
            contradicts: case.contradiction().is_some(),
            leaks: has("leak"),
            is_fragmented: is_pinned || (has("reserved_beyond_need") && !is_idle),
            is_idle,
            is_held: has("held_by_streams"),
            is_rounded: has("rounding"),
            is_too_little: sums.allocations + sums.blocks_before == 0 || lacks(&["no_sizes", "no_trace"]),
            is_history_missing: recording.begins_late() || lacks(&["no_frees", "rest_missing"]),
            has_idle_settings: has("settings_without_effect"),
        }
    }

    fn code(&self) -> &'static str {
        ROWS.iter().find(|(_, holds)| holds(self)).map_or("no_problem", |(code, _)| code)
    }
}

/// The parts of an explanation that the sentences quote.
pub(super) struct Case<'a> {
    pub(super) recording: &'a Recording,
    pub(super) sums: &'a Sums,
    pub(super) moments: &'a [Explained],
    pub(super) diagnoses: &'a [Diagnosis],
    /// The last failed request, and why it failed.
    pub(super) failure: Option<(&'a Explained, &'a Diagnosis)>,
    pub(super) device_bytes: Option<u64>,
    /// The size of the largest request, in bytes.
    pub(super) largest: u64,
}

/// Returns the size of the largest request of a recording, in bytes. Failed requests count, too.
pub(super) fn largest_request(recording: &Recording) -> u64 {
    let is_request = |kind| matches!(kind, EventKind::Allocate | EventKind::AllocateFailure);
    let requests = recording.events().filter(|event| is_request(event.kind));
    requests.map(|event| event.bytes).max().unwrap_or(0)
}

impl Case<'_> {
    /// Returns the verdict.
    pub(super) fn verdict(&self) -> Verdict {
        let code = Facts::of(self).code();
        let sentence = match (code, self.failure) {
            (code, Some((moment, diagnosis))) if code.starts_with("oom_") => {
                self.out_of_memory(code, moment, diagnosis)
            }
            _ => self.sentence(code),
        };
        Verdict { code, sentence }
    }

    /// Returns the free bytes at the peak that live blocks pin, and the free bytes in segments without
    /// blocks.
    fn unused(&self) -> Option<(u64, u64)> {
        let ledger = &self.peak()?.ledger;
        ledger.reserved_bytes.map(|_| (ledger.pinned_bytes, ledger.wholly_free_bytes))
    }

    fn peak(&self) -> Option<&Explained> {
        self.moments.iter().find(|moment| moment.occasion == Occasion::Peak)
    }

    /// Returns the first contradiction of the file.
    pub(super) fn contradiction(&self) -> Option<String> {
        let check = self.recording.check().filter(|check| !check.is_equal());
        let unequal = check.map(|check| {
            let why = check.first.as_deref().unwrap_or("counts differ");
            format!("the events contradict the memory state in the file ({why})")
        });
        let mut doubts = self.recording.doubts();
        let code =
            |code: &str| ["duplicate_allocations", "repeated_frees", "size_mismatches"].contains(&code);
        unequal.or_else(|| doubts.find(|doubt| code(&doubt.code)).map(|doubt| doubt.text.clone()))
    }

    fn text_of(&self, code: &str) -> String {
        let found = self.diagnoses.iter().find(|diagnosis| diagnosis.code == code);
        found.map_or(String::new(), |diagnosis| diagnosis.what.clone())
    }

    fn out_of_memory(&self, code: &str, moment: &Explained, diagnosis: &Diagnosis) -> String {
        let ledger = &moment.ledger;
        let wanted = size_of_request(self.recording, moment.wanted_bytes.unwrap_or(0));
        let asker = moment.wanted_by.as_ref().map_or(String::new(), |line| format!(" by {line}"));
        if code == "oom_pinned_memory" {
            let what = "page-locked (pinned) memory of the host, not of the GPU";
            return format!("out of memory: a request{asker} for {what}, failed");
        }
        let why = match code {
            "oom_beyond_device" => match self.device_bytes {
                Some(device) => format!("the device has only {} in all", format_bytes(device)),
                None => "no device has so much memory".to_owned(),
            },
            "oom_fragmentation" => {
                let free = |reserved| percent(ledger.unused_bytes(), reserved);
                let free = ledger.reserved_bytes.map(free);
                let free = free.map(|free| format!(" ({free} of the reserved bytes were free)"));
                format!("{}{}", diagnosis.what, free.unwrap_or_default())
            }
            _ => diagnosis.what.clone(),
        };
        // Whatever the cause, the next failure comes from the leak.
        let leak = self.text_of("leak");
        let why = if leak.is_empty() || code == "oom_beyond_device" { why } else { with_leak(&why, &leak) };
        let (has_sums_only, has_failures_only) =
            (self.recording.has_sums_only(), self.recording.has_failures_only());
        // A file without a trace has the whole memory at the failed request.
        let is_partial = self.recording.begins_late() && !self.recording.lacks("no_trace");
        let overlaps = self.recording.unknowns().iter().find(|unknown| unknown.code == OVERLAPS);
        let doubt = match (self.contradiction(), is_partial, overlaps) {
            (Some(_), ..) => "; the file contradicts itself, so these figures may be wrong".to_owned(),
            (None, true, _) => "; the file begins late, so the real figures may be higher".to_owned(),
            (None, false, Some(overlaps)) => format!("; {}", overlaps.text),
            (None, false, None) => String::new(),
        };
        let at = match has_sums_only {
            true => String::new(),
            false => format!(" at event {}", ledger.event + 1),
        };
        let live = match has_failures_only {
            true => String::new(),
            false => format!(" with {} live", live(ledger)),
        };
        format!("out of memory: a request for {wanted}{asker} failed{at}{live}: {why}{doubt}")
    }

    fn sentence(&self, code: &str) -> String {
        let bytes = readable_bytes;
        let sums = self.sums;
        let reserved = sums.peak_reserved_bytes.unwrap_or(0);
        let (pinned, idle) = self.unused().unwrap_or((0, 0));
        match code {
            "contradiction" => {
                format!("the file contradicts itself: {}", self.contradiction().unwrap_or_default())
            }
            "beyond_device" => format!(
                "a request for {} is larger than {}; check the code that computes this size",
                bytes(self.largest),
                self.device_bytes
                    .map_or("any device".to_owned(), |size| format!("the device, {}", format_bytes(size)))
            ),
            "leak" | "held_by_streams" | "rounding" | "settings_without_effect" => self.text_of(code),
            "fragmented" => {
                let active = self.peak().map_or(0, |peak| peak.ledger.active_bytes);
                let is_pinned = self.recording.begins_late() || is_much(pinned, sums);
                let (how, unused, what) = match is_pinned {
                    true => ("fragmented", pinned, "were free at the peak, but between live blocks"),
                    false => {
                        let beyond = reserved.saturating_sub(active);
                        ("more reserved than needed", beyond, "were more than was in use at the peak")
                    }
                };
                format!(
                    "{how}, without a failure: {} of {} reserved ({}) {what}",
                    bytes(unused),
                    bytes(reserved),
                    percent(unused, reserved)
                )
            }
            "idle" => format!(
                "the allocator held memory that nothing used: {} of {} reserved ({}) were in segments \
                 without blocks at the peak",
                bytes(idle),
                bytes(reserved),
                percent(idle, reserved)
            ),
            "too_little_recorded" => self.too_little(),
            "history_missing" => {
                let doubts: Vec<&str> = self.gaps().collect();
                format!(
                    "a part of the history is missing, so the file may hide problems: {}; in the rest, {} \
                     were live at most, and no request failed",
                    doubts.join("; "),
                    bytes(sums.peak_live_bytes)
                )
            }
            _ => self.no_problem(),
        }
    }

    fn gaps(&self) -> impl Iterator<Item = &str> {
        let missing = |code: &str| ["no_frees", "no_sizes"].contains(&code);
        let others = self.recording.unknowns().iter().filter(move |unknown| missing(&unknown.code));
        // What happened on another device hides nothing of this one.
        let doubts = self.recording.doubts().filter(|unknown| unknown.code != "other_device");
        doubts.chain(others).map(|unknown| unknown.text.as_str())
    }

    fn too_little(&self) -> String {
        let mut why: Vec<&str> = self.gaps().collect();
        if why.is_empty() {
            why.push("the file has no allocation; record from the program's start to its end");
        }
        format!("too little was recorded for a verdict: {}", why.join("; "))
    }

    fn no_problem(&self) -> String {
        let sums = self.sums;
        let live = readable_bytes(sums.peak_live_bytes);
        let active = self.peak().map_or(0, |peak| peak.ledger.active_bytes);
        let reserved = match sums.peak_reserved_bytes {
            Some(reserved) => format!(
                "and {} reserved, {} of it in use at the peak",
                readable_bytes(reserved),
                percent(active.min(reserved), reserved)
            ),
            None => "; how much the allocator reserved is not recorded".to_owned(),
        };
        let space = if reserved.starts_with(';') { "" } else { " " };
        let allocations = number_of(sums.allocations, "allocation");
        let figures =
            format!("{allocations} and no failed request; at most {live} were live{space}{reserved}");
        // These files have the memory of PyTorch's allocator for the device only.
        let format = self.recording.source().format.as_str();
        if ![Source::PYTORCH, Source::PYTORCH_TRACE].contains(&format) {
            return format!("no problem: {figures}");
        }
        format!(
            "no problem of device memory: {figures}. The file does not tell about memory of the host: if the \
             program failed, give `explain` its error text"
        )
    }
}

/// Returns the bytes of the live blocks, as the allocator counts them, and as the program requested them.
fn live(ledger: &Ledger) -> String {
    let (active, requested) = (readable_bytes(ledger.active_bytes), readable_bytes(ledger.requested_bytes));
    match active == requested || !ledger.has_rounding() {
        true => requested,
        false => format!("{active} ({requested} requested)"),
    }
}

/// Joins the cause of a failed request and a possible leak. The cause may end with the evidence of the leak.
fn with_leak(cause: &str, leak: &str) -> String {
    let evidence = leak.trim_end_matches(leak::POSSIBLY);
    match cause.strip_suffix(evidence) {
        Some(cause) => format!("{cause}{leak}"),
        None => format!("{cause}; {leak}"),
    }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", 100.0 * part as f64 / whole.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILURES: [Option<&str>; 10] = [
        None,
        Some("fragmentation"),
        Some("max_split_size"),
        Some("other_pool"),
        Some("limit"),
        Some("pinned_memory"),
        Some("outside"),
        Some("lost_to_rounding"),
        Some("does_not_fit"),
        Some("unexplained"),
    ];

    /// The facts that are true or false, by the bits of a number.
    fn facts(failure: Option<&'static str>, bits: u32) -> Facts {
        let bit = |number: u32| bits & 1 << number != 0;
        Facts {
            failure,
            is_beyond_device: bit(0),
            contradicts: bit(1),
            leaks: bit(2),
            is_fragmented: bit(3),
            is_idle: bit(4),
            is_held: bit(5),
            is_rounded: bit(6),
            is_history_missing: bit(7),
            is_too_little: bit(8),
            has_idle_settings: bit(9),
        }
    }

    #[test]
    fn every_combination_of_facts_has_exactly_one_verdict() {
        let mut given: Vec<&str> = Vec::new();
        for failure in FAILURES {
            for bits in 0..1 << 10 {
                let code = facts(failure, bits).code();
                assert_eq!(ROWS.iter().filter(|(known, _)| *known == code).count(), 1, "{code}");
                assert_eq!(code == "no_problem", failure.is_none() && bits == 0, "{failure:?} {bits:#b}");
                assert_eq!(code.starts_with("oom_"), failure.is_some(), "{failure:?} {bits:#b}");
                given.push(code);
            }
        }
        assert!(ROWS.iter().all(|(code, _)| given.contains(code)), "each row is reached");
    }

    #[test]
    fn each_row_decides_alone() {
        let cases: [(Option<&str>, u32, &str); 22] = [
            (Some("does_not_fit"), 1, "oom_beyond_device"),
            (Some("fragmentation"), 0b110, "oom_fragmentation"),
            (Some("max_split_size"), 0, "oom_max_split_size"),
            (Some("other_pool"), 0, "oom_other_pool"),
            (Some("limit"), 0, "oom_limit"),
            (Some("pinned_memory"), 0, "oom_pinned_memory"),
            (Some("does_not_fit"), 0b100, "oom_leak"),
            (Some("outside"), 0, "oom_outside"),
            (Some("lost_to_rounding"), 0b10, "oom_rounding"),
            (Some("does_not_fit"), 0b10, "oom_does_not_fit"),
            (Some("unexplained"), 0, "oom_unexplained"),
            (None, 0b110, "contradiction"),
            (None, 0b101, "beyond_device"),
            (None, 1 << 8 | 0b100, "too_little_recorded"),
            (None, 0b1100, "leak"),
            (None, 1 << 3 | 1 << 7, "fragmented"),
            (None, 1 << 4, "idle"),
            (None, 1 << 5, "held_by_streams"),
            (None, 1 << 6, "rounding"),
            (None, 1 << 7 | 1 << 9, "history_missing"),
            (None, 1 << 9, "settings_without_effect"),
            (None, 0, "no_problem"),
        ];
        for ((failure, bits, code), (row, _)) in cases.into_iter().zip(ROWS) {
            assert_eq!((facts(failure, bits).code(), row), (code, code));
        }
    }
}
