//! Programs for which shared memory is no help, or no longer, and what the layer then owes them.

use std::sync::Arc;

use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, Layout};
use millpond_driver::sim::{SimConfig, SimDevice};

use crate::plan::learning::Trial;
use crate::plan::order_tests::{BLOCKED_NS, World};
use crate::plan::sharing_tests::{ONE, OTHER, sharing};
use crate::{CudaMemoryResource, Decay, PagesMode, PoolLayer};

#[test]
fn long_phases_of_one_stream_after_the_other_share_memory() {
    sharing(Trial::Made, || {
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
fn a_program_in_which_one_stream_asks_and_others_free_is_planned_without_what_they_free() {
    let world = World::new();
    let [one, other] = [world.stream(), world.stream()];
    for _ in 0..80 {
        for sizes in [&ONE[..], &OTHER[..]] {
            let mut held: Vec<_> = sizes.iter().map(|bytes| world.allocate(*bytes, one)).collect();
            world.join(other, one);
            world.free(held.remove(0), other);
            held.into_iter().for_each(|held| world.free(held, one));
            world.device.advance(1 << 20);
        }
    }
    let counts = world.counts();
    assert!(counts.served > 200 && !counts.has_given_up, "{counts:?}");
    world.check();
}

#[test]
fn other_work_in_between_is_no_stream_that_is_behind() {
    sharing(Trial::Made, || {
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
    sharing(Trial::Made, || {
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
    sharing(Trial::Made, || {
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
