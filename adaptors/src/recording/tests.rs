//! Tests the recorder: the events that it keeps, their order, and the events that it leaves out.

use std::sync::Arc;
use std::thread;

use millpond_core::segments::{SegmentAction, SegmentEvent, report};
use millpond_core::{DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::misuse_recorder::record;
use millpond_testkit::mock::{self, MockResource};

use super::frames::source;
use super::*;

const S: StreamRef = StreamRef::LEGACY;
const HERE: DeviceId = DeviceId::cuda(0);

fn adaptor(options: RecordOptions) -> (RecordingResourceAdaptor<MockResource>, mock::Handle) {
    let (upstream, handle) = mock::resource(SimDevice::new(SimConfig::h200()));
    (RecordingResourceAdaptor::new(upstream, options), handle)
}

fn names(recorder: &Recorder) -> Vec<(&'static str, u64, u64)> {
    recorder.events().0.iter().map(|event| (event.action.name(), event.address, event.bytes)).collect()
}

#[test]
fn allocations_and_frees_are_kept_with_the_stream_of_the_allocation() {
    let (resource, handle) = adaptor(RecordOptions::default());
    handle.answer_next(DevicePtr::new(0x9000));
    let stream = StreamRef::from_raw_parts(0x55e8, 7);
    let block = resource.allocate_bytes(1000, stream).unwrap();
    // SAFETY: the upstream is a mock, whose addresses have no memory behind them.
    unsafe { resource.deallocate_bytes(block, 1000, S) };
    let (events, lost) = resource.recorder().events();
    let expected =
        [("alloc", 0x9000, 1000), ("free_requested", 0x9000, 1000), ("free_completed", 0x9000, 1000)];
    assert_eq!((names(resource.recorder()), lost), (expected.to_vec(), 0));
    assert!(events.iter().all(|event| event.stream == 0x55e8 && event.stack == 0 && event.pool == 0));
    assert!(events.is_sorted_by_key(|event| event.time_us) && events[0].time_us > 1 << 50);
    assert_eq!(resource.live_blocks().unwrap(), []);
    assert!(resource.allocate_bytes(0, S).unwrap().is_null());
    assert_eq!(resource.recorder().events().0.len(), 3, "no block is no event");
    resource.recorder().clear();
    assert_eq!(names(resource.recorder()), []);
}

/// The layers below refuse such frees, so that they are no events.
#[test]
fn wrong_frees_are_no_events() {
    let (resource, handle) = adaptor(RecordOptions::default());
    handle.answer_next(DevicePtr::new(0x9000));
    let block = resource.allocate_bytes(1000, S).unwrap();
    // SAFETY: the upstream is a mock, which has no memory.
    record(|| unsafe { resource.deallocate_bytes(block, 999, S) });
    // SAFETY: as above.
    record(|| unsafe { resource.deallocate_bytes(DevicePtr::new(0x5000), 1000, S) });
    assert_eq!(names(resource.recorder()), [("alloc", 0x9000, 1000)]);
    assert_eq!(resource.live_blocks().unwrap().len(), 1);
}

/// The ring keeps the last events in order, and the live blocks even if their events are gone.
#[test]
fn a_full_ring_overwrites_the_oldest_events() {
    for events in [1, 2, 7] {
        let recorder = Recorder::new(RecordOptions { events, ..RecordOptions::default() });
        for number in 1..=20 {
            recorder.allocated(HERE, DevicePtr::new(number << 8), number, S);
        }
        let (kept, lost) = recorder.events();
        let bytes: Vec<u64> = kept.iter().map(|event| event.bytes).collect();
        assert_eq!((bytes, lost), ((21 - events as u64..=20).collect(), 20 - events as u64));
        assert_eq!(recorder.live_blocks(HERE).len(), 20);
    }
}

#[test]
fn nothing_is_kept_that_is_off() {
    let recorder = Recorder::new(RecordOptions { events: 0, ..RecordOptions::default() });
    recorder.allocated(HERE, DevicePtr::new(256), 1, S);
    recorder.out_of_memory(HERE, 1, S, 0);
    assert_eq!((names(&recorder), recorder.live_blocks(HERE).len()), (vec![], 1));
    let skipped = 1 << Action::FreeRequested as u32 | 1 << Action::OutOfMemory as u32;
    let recorder = Recorder::new(RecordOptions { skipped, ..RecordOptions::default() });
    recorder.allocated(HERE, DevicePtr::new(256), 1, S);
    recorder.out_of_memory(HERE, 1, S, 0);
    recorder.free(HERE, DevicePtr::new(256), 1, S);
    assert_eq!(names(&recorder), [("alloc", 256, 1), ("free_completed", 256, 1)]);
    let actions: Vec<usize> = Action::ALL.iter().map(|action| *action as usize).collect();
    assert_eq!(actions, (0..Action::ALL.len()).collect::<Vec<_>>(), "the bits follow the list");
}

#[test]
fn a_request_that_fails_tells_the_free_bytes_of_the_device() {
    let upstream =
        millpond_resources::CudaMemoryResource::new(SimDevice::new(SimConfig::with_capacity(1 << 20)));
    let resource = RecordingResourceAdaptor::new(upstream, RecordOptions::default());
    resource.allocate_bytes(1 << 30, S).unwrap_err();
    let free = resource.driver().mem_get_info().unwrap().free;
    assert_eq!(names(resource.recorder()), [("oom", free, 1 << 30)]);
}

#[test]
fn segments_of_all_pools_are_kept_until_the_recorder_ends() {
    let recorder = Recorder::new(RecordOptions::default());
    let tell =
        |action, address| report(&SegmentEvent::new(action, DeviceId::own(77), 1 << 60, address, 4096));
    for (address, action) in
        (1..).zip([SegmentAction::Allocate, SegmentAction::Free, SegmentAction::Map, SegmentAction::Unmap])
    {
        tell(action, address);
    }
    // Pools of other tests of this process report, too.
    let of_this = recorder.events().0.into_iter().filter(|event| event.pool == 1 << 60);
    let kept: Vec<_> = of_this.map(|event| (event.action.name(), event.address, event.bytes)).collect();
    let expected = ["segment_alloc", "segment_free", "segment_map", "segment_unmap"];
    assert_eq!(kept, (1..).zip(expected).map(|(at, name)| (name, at, 4096)).collect::<Vec<_>>());
    drop(recorder);
    tell(SegmentAction::Map, 9);
}

/// Each thread's events are in its order, and none is lost or torn.
#[test]
fn threads_record_together() {
    let recorder = Recorder::new(RecordOptions::default());
    thread::scope(|scope| {
        for number in 1..=4u64 {
            let recorder = Arc::clone(&recorder);
            scope.spawn(move || {
                for step in 1..=500 {
                    let ptr = DevicePtr::new(number << 32 | step << 8);
                    recorder.allocated(HERE, ptr, step, StreamRef::from_raw_parts(number, number));
                    recorder.free(HERE, ptr, step, S);
                }
            });
        }
    });
    let (events, lost) = recorder.events();
    assert_eq!((events.len(), lost), (4 * 500 * 3, 0));
    assert!(events.is_sorted_by_key(|event| event.time_us));
    for number in 1..=4 {
        let own: Vec<_> = events.iter().filter(|event| event.address >> 32 == number).collect();
        for (step, three) in (1..).zip(own.chunks(3)) {
            let seen: Vec<_> =
                three.iter().map(|event| (event.action.name(), event.bytes, event.stream)).collect();
            let expected = ["alloc", "free_requested", "free_completed"].map(|name| (name, step, number));
            assert_eq!(seen, expected);
        }
    }
}

/// Stacks are captured as the options say: for the state alone, for allocations, or for all calls.
#[test]
#[cfg(not(miri))] // Miri has no addresses of machine code.
fn stacks_are_captured_as_the_options_say() {
    for (stacks, in_state, in_allocations, in_frees) in [
        (RecordStacks::Off, false, false, false),
        (RecordStacks::Live, true, false, false),
        (RecordStacks::Allocations, true, true, false),
        (RecordStacks::All, true, true, true),
    ] {
        let recorder = Recorder::new(RecordOptions { stacks, ..RecordOptions::default() });
        recorder.allocated(HERE, DevicePtr::new(256), 1, S);
        recorder.allocated(HERE, DevicePtr::new(512), 1, S);
        recorder.free(HERE, DevicePtr::new(256), 1, S);
        let (events, _) = recorder.events();
        let has_stack = |at: usize| events[at].stack != 0;
        assert_eq!((has_stack(0), has_stack(2)), (in_allocations, in_frees), "{stacks:?}");
        let live = recorder.live(HERE);
        assert_eq!((live.len(), live[&512].stack != 0), (1, in_state), "{stacks:?}");
        if in_state {
            let frames = source().frames(live[&512].stack);
            let is_here = |frame: &Frame| frame.name.contains("stacks_are_captured_as_the_options_say");
            assert!(frames.iter().any(is_here), "{frames:?}");
        }
    }
}

#[inline(never)]
fn allocate_small(recorder: &Recorder, address: u64) {
    recorder.allocated(HERE, DevicePtr::new(address), 100, S);
}

#[inline(never)]
fn allocate_large(recorder: &Recorder, address: u64) {
    recorder.allocated(HERE, DevicePtr::new(address), 4000, S);
}

/// Blocks of one call site are one holder, and a block that was freed has none.
#[test]
#[cfg(not(miri))] // Miri has no addresses of machine code.
fn live_blocks_are_grouped_by_the_stack_of_their_allocation() {
    let recorder = Recorder::new(RecordOptions { stacks: RecordStacks::Live, ..RecordOptions::default() });
    (1..4).for_each(|number| allocate_small(&recorder, number << 8));
    allocate_large(&recorder, 1 << 20);
    recorder.free(HERE, DevicePtr::new(1 << 8), 100, S);
    for _ in 0..2 {
        let holders = recorder.holders(HERE);
        let sums: Vec<_> = holders.iter().map(|holder| (holder.blocks, holder.bytes)).collect();
        assert_eq!(sums, [(1, 4000), (2, 200)]);
        let is_named = |at: usize, name| holders[at].backtrace.as_ref().unwrap().contains(name);
        assert!(is_named(0, "allocate_large") && is_named(1, "allocate_small"), "{holders:?}");
    }
    assert_eq!(recorder.holders(DeviceId::sim(77)), []);
    let plain = Recorder::new(RecordOptions::default());
    allocate_small(&plain, 256);
    assert_eq!(plain.holders(HERE), [], "no stacks, no holders");
}
