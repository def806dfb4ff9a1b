//! Lower bounds for the blocks of a recording.

use std::fmt;

use foldhash::HashMap;
use millpond_core::ALLOCATION_ALIGNMENT;
use millpond_engine::text::readable_among;
use millpond_planning::ProblemError;

use crate::recording::{EventKind, Recording};

/// Lower bounds: the least memory that any allocator needs for the blocks of a recording, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Bounds {
    /// The lower bound if streams share addresses in the order of the host's calls.
    pub host_order: u64,
    /// The lower bound if streams never share addresses.
    pub stream_safe: u64,
}

impl Bounds {
    /// Returns the bounds as a text, with each size as `size` formats it.
    pub(crate) fn text(&self, size: impl Fn(u64) -> String) -> String {
        let [host_order, apart] = [self.host_order, self.stream_safe].map(size);
        match self.host_order == self.stream_safe {
            true => apart,
            false => format!(
                "{apart} if streams share no memory, {host_order} if they share it in the order of the \
                 host's calls"
            ),
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = [self.host_order, self.stream_safe];
        f.write_str(&self.text(|bytes| readable_among(bytes, &both)))
    }
}

/// Returns the bounds with CUDA's alignment; `None` if the sum of all sizes needs more than 64 bits.
pub fn bounds(recording: &Recording) -> Option<Bounds> {
    let bounds = bounds_of(recording, ALLOCATION_ALIGNMENT).ok()?;
    // A graph uses its memory again at each replay, so no order of the host's calls lets others share it.
    let host_order = if recording.has_private_pools() { bounds.stream_safe } else { bounds.host_order };
    Some(Bounds { host_order, ..bounds })
}

/// The bytes that are live now, and the most bytes that were live so far.
#[derive(Clone, Copy, Default)]
struct Load {
    live: u64,
    most: u64,
}

impl Load {
    fn add(&mut self, bytes: u64) {
        self.live += bytes;
        self.most = self.most.max(self.live);
    }
}

/// Computes the bounds in one pass. Makes no problem for the planner. The results equal
/// [`millpond_planning::bounds`] without orders between streams. They are the peak of all live memory, and
/// the sum of the peaks of the streams.
///
/// # Errors
/// The alignment is 0, or the sum of all sizes needs more than 64 bits.
pub(crate) fn bounds_of(recording: &Recording, alignment: u64) -> Result<Bounds, ProblemError> {
    if alignment == 0 {
        return Err(ProblemError::ZeroAlignment);
    }
    let mut numbers: HashMap<_, usize> = HashMap::default();
    let mut loads: Vec<Load> = Vec::new();
    let (mut all, mut total) = (Load::default(), 0_u64);
    // The rounded size and the stream's number of each live block, by address.
    let mut live: HashMap<u64, (u64, usize)> = HashMap::default();
    for event in recording.events() {
        let is_request = matches!(event.kind, EventKind::Allocate | EventKind::AllocateFailure);
        if !is_request && event.kind != EventKind::Free {
            continue;
        }
        // If an address is still live when it is allocated, the source lost the block's free.
        if event.kind != EventKind::AllocateFailure
            && let Some((bytes, stream)) = live.remove(&event.address)
        {
            all.live -= bytes;
            loads[stream].live -= bytes;
        }
        if !is_request {
            continue;
        }
        let bytes = event.bytes.checked_next_multiple_of(alignment).ok_or(ProblemError::TooLarge)?;
        total = total.checked_add(bytes).ok_or(ProblemError::TooLarge)?;
        let stream = *numbers.entry(recording.lane(event).stream).or_insert(loads.len());
        if stream == loads.len() {
            loads.push(Load::default());
        }
        all.add(bytes);
        loads[stream].add(bytes);
        if event.kind == EventKind::Allocate {
            live.insert(event.address, (bytes, stream));
        } else {
            // A failed request counts as a block that lives for an instant.
            all.live -= bytes;
            loads[stream].live -= bytes;
        }
    }
    Ok(Bounds { host_order: all.most, stream_safe: loads.iter().map(|load| load.most).sum() })
}

#[cfg(test)]
mod tests {
    use millpond_planning::Problem;

    use super::*;
    use crate::import::{self, Options};
    use crate::placement::blocks_of;

    /// A log of random allocations, frees, double addresses and failed requests on some streams.
    fn log(seed: u64) -> String {
        let mut state = seed;
        let mut random = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let mut log = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
        for _ in 0..200 {
            let action = ["allocate", "free", "allocate", "allocate failure"][random(4) as usize];
            let (pointer, bytes, stream) = (256 + random(20) * 256, random(5000), random(4));
            log += &format!("1,0,{action},{pointer:#x},{bytes},{stream}\n");
        }
        log
    }

    #[test]
    fn one_pass_finds_the_bounds_of_the_planner() {
        for seed in 0..100 {
            let recording = import::read("log", log(seed).as_bytes(), &Options::default()).unwrap();
            let problem = Problem::stream_safe(blocks_of(&recording).0, 256, Vec::new()).unwrap();
            let expected = millpond_planning::bounds(&problem);
            let found = bounds_of(&recording, 256).unwrap();
            assert_eq!(
                (found.host_order, found.stream_safe),
                (expected.host_order, expected.bytes),
                "{seed}"
            );
        }
    }
}
