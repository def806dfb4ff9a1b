//! Checks calls during captures of graphs: no call invalidates a graph, and no layer puts its work into one.

use millpond_core::driver::{CaptureMode, StreamFlags};
use millpond_core::{DeviceMemoryResource, Layout, StreamRef};
use millpond_driver::sim::SimDevice;

use super::Outcome::{self, Passed, Skipped};
use super::context::{Block, Context, Tested};

bodies![
    a_captured_allocate_adds_no_work,
    a_captured_deallocate_adds_no_work,
    calls_on_other_streams_leave_captures_valid,
    calls_on_other_threads_leave_captures_valid,
];

const NEEDS_SIM: Outcome = Skipped("only the simulated device shows what a graph contains");
const FLAGS: [StreamFlags; 2] = [StreamFlags::NON_BLOCKING, StreamFlags::BLOCKING];
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// Ends the capture, which must be valid and contain no work of the resource.
fn end(sim: &SimDevice, stream: StreamRef, call: &str) {
    let work = sim.captured_work(stream);
    let ended = sim.end_capture(stream);
    ended.unwrap_or_else(|error| {
        panic!(
            "{call} invalidated a capture: {error}. Make driver calls under a \
             `millpond::driver::CaptureModeGuard`, and submit no work if `millpond::driver::is_capturing`"
        )
    });
    assert!(
        work.is_empty(),
        "{call} put work into the captured graph, and each launch would repeat it: {}. Submit no work if \
         `millpond::driver::is_capturing(driver, stream)`",
        work.join(", ")
    );
}

/// Allocates a block for a stream that may be unable to wait for other streams; only then may it fail.
fn get_if_possible(resource: &Tested, bytes: u64, stream: StreamRef) -> Option<Block> {
    let layout = Layout::new(bytes);
    match resource.allocate(layout, stream) {
        Ok(ptr) => Some(resource.block(ptr, layout, stream)),
        Err(error) => {
            assert!(error.is_out_of_memory(), "during a capture: {error}");
            None
        }
    }
}

/// Runs a check for each kind of stream and each mode of a capture. The sizes are small and large.
fn for_each_capture(context: &Context<'_>, check: impl Fn(StreamRef, CaptureMode, u64)) {
    for flags in FLAGS {
        for mode in MODES {
            let stream = context.stream_with(flags);
            [1000, 4 << 20].into_iter().for_each(|bytes| check(*stream, mode, context.clip(bytes)));
        }
    }
}

fn begin(sim: &SimDevice, stream: StreamRef, mode: CaptureMode) {
    sim.begin_capture(stream, mode).unwrap_or_else(|error| panic!("cannot capture: {error}"));
}

/// The block may be new, or one that was free before the capture.
fn a_captured_allocate_adds_no_work(context: &Context<'_>) -> Outcome {
    let Some(sim) = &context.sim else { return NEEDS_SIM };
    let resource = context.build();
    for_each_capture(context, |stream, mode, bytes| {
        begin(sim, stream, mode);
        let block = get_if_possible(&resource, bytes, stream);
        end(sim, stream, "`allocate`");
        if let Some(block) = block {
            context.touch(block, stream);
            resource.put(block);
        }
    });
    Passed
}

/// The block may come from before the capture, or from the capture.
fn a_captured_deallocate_adds_no_work(context: &Context<'_>) -> Outcome {
    let Some(sim) = &context.sim else { return NEEDS_SIM };
    let resource = context.build();
    for_each_capture(context, |stream, mode, bytes| {
        let before = resource.get(bytes, stream);
        begin(sim, stream, mode);
        let during = get_if_possible(&resource, bytes, stream);
        resource.put(before);
        during.into_iter().for_each(|block| resource.put(block));
        end(sim, stream, "`deallocate`");
        resource.put(resource.get(bytes, stream));
    });
    Passed
}

/// The calls of a program that does not capture, on these streams.
fn call_all(context: &Context<'_>, resource: &Tested, streams: &[StreamRef], bytes: u64) {
    for &stream in streams {
        for _ in 0..2 {
            let block = get_if_possible(resource, bytes, stream);
            block.into_iter().for_each(|block| resource.put(block));
        }
        let null = resource.block(millpond_core::DevicePtr::NULL, Layout::new(0), stream);
        resource.put(null);
    }
    resource.memory_info().unwrap_or_else(|error| panic!("memory_info during a capture: {error}"));
    let _ = resource.statistics();
    resource.trim(0).unwrap_or_else(|error| panic!("trim during a capture: {error}"));
    let other = context.build();
    let block = get_if_possible(&other, bytes, streams[0]);
    block.into_iter().for_each(|block| other.put(block));
}

fn calls_on_other_streams_leave_captures_valid(context: &Context<'_>) -> Outcome {
    let Some(sim) = &context.sim else { return NEEDS_SIM };
    let resource = context.build();
    let own = context.stream();
    for_each_capture(context, |stream, mode, bytes| {
        begin(sim, stream, mode);
        call_all(context, &resource, &[*own, StreamRef::LEGACY, StreamRef::PER_THREAD], bytes);
        end(sim, stream, "a call on another stream");
    });
    Passed
}

fn calls_on_other_threads_leave_captures_valid(context: &Context<'_>) -> Outcome {
    let Some(sim) = &context.sim else { return NEEDS_SIM };
    let resource = context.build();
    let own = context.stream();
    for_each_capture(context, |stream, mode, bytes| {
        begin(sim, stream, mode);
        std::thread::scope(|scope| {
            let calls =
                scope.spawn(|| call_all(context, &resource, &[*own, StreamRef::LEGACY], bytes)).join();
            calls.unwrap_or_else(|panic| panic!("{}", crate::text_of(&*panic)));
        });
        end(sim, stream, "a call on another thread");
    });
    Passed
}
