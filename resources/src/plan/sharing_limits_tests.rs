//! Programs for which shared memory is no help, or no longer, and what the layer then owes them.

use std::sync::Arc;

use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, Layout, StreamId};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_planning::Options;

use crate::plan::body::NONE;
use crate::plan::draft::{Allowed, plan_body};
use crate::plan::history::Step;
use crate::plan::order_tests::{BLOCKED_NS, World};
use crate::plan::sharing::Tried;
use crate::plan::sharing_tests::{ONE, OTHER, sharing};
use crate::{CudaMemoryResource, Decay, PagesMode, PoolLayer};

#[test]
fn long_phases_of_one_stream_after_the_other_share_memory() {
    sharing(Tried::Made, || {
        let world = World::new();
        let streams = [world.stream(), world.stream()];
        let sizes = [0u64, 256].map(|more| (1..200).map(|size| size * 4096 + more).collect::<Vec<_>>());
        for _ in 0..20 {
            for (sizes, stream) in sizes.iter().zip(streams) {
                world.body(sizes, stream);
                world.device.advance(1 << 30);
            }
        }
        let counts = world.counts();
        assert_eq!((counts.plans, counts.left, counts.dropped), (1, 0, 0), "{counts:?}");
        assert!(counts.served > 10 * 398, "{counts:?}");
        world.check();
    });
}

#[test]
fn blocks_for_which_there_is_no_room_as_another_stream_frees_them_are_left_out() {
    let step = |bytes, is_foreign| Step { bytes, stream: StreamId::LEGACY, life: Some(1), is_foreign };
    let steps: Vec<_> = (0..8).map(|at| step(1 << 20, at % 2 == 0)).collect();
    let options = Options { threads: 1, ..Options::default() };
    for (most, planned) in [(5 << 20, Some(8)), (4 << 20, Some(4)), (0, None)] {
        let allowed = Allowed { most: Some(most), is_further: false, may_share: true };
        let body = plan_body(&steps, allowed, &options).ok();
        let slots = body.map(|body| body.slots.iter().filter(|slot| slot.lane != NONE).count());
        assert_eq!(slots, planned, "{most} bytes");
    }
}

#[test]
fn other_work_in_between_is_no_stream_that_is_behind() {
    sharing(Tried::Made, || {
        let world = World::new();
        let streams = [world.stream(), world.stream()];
        world.turns(streams, 60);
        for round in 0..6u64 {
            let sizes: Vec<u64> = (0..20).map(|at| (5 << 20) + 4096 * (20 * round + at)).collect();
            world.body(&sizes, streams[0]);
            world.device.advance(1 << 30);
        }
        let aside = world.counts();
        assert_eq!((aside.left, aside.dropped), (1, 0), "{aside:?}");
        world.turns(streams, 60);
        assert!(world.counts().served > aside.served + 300, "it is followed again: {:?}", world.counts());
        world.check();
    });
}

#[test]
fn bytes_that_another_stream_freed_are_waited_for_before_memory_is_out() {
    sharing(Tried::Made, || {
        let world = World::new();
        let streams = [world.stream(), world.stream()];
        world.turns(streams, 60);
        let held = world.allocate(ONE[0], streams[0]);
        let rest: Vec<_> = ONE[1..].iter().map(|bytes| world.allocate(*bytes, streams[0])).collect();
        rest.into_iter().for_each(|held| world.free(held, streams[0]));
        let others = world.stream();
        let mut blocks = Vec::new();
        for chunk in [64u64 << 20, 26 << 20] {
            while let Ok(ptr) = world.stack.allocate(Layout::new(chunk), others) {
                blocks.push((ptr, chunk));
            }
        }
        let left = world.device.mem_get_info().unwrap().free;
        let plain = world.device.mem_alloc(left).unwrap();
        let block = world.allocate(18 << 20, streams[1]);
        world.free(block, streams[1]);
        world.free(held, streams[0]);
        blocks.into_iter().for_each(|block| world.free(block, others));
        // SAFETY: nothing uses the test's own block.
        unsafe { world.device.mem_free(plain).unwrap() };
        world.check();
    });
}

#[test]
fn streams_that_end_after_their_frees_leave_the_plan_as_it_is() {
    sharing(Tried::Made, || {
        let world = World::new();
        let streams = [world.stream(), world.stream()];
        world.turns(streams, 60);
        let before = world.counts();
        for _ in 0..40 {
            let brief = world.stream();
            let mut held: Vec<_> = ONE.iter().map(|bytes| world.allocate(*bytes, streams[0])).collect();
            let last = held.pop().unwrap();
            held.into_iter().for_each(|held| world.free(held, streams[0]));
            world.join(brief, streams[0]);
            world.free(last, brief);
            world.device.advance(1 << 20);
            // SAFETY: the test uses the stream no more.
            unsafe { world.device.stream_destroy(brief).unwrap() };
            world.body(&OTHER, streams[1]);
            world.device.advance(1 << 20);
        }
        let after = world.counts();
        assert_eq!((after.served - before.served, after.missed - before.missed), (400, 0));
        world.check();
    });
}

#[test]
fn unused_memory_goes_back_without_a_wait() {
    for pages in [PagesMode::On, PagesMode::Off] {
        let device = SimDevice::new(SimConfig::with_capacity(4 << 30));
        let layer = PoolLayer::new().decay(Decay::Off).pages(pages);
        let pool = CudaMemoryResource::new(Arc::clone(&device) as _).layer(layer).unwrap();
        let [stream, busy] = [0, 1].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        let bytes = Layout::new(512 << 20);
        let block = pool.allocate(bytes, stream).unwrap();
        // SAFETY: the block came from the pool with this size, and nothing uses it.
        unsafe { pool.deallocate(block, bytes, stream) };
        device.synchronize().unwrap();
        device.launch_for(busy, &[], BLOCKED_NS);
        let released = pool.release_unused(0, stream).unwrap();
        // A region goes back by `cuMemFree`, which waits for the device.
        assert_eq!(released > 0, pages == PagesMode::On);
        assert!(device.virtual_time_ns() < BLOCKED_NS);
        assert!(pool.release_unused(u64::MAX, stream).unwrap() == 0, "the pool may keep all of it");
    }
}
