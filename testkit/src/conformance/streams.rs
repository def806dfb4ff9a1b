//! Checks stream order, the promise behind the stream argument. On the simulated device, clocks and data tags
//! decide. Elsewhere the bodies only check that the calls succeed.

use std::sync::Arc;

use millpond_core::{DeviceMemoryResource, Layout, StreamRef};
use millpond_driver::sim::Access;
use parking_lot::Mutex;

use super::Outcome::{self, Passed, Skipped};
use super::context::{Block, Context, OwnStream, Tested};

bodies![
    every_kind_of_stream,
    both_handles_of_the_legacy_stream,
    freed_on_another_stream,
    passed_from_stream_to_stream,
    merged_blocks_are_ordered_for_a_third_stream,
    pending_work_is_not_overtaken,
    a_block_is_ready_where_the_resource_says,
    a_free_block_needs_no_wait,
    stream_destroyed_after_its_frees,
    stream_handles_are_used_again,
    a_hundred_streams,
];

/// Fills a block with its address as a tag, checks it and frees it, all in the order of one stream.
fn use_and_put(context: &Context<'_>, resource: &Tested, block: Block) {
    context.touch(block, block.stream);
    resource.put(block);
}

fn every_kind_of_stream(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let own = context.stream();
    for stream in [StreamRef::LEGACY, StreamRef::PER_THREAD, *own] {
        let blocks = [resource.get(context.clip(1000), stream), resource.get(context.clip(1 << 20), stream)];
        blocks.into_iter().for_each(|block| use_and_put(context, &resource, block));
    }
    Passed
}

fn both_handles_of_the_legacy_stream(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let one = StreamRef::from_raw_parts(1, 0);
    for (first, second) in [(StreamRef::LEGACY, one), (one, StreamRef::LEGACY)] {
        let block = resource.get(context.clip(1000), first);
        context.touch(block, first);
        resource.put_on(block, second);
        use_and_put(context, &resource, resource.get(context.clip(1000), second));
    }
    Passed
}

fn freed_on_another_stream(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let (a, b) = (context.stream(), context.stream());
    for _ in 0..20 {
        let block = resource.get(context.clip(4096), *a);
        context.touch(block, *a);
        context.order(*a, *b);
        context.touch(block, *b);
        resource.put_on(block, *b);
        // The first of these may be the block that was just freed on the other stream.
        let again = resource.get(context.clip(4096), *a);
        use_and_put(context, &resource, again);
    }
    Passed
}

fn passed_from_stream_to_stream(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let streams: Vec<OwnStream> = (0..4).map(|_| context.stream()).collect();
    for round in 0..50 {
        let stream = *streams[round % streams.len()];
        let blocks: Vec<Block> = (0..4).map(|_| resource.get(context.clip(1 << 20), stream)).collect();
        blocks.into_iter().for_each(|block| use_and_put(context, &resource, block));
    }
    Passed
}

/// RMM's issue 2489: two streams' blocks are merged for a third stream, which frees a part. A fourth stream
/// takes that part and must also wait for the first two.
fn merged_blocks_are_ordered_for_a_third_stream(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let streams: Vec<OwnStream> = (0..4).map(|_| context.stream()).collect();
    let half = context.clip(1 << 20) / 2;
    for _ in 0..10 {
        let first: Vec<Block> = (0..8).map(|_| resource.get(half, *streams[0])).collect();
        let second: Vec<Block> = (0..8).map(|_| resource.get(half, *streams[1])).collect();
        for block in first.into_iter().chain(second) {
            use_and_put(context, &resource, block);
        }
        let merged: Vec<Block> = (0..4).map(|_| resource.get(2 * half, *streams[2])).collect();
        let stolen: Vec<Block> = (0..4).map(|_| resource.get(half, *streams[3])).collect();
        for block in stolen.into_iter().chain(merged) {
            use_and_put(context, &resource, block);
        }
    }
    Passed
}

/// A free is a point in the stream's order, not a wait: unfinished work counts.
fn pending_work_is_not_overtaken(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let (busy, other) = (context.stream(), context.stream());
    for bytes in [256, 64 << 10, 4 << 20].map(|bytes| context.clip(bytes)) {
        let block = resource.get(bytes, *busy);
        for _ in 0..5 {
            context.touch(block, *busy);
        }
        resource.put(block);
        use_and_put(context, &resource, resource.get(bytes, *other));
        use_and_put(context, &resource, resource.get(bytes, StreamRef::LEGACY));
    }
    Passed
}

/// `is_stream_ordered() == false` promises a block that any stream may use at once, and a free that waits. A
/// layer that submits its own work breaks that promise, if the work waits behind other work of the stream.
/// The answer must not change during the resource's life.
fn a_block_is_ready_where_the_resource_says(context: &Context<'_>) -> Outcome {
    let Some(sim) = &context.sim else { return Skipped("only the simulated device can check this") };
    let built = context.subject.build(&context.driver);
    let resource = built.unwrap_or_else(|error| panic!("cannot build the resource: {error}"));
    let is_stream_ordered = resource.is_stream_ordered();
    let (busy, other) = (context.stream(), context.stream());
    for bytes in [256, 64 << 10, 4 << 20].map(|bytes| context.clip(bytes)) {
        let layout = Layout::new(bytes);
        sim.launch_for(*busy, &[], 1_000_000);
        let ptr = resource.allocate(layout, *busy);
        let ptr = ptr.unwrap_or_else(|error| panic!("cannot allocate {layout:?}: {error}"));
        let [user, freed_on] = if is_stream_ordered { [*busy; 2] } else { [*other, StreamRef::LEGACY] };
        sim.lend(ptr, bytes, user);
        if resource.accessibility().device {
            sim.launch(user, &[Access::write(ptr, bytes, bytes)]);
        }
        sim.give_back(ptr, bytes, user);
        // SAFETY: the block came from the resource with this layout and is freed once. The free is ordered
        // after its use, or waits for it.
        unsafe { resource.deallocate(ptr, layout, freed_on) };
        assert_eq!(resource.is_stream_ordered(), is_stream_ordered, "the answer changed");
    }
    Passed
}

/// A stream-ordered resource does not wait for the device if it has a free block. It may wait if its upstream
/// takes each block from the driver.
fn a_free_block_needs_no_wait(context: &Context<'_>) -> Outcome {
    const TAKES: [&str; 5] =
        ["cuMemAlloc", "cuMemAllocManaged", "cuMemHostAlloc", "cuMemFree", "cuMemFreeHost"];
    const WAITS: [&str; 3] = ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"];
    let Some(sim) = &context.sim else { return Skipped("only the simulated device can check this") };
    let resource = context.build();
    if !resource.is_stream_ordered() {
        return Passed;
    }
    let stream = context.stream();
    let bytes = context.clip(1 << 20);
    resource.put(resource.get(bytes, *stream));
    let calls: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let seen = Arc::clone(&calls);
    sim.observe_calls(Some(Arc::new(move |call| seen.lock().push(call))));
    resource.put(resource.get(bytes, *stream));
    sim.observe_calls(None);
    let calls = std::mem::take(&mut *calls.lock());
    let makes = |any_of: &[&str]| calls.iter().any(|call| any_of.contains(call));
    assert!(makes(&TAKES) || !makes(&WAITS), "a block was free, but the calls waited: {calls:?}");
    Passed
}

/// RMM's pool test of a destroyed stream.
fn stream_destroyed_after_its_frees(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let last = context.stream();
    for _ in 0..5 {
        let gone = context.stream();
        let blocks: Vec<Block> = (0..3).map(|_| resource.get(context.clip(1 << 20), *gone)).collect();
        blocks.into_iter().for_each(|block| use_and_put(context, &resource, block));
        drop(gone);
        use_and_put(context, &resource, resource.get(context.clip(1 << 20), *last));
    }
    resource.trim(0).unwrap_or_else(|error| panic!("{error}"));
    Passed
}

/// The driver gives a destroyed stream's handle to the next stream, which is a different one.
fn stream_handles_are_used_again(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let mut handles = Vec::new();
    for _ in 0..20 {
        let stream = context.stream();
        handles.push(stream.handle());
        use_and_put(context, &resource, resource.get(context.clip(10_000), *stream));
    }
    let streams = handles.len();
    handles.sort_unstable();
    handles.dedup();
    assert!(context.sim.is_none() || handles.len() < streams, "no handle was reused, so nothing was tested");
    Passed
}

fn a_hundred_streams(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let streams: Vec<OwnStream> = (0..100).map(|_| context.stream()).collect();
    for round in 0..2 {
        for stream in &streams {
            let block = resource.get(context.clip(1000 + round), **stream);
            use_and_put(context, &resource, block);
        }
    }
    Passed
}
