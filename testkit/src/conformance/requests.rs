//! Checks sizes and alignments.

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceMemoryResource, DevicePtr, ErrorKind, Layout, StreamRef};

use super::Outcome::{self, Passed};
use super::context::{Block, Context, Tested};
use crate::Rng;

bodies![
    zero_bytes_are_null,
    null_is_given_back_to_nothing,
    sizes_from_one_byte_up,
    alignments_up_to_2_mib,
    small_alignments_are_raised,
    two_blocks_differ,
    a_thousand_small_blocks,
    a_hundred_random_sizes,
    mixed_allocations_and_frees,
    freed_in_order,
    freed_in_reverse,
    freed_at_random,
    memory_is_used_again,
];

const S: StreamRef = StreamRef::LEGACY;

fn zero_bytes_are_null(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let before = context.used_bytes();
    for alignment in [256, 4096, 2 << 20] {
        let layout = Layout::with_alignment(0, alignment).unwrap_or(Layout::new(0));
        assert_eq!(resource.get_layout(layout, S).ptr, DevicePtr::NULL, "{layout:?}");
    }
    assert_eq!(context.used_bytes(), before, "a request of 0 bytes takes memory");
    Passed
}

fn null_is_given_back_to_nothing(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let block = resource.get(context.clip(1000), S);
    resource.put(resource.block(DevicePtr::NULL, Layout::new(0), S));
    assert_eq!(resource.shadow(|shadow| shadow.live_blocks()), 1);
    resource.put(block);
    Passed
}

fn sizes_from_one_byte_up(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let edges = (0..=26).flat_map(|power| [(1_u64 << power) - 1, 1 << power, (1 << power) + 1]);
    for bytes in edges.filter(|&bytes| bytes > 0 && bytes <= context.subject.largest_bytes) {
        let (first, second) = (resource.get(bytes, S), resource.get(bytes, S));
        assert!(first.ptr.is_aligned_to(ALLOCATION_ALIGNMENT), "{bytes} bytes at {}", first.ptr);
        resource.put(first);
        resource.put(second);
    }
    Passed
}

/// A resource may refuse alignments above 256, but only with an error and without handing out another block.
fn alignments_up_to_2_mib(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let mut blocks = Vec::new();
    for power in 8..=21 {
        for bytes in [1, 256, 10_000] {
            let layout =
                Layout::with_alignment(context.clip(bytes), 1 << power).unwrap_or(Layout::new(bytes));
            match resource.allocate(layout, S) {
                Ok(ptr) => blocks.push(resource.block(ptr, layout, S)),
                Err(error) => {
                    let refused = matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidArgument);
                    let too_large = error.is_out_of_memory() && 1 << power > context.subject.largest_bytes;
                    assert!(power > 8 && (refused || too_large), "{error}");
                    assert_eq!(error.requested_alignment(), Some(1 << power), "{error}");
                }
            }
        }
    }
    blocks.into_iter().for_each(|block| resource.put(block));
    Passed
}

fn small_alignments_are_raised(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    for alignment in [1, 2, 8, 64, 128] {
        let layout = Layout::with_alignment(3, alignment).unwrap_or(Layout::new(3));
        let blocks = [resource.get_layout(layout, S), resource.get_layout(layout, S)];
        for block in blocks {
            assert!(block.ptr.is_aligned_to(ALLOCATION_ALIGNMENT), "{} for {alignment}", block.ptr);
            resource.put(block);
        }
    }
    Passed
}

/// RMM's issue 861.
fn two_blocks_differ(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let stream = context.stream();
    for bytes in [1, 256, 1 << 20].map(|bytes| context.clip(bytes)) {
        let (first, second) = (resource.get(bytes, S), resource.get(bytes, *stream));
        assert_ne!(first.ptr, second.ptr);
        resource.put(second);
        resource.put(first);
    }
    Passed
}

fn a_thousand_small_blocks(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let blocks: Vec<Block> = (0..1000).map(|index| resource.get(context.clip(index % 300 + 1), S)).collect();
    assert_eq!(resource.shadow(|shadow| shadow.live_blocks()), 1000);
    blocks.into_iter().for_each(|block| resource.put(block));
    Passed
}

fn random_bytes(context: &Context<'_>, rng: &mut Rng) -> u64 {
    context.clip(rng.between(1, 5 << 20))
}

fn a_hundred_random_sizes(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let mut rng = Rng::new(100);
    let blocks: Vec<Block> = (0..100).map(|_| resource.get(random_bytes(context, &mut rng), S)).collect();
    blocks.into_iter().for_each(|block| resource.put(block));
    Passed
}

fn mixed_allocations_and_frees(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let streams = [context.stream(), context.stream()];
    let mut rng = Rng::new(53);
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..1000 {
        if live.is_empty() || (live.len() < 100 && rng.percent(53)) {
            let stream = *streams[rng.below(2) as usize];
            live.push(resource.get(random_bytes(context, &mut rng), stream));
        } else {
            let index = rng.below(live.len() as u64) as usize;
            resource.put(live.swap_remove(index));
        }
    }
    live.into_iter().for_each(|block| resource.put(block));
    Passed
}

/// Allocates 64 blocks twice. The second round must need no more memory than the first.
fn freed(context: &Context<'_>, arrange: impl Fn(&mut Vec<Block>)) -> Outcome {
    let resource = context.build();
    let round = |resource: &Tested| {
        let sizes = (0..64).map(|index| context.clip(1000 * (index % 7 + 1)));
        let mut blocks: Vec<Block> = sizes.map(|bytes| resource.get(bytes, S)).collect();
        let reserved = context.used_bytes();
        arrange(&mut blocks);
        blocks.into_iter().for_each(|block| resource.put(block));
        reserved
    };
    let first = round(&resource);
    assert_eq!(round(&resource), first, "the second round takes a different amount from the device");
    Passed
}

fn freed_in_order(context: &Context<'_>) -> Outcome {
    freed(context, |_| {})
}

fn freed_in_reverse(context: &Context<'_>) -> Outcome {
    freed(context, |blocks| blocks.reverse())
}

fn freed_at_random(context: &Context<'_>) -> Outcome {
    freed(context, |blocks| {
        let mut rng = Rng::new(9);
        for index in (1..blocks.len()).rev() {
            blocks.swap(index, rng.below(index as u64 + 1) as usize);
        }
    })
}

/// Allocates far more in total than the device has.
fn memory_is_used_again(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let bytes = context.clip(64 << 20);
    for _ in 0..200 {
        resource.put(resource.get(bytes, S));
    }
    Passed
}
