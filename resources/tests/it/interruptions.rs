//! Tests that a stream gets no block that was freed after the pool had its streams wait for each other.
//! In some programs, another thread frees blocks while a driver call of the pool runs. Races meet such a
//! moment by chance only. Here it comes in every run, at hundreds of calls.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef,
};
use millpond_driver::sim::{Access, Schedule, SimConfig, SimDevice};
use millpond_resources::LAYERS;
use millpond_testkit::hooked::HookedDriver;
use millpond_testkit::{Checked, Rng};

use crate::looks::validate_pools;

const MIB: u64 = 1 << 20;
const SEEDS: u64 = if cfg!(miri) { 1 } else { 20 };
const STEPS: u64 = if cfg!(miri) { 40 } else { 400 };
/// Small blocks (a few fill a span) and large blocks. About 30 of them fill the device.
const SIZES: [u64; 7] = [SMALL, SMALL, SMALL, SMALL, SMALL, 2 * MIB, 4 * MIB];
/// The largest block that comes from a span, over pages too.
const SMALL: u64 = 128 << 10;

/// Sets the closure for one place in the driver.
type Place = fn(&HookedDriver, Box<dyn FnOnce() + Send>);

const PLACES: [Place; 8] = [
    |hooks, hook| hooks.before_record(hook),
    |hooks, hook| hooks.after_wait(hook),
    |hooks, hook| hooks.before_query(hook),
    |hooks, hook| hooks.before_synchronize(hook),
    |hooks, hook| hooks.after_synchronize(hook),
    |hooks, hook| hooks.before_create(hook),
    |hooks, hook| hooks.before_unmap(hook),
    |hooks, hook| hooks.before_free(hook),
];

struct Live {
    ptr: DevicePtr,
    bytes: u64,
    stream: StreamRef,
}

/// What both threads know. Neither holds the lock while it calls the pool.
struct Known {
    rng: Rng,
    live: Vec<Live>,
    interruptions: u64,
}

struct Program {
    device: Arc<SimDevice>,
    hooks: Arc<HookedDriver>,
    pool: Checked<AnyResource>,
    known: Mutex<Known>,
}

impl Program {
    fn new(text: &str, seed: u64) -> Arc<Self> {
        let config = SimConfig::with_capacity(24 * MIB).schedule(Schedule::Seeded(seed));
        let device = SimDevice::new(config);
        let hooks = HookedDriver::new(device.clone());
        let driver: DriverHandle = hooks.clone();
        let table = LayerTable::new(LAYERS.iter().copied());
        let stack = text.parse::<StackSpec>().and_then(|stack| stack.build(&table, &driver));
        let pool = Checked::new(stack.expect("an empty pool"), Some(device.clone()));
        let known = Known { rng: Rng::new(seed), live: Vec::new(), interruptions: 0 };
        let program = Arc::new(Self { device, hooks, pool, known: Mutex::new(known) });
        PLACES.into_iter().for_each(|place| interrupt(Arc::downgrade(&program), place));
        program
    }

    fn with<T>(&self, part: impl FnOnce(&mut Known) -> T) -> T {
        part(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Launches a kernel that writes to the block for up to 0.2 s.
    fn work(&self, live: &Live) {
        let duration = self.with(|known| known.rng.below(200_000_000));
        self.device.launch_for(live.stream, &[Access::write(live.ptr, live.bytes, 1)], duration);
    }

    /// Frees one of the blocks while work on it is pending.
    fn free_one(&self) {
        let taken = self.with(|known| {
            let index = known.rng.below(known.live.len() as u64) as usize;
            (index < known.live.len()).then(|| known.live.swap_remove(index))
        });
        if let Some(live) = taken {
            self.free(&live);
        }
    }

    fn free(&self, live: &Live) {
        self.work(live);
        // SAFETY: the block came from the pool with this size. The caller has taken it off the list, or it
        // never was there, so it is freed once.
        unsafe { self.pool.deallocate_bytes(live.ptr, live.bytes, live.stream) };
    }

    fn step(&self, streams: &[StreamRef]) {
        let (stream, bytes, allocates) = self.with(|known| {
            let index = known.rng.below(SIZES.len() as u64) as usize;
            let stream = *known.rng.pick(streams).expect("there are streams");
            (stream, SIZES[index], known.rng.percent(60))
        });
        if !allocates {
            return self.free_one();
        }
        match self.pool.allocate_bytes(bytes, stream) {
            Ok(ptr) => {
                let live = Live { ptr, bytes, stream };
                self.work(&live);
                self.with(|known| known.live.push(live));
            }
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                (0..3).for_each(|_| self.free_one());
            }
        }
    }
}

/// Lets another thread free blocks at this place, in some of the calls.
fn interrupt(program: Weak<Program>, place: Place) {
    let Some(hooks) = program.upgrade().map(|program| Arc::clone(&program.hooks)) else { return };
    let hook = move || {
        let Some(it) = program.upgrade() else { return };
        if it.with(|known| known.rng.percent(50)) {
            it.with(|known| known.interruptions += 1);
            thread::scope(|scope| _ = scope.spawn(|| (0..4).for_each(|_| it.free_one())));
        }
        interrupt(program, place);
    };
    place(&hooks, Box::new(hook));
}

#[test]
fn blocks_that_are_freed_during_a_driver_call_keep_the_order() {
    for text in ["cuda+pool:pages=off,reuse=waited", "cuda+pool:pages=on", "cuda+pool:pages=on,reuse=waited"]
    {
        let mut interruptions = 0;
        for seed in 0..SEEDS {
            let program = Program::new(text, seed);
            let stream = |_| program.device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
            let streams: Vec<StreamRef> = (0..3).map(stream).collect();
            for step in 0..STEPS {
                program.step(&streams);
                let violations = program.device.take_violations();
                assert!(violations.is_empty(), "`{text}`, seed {seed}, step {step}: {violations:?}");
            }
            validate_pools(program.pool.inner());
            while program.with(|known| !known.live.is_empty()) {
                program.free_one();
            }
            validate_pools(program.pool.inner());
            assert_eq!(program.pool.take_faults(), [], "`{text}`, seed {seed}");
            assert_eq!(program.device.take_violations(), [], "`{text}`, seed {seed}");
            interruptions += program.with(|known| known.interruptions);
        }
        println!("`{text}`: {interruptions} interruptions");
        assert!(interruptions > 5 * SEEDS, "`{text}`: {interruptions}");
    }
}

/// A stream waits for another one, which then frees a small block. The first stream gets its next small block
/// from memory that the wait covers, not the block that was freed later.
#[test]
fn a_small_block_is_no_newer_than_the_wait_for_its_stream() {
    for text in ["cuda+pool:pages=off", "cuda+pool:pages=on"] {
        let program = Program::new(text, 0);
        let stream = || program.device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let [donor, taker] = [(); 2].map(|()| stream());
        let live = |bytes, stream| {
            let ptr = program.pool.allocate_bytes(bytes, stream);
            ptr.map(|ptr| Live { ptr, bytes, stream })
        };
        // A large block and a span. The rest of the span and of the memory stays in use.
        let early = live(8 * MIB, donor).expect("there is room");
        let late = live(SMALL, donor).expect("there is room");
        while live(2 * MIB, taker).is_ok() {}
        while live(SMALL, taker).is_ok() {}
        program.free(&early);
        live(4 * MIB, taker).expect("the stream waits for half of the large block");
        program.free(&late);
        live(SMALL, taker).expect("the wait covers the other half");
        let statistics = program.pool.statistics().expect("a pool counts");
        assert_eq!(statistics.frees.cached, 0, "the donor made too few calls for a cache");
        let ladder = statistics.ladder;
        assert_eq!((ladder.waited, ladder.ordered), (1, 1), "`{text}`");
        assert_eq!(program.device.take_violations(), [], "`{text}`");
    }
}
