//! Checks that statistics, if the resource has any, agree with the calls.

use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, ResourceStatistics, StreamRef};

use super::Outcome::{self, Passed, Skipped};
use super::context::{Block, Context, Tested};
use crate::statistics_check::StatisticsCheck;

bodies![
    counts_follow_the_calls,
    peaks_stay,
    statistics_come_from_the_nearest_layer,
    zero_bytes_are_not_counted,
];

const S: StreamRef = StreamRef::LEGACY;
const NONE: Outcome = Skipped("the subject does not declare statistics; see Subject::statistics");

fn statistics(resource: &Tested) -> ResourceStatistics {
    resource.statistics().unwrap_or_else(|| panic!("the resource has no statistics"))
}

fn counts_follow_the_calls(context: &Context<'_>) -> Outcome {
    if context.subject.statistics == StatisticsCheck::None {
        return NONE;
    }
    let resource = context.build();
    let blocks: Vec<Block> = (1..=10).map(|index| resource.get(context.clip(1000 * index), S)).collect();
    let requested: u64 = blocks.iter().map(|block| block.layout.bytes()).sum();
    let full = statistics(&resource);
    assert_eq!((full.blocks_in_use, full.bytes_requested), (10, requested), "{full:?}");
    assert_eq!((full.allocations, full.deallocations), (10, 0), "{full:?}");
    assert!(full.bytes_in_use >= requested, "{full:?}");
    blocks.into_iter().for_each(|block| resource.put(block));
    let empty = statistics(&resource);
    assert_eq!((empty.blocks_in_use, empty.bytes_requested, empty.bytes_in_use), (0, 0, 0), "{empty:?}");
    assert_eq!((empty.allocations, empty.deallocations, empty.misuses), (10, 10, 0), "{empty:?}");
    if let (StatisticsCheck::Exact, Some(sim)) = (context.subject.statistics, &context.sim) {
        let (reserved, taken) = (empty.bytes_reserved, sim.live_bytes());
        // The device rounds each region up to 512.
        assert!(reserved <= taken && taken <= reserved + 512 * empty.regions, "{taken} taken, {empty:?}");
        assert!(empty.largest_free_block <= empty.bytes_free(), "{empty:?}");
        assert!((0.0..=1.0).contains(&empty.fragmentation()), "{empty:?}");
        assert_eq!(empty.ladder.served(), 10, "{empty:?}");
    }
    Passed
}

fn peaks_stay(context: &Context<'_>) -> Outcome {
    if context.subject.statistics == StatisticsCheck::None {
        return NONE;
    }
    let resource = context.build();
    let blocks: Vec<Block> = (0..4).map(|_| resource.get(context.clip(1 << 20), S)).collect();
    let peak = statistics(&resource).bytes_in_use;
    blocks.into_iter().for_each(|block| resource.put(block));
    resource.put(resource.get(context.clip(1000), S));
    let after = statistics(&resource);
    assert_eq!(after.peak_bytes_in_use, peak, "{after:?}");
    assert!(after.peak_bytes_reserved >= after.bytes_reserved, "{after:?}");
    Passed
}

fn statistics_come_from_the_nearest_layer(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let layers: Vec<_> = resource.inner().stack().collect();
    for pair in layers.windows(2) {
        let [above, below] = [pair[0], pair[1]].map(|layer| layer.statistics().is_some());
        assert!(above || !below, "`{}` has statistics, but `{}` returns none", pair[1], pair[0]);
    }
    Passed
}

fn zero_bytes_are_not_counted(context: &Context<'_>) -> Outcome {
    if context.subject.statistics == StatisticsCheck::None {
        return NONE;
    }
    let resource = context.build();
    resource.put(resource.get(0, S));
    let counts = statistics(&resource);
    assert_eq!((counts.blocks_in_use, counts.bytes_in_use, counts.bytes_requested), (0, 0, 0), "{counts:?}");
    Passed
}
