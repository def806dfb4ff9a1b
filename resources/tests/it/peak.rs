//! Tests the peak of bytes in use when one thread frees another's blocks.

use std::sync::mpsc::{Receiver, Sender, channel};

use millpond_core::driver::StreamFlags;
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, ResourceStatistics, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};

const MIB: u64 = 1 << 20;

type Pool = PoolMemoryResource<CudaMemoryResource>;

/// A command for a thread.
enum Do {
    Take(u64),
    Give(DevicePtr, u64),
}

fn pool(pages: PagesMode) -> (Pool, StreamRef) {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
    (CudaMemoryResource::new(device).layer(PoolLayer::new().pages(pages)).expect("a pool"), stream)
}

fn statistics(pool: &Pool) -> ResourceStatistics {
    pool.statistics().expect("a pool counts")
}

/// Carries out the commands in order, and sends the blocks that it took.
fn work(pool: &Pool, stream: StreamRef, orders: Receiver<Do>, answers: Sender<DevicePtr>) {
    for order in orders {
        let ptr = match order {
            Do::Take(bytes) => pool.allocate_bytes(bytes, stream).expect("there is room"),
            Do::Give(ptr, bytes) => {
                // SAFETY: the block came from the pool with this size and is freed once.
                unsafe { pool.deallocate_bytes(ptr, bytes, stream) };
                ptr
            }
        };
        answers.send(ptr).expect("the receiver lives");
    }
}

/// One block at a time passes from one thread to another, 10,000 times.
#[test]
fn issue_9_the_peak_of_blocks_that_are_handed_over_is_one_block() {
    for (pages, bytes) in [(PagesMode::On, MIB), (PagesMode::Off, MIB), (PagesMode::On, 1024)] {
        let (pool, stream) = pool(pages);
        let rounds = if cfg!(miri) { 20 } else { 10_000 };
        std::thread::scope(|scope| {
            let pool = &pool;
            let (send, receive) = channel();
            let (answer, answered) = channel();
            scope.spawn(move || work(pool, stream, receive, answer));
            for _ in 0..rounds {
                let ptr = pool.allocate_bytes(bytes, stream).expect("there is room");
                send.send(Do::Give(ptr, bytes)).expect("it listens");
                answered.recv().expect("it gave the block back");
            }
        });
        pool.validate();
        assert_eq!((statistics(&pool).bytes_in_use, statistics(&pool).peak_bytes_in_use), (0, bytes));
    }
}

/// Threads allocate and free blocks of all sizes, also each other's, one call at a time. After each call, the
/// peak is the most that was in use after any call.
#[test]
fn issue_9_the_peak_is_exact_whichever_thread_frees() {
    const THREADS: usize = 4;
    for (seed, pages) in [(1, PagesMode::On), (2, PagesMode::Off), (3, PagesMode::On)] {
        let (pool, stream) = pool(pages);
        let mut state = seed as u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let steps = if cfg!(miri) { 200 } else { 20_000 };
        std::thread::scope(|scope| {
            let pool = &pool;
            let threads: Vec<(Sender<Do>, Receiver<DevicePtr>)> = (0..THREADS)
                .map(|_| {
                    let (send, receive) = channel();
                    let (answer, answered) = channel();
                    scope.spawn(move || work(pool, stream, receive, answer));
                    (send, answered)
                })
                .collect();
            let (mut live, mut most) = (Vec::<(DevicePtr, u64)>::new(), 0);
            for step in 0..steps {
                let (send, answered) = &threads[random(THREADS as u64) as usize];
                // The number of blocks goes up and down, so that the program approaches the peak, and
                // sometimes passes it.
                let wanted = 20 + (step as u64 / 500 % 4) * 20;
                if random(wanted * 2) >= live.len() as u64 {
                    let bytes = match random(8) {
                        0 => 2 * MIB + 4096 * random(100),
                        1 | 2 => 20_000 + random(400_000),
                        _ => 1 + random(5000),
                    };
                    send.send(Do::Take(bytes)).expect("it listens");
                    live.push((answered.recv().expect("it took a block"), bytes));
                } else {
                    let (ptr, bytes) = live.swap_remove(random(live.len() as u64) as usize);
                    send.send(Do::Give(ptr, bytes)).expect("it listens");
                    answered.recv().expect("it gave the block back");
                }
                let now = statistics(pool);
                most = most.max(now.bytes_in_use);
                assert_eq!(now.peak_bytes_in_use, most, "step {step}, seed {seed}, pages={pages}");
            }
            for (ptr, bytes) in live {
                // SAFETY: as above.
                unsafe { pool.deallocate_bytes(ptr, bytes, stream) };
            }
        });
        pool.validate();
    }
}
