//! Explains failed requests that free memory in private pools, as of CUDA graphs, would have served.

use std::collections::BTreeMap;

use millpond_engine::text::{number_of, readable_bytes};

use super::explanation::Diagnosis;
use super::fixes::share_pools;
use super::holders::Holder;
use crate::recording::{Moment, Recording};

/// The free memory of private pools.
pub(super) struct Private {
    /// The bytes of the wholly free segments, by pool.
    pools: BTreeMap<(u64, u64), u64>,
}

impl Private {
    /// Returns the pools if all wholly free segments with at least `least` bytes belong to private pools.
    pub(super) fn of(recording: &Recording, moment: &Moment, least: u64) -> Option<Self> {
        let has_room = || moment.wholly_free_segments().filter(|segment| segment.bytes >= least);
        let mut pools = BTreeMap::new();
        for segment in has_room() {
            let pool = segment.lane.pool.filter(|_| segment.lane.is_private())?;
            let sum: &mut u64 = pools.entry(pool).or_default();
            *sum = sum.saturating_add(segment.bytes);
        }
        (!pools.is_empty() && !recording.has_sums_only()).then_some(Self { pools })
    }

    /// Returns the diagnosis. `takers` are the call stacks for which the segments were reserved.
    pub(super) fn diagnosis(
        &self,
        recording: &Recording,
        mut evidence: Vec<String>,
        takers: Vec<Holder>,
    ) -> Diagnosis {
        let bytes = readable_bytes;
        let sum = self.pools.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let count = self.pools.len() as u64;
        // The pools of graphs have a first number; `graph_pool_handle` and `MemPool` have a second one.
        let of_graphs = if self.pools.keys().all(|pool| pool.0 > 0) { " of CUDA graphs" } else { "" };
        let (least, most) = (
            self.pools.values().min().copied().unwrap_or(0),
            self.pools.values().max().copied().unwrap_or(0),
        );
        let each = match bytes(least) == bytes(most) {
            true if count > 1 => format!(" ({count} × {})", bytes(most)),
            true => String::new(),
            false => format!(" (at most {} in one pool)", bytes(most)),
        };
        if count > 1 {
            evidence.push(format!("if these pools become one, it needs about {}", bytes(most)));
        }
        if !takers.is_empty() {
            evidence.push("these free segments were reserved by:".to_owned());
        }
        Diagnosis {
            code: "other_pool",
            what: format!(
                "{} were free, but in {}{of_graphs}{each}, so this request could not use them",
                bytes(sum),
                number_of(count, "private pool")
            ),
            evidence,
            holders: takers,
            fixes: share_pools(recording, captures(recording).as_deref()),
        }
    }
}

/// Returns the user's code line that captures graphs, if the file shows it.
fn captures(recording: &Recording) -> Option<String> {
    let mut stacks: Vec<_> = recording.events().filter_map(|event| event.stack).collect();
    stacks.sort_unstable();
    stacks.dedup();
    let stacks = stacks.into_iter().map(|stack| recording.user_stack(stack));
    let captures = |name: &str| name.contains("capture_begin");
    stacks
        .into_iter()
        .find(|stack| stack.frames().iter().any(|(frame, _)| captures(frame.function)))
        .map(|stack| stack.lead(recording.user_folder()))
}

/// Returns the free bytes in segments of private pools.
pub(super) fn free_bytes(moment: &Moment) -> u64 {
    let free = moment.segments().iter().filter(|segment| segment.lane.is_private()).map(|segment| {
        let blocks = moment.blocks_in(segment).iter();
        blocks.fold(segment.bytes, |free, block| free.saturating_sub(block.rounded_bytes))
    });
    free.fold(0, u64::saturating_add)
}
