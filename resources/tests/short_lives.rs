//! Tests that streams and threads leave nothing behind when they end: neither device memory that the pool
//! holds, nor host memory.

use std::alloc::{GlobalAlloc, Layout as HostLayout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use millpond_core::driver::StreamFlags;
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, Driver, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};
use millpond_testkit::size;

/// The system's allocator, which counts its live bytes.
struct Counted;

static HOST_BYTES: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call is the system allocator's, with the same arguments and the same result.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: HostLayout) -> *mut u8 {
        HOST_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: HostLayout) {
        HOST_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static HOST: Counted = Counted;

type Pool = PoolMemoryResource<CudaMemoryResource>;

/// The sizes that may grow.
#[derive(Clone, Copy, Debug)]
struct Size {
    host_bytes: i64,
    device_bytes: u64,
    streams: usize,
    events: usize,
}

impl Size {
    fn most(self, other: Self) -> Self {
        Self {
            host_bytes: self.host_bytes.max(other.host_bytes),
            device_bytes: self.device_bytes.max(other.device_bytes),
            streams: self.streams.max(other.streams),
            events: self.events.max(other.events),
        }
    }
}

struct Setup {
    device: Arc<SimDevice>,
    pool: Pool,
}

impl Setup {
    fn new(pages: PagesMode) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let layer = PoolLayer::new().pages(pages);
        let pool = CudaMemoryResource::new(device.clone()).layer(layer).expect("there is memory");
        Self { device, pool }
    }

    fn stream(&self) -> StreamRef {
        self.device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream")
    }

    /// Allocates and frees a small and a large block this often.
    fn work(&self, stream: StreamRef, times: u64) {
        for time in 0..times {
            for bytes in [1000 + 256 * (time % 3), (2 << 20) + 256 * time] {
                let ptr = self.pool.allocate_bytes(bytes, stream).expect("there is memory");
                self.device.launch(stream, &[Access::write(ptr, bytes, time)]);
                // SAFETY: the block came from the pool with this size, and its use is in the stream's order.
                unsafe { self.pool.deallocate_bytes(ptr, bytes, stream) };
            }
        }
    }

    /// Creates a stream, uses it this often, and destroys it.
    fn short_lived_stream(&self, times: u64) {
        let stream = self.stream();
        self.work(stream, times);
        // SAFETY: the stream is not named again.
        unsafe { self.device.stream_destroy(stream) }.expect("it is there");
    }

    fn size(&self) -> Size {
        assert_eq!(self.device.take_violations(), []);
        self.pool.validate();
        Size {
            host_bytes: HOST_BYTES.load(Ordering::Relaxed),
            device_bytes: self.pool.pool_bytes(),
            streams: self.pool.known_streams(),
            events: self.device.live_events(),
        }
    }

    /// Runs `live` `first` times, and then `more` times. Sizes go up and down, but the later runs never need
    /// more than the first ones.
    fn assert_nothing_grows(&self, what: &str, first: u64, more: u64, live: impl Fn()) {
        const SAMPLES: u64 = if cfg!(miri) { 2 } else { 37 };
        let most = |lives: u64| {
            let sizes = (0..SAMPLES).map(|_| {
                (0..lives.div_ceil(SAMPLES)).for_each(|_| live());
                self.size()
            });
            sizes.reduce(Size::most).expect("there are samples")
        };
        let (first, second) = (most(first), most(more));
        println!("{what}: at most {first:?}, then {second:?}");
        assert!(second.device_bytes <= first.device_bytes, "{what}");
        assert!(second.streams.max(second.events) <= MOST_KNOWN, "{what}: {second:?}");
        let grown = second.host_bytes - first.host_bytes;
        assert!(grown <= SLACK, "{what}: {grown} bytes more on the host");
    }
}

/// About the most streams whose caches a thread keeps.
const MOST_KNOWN: usize = 1100;

/// The host bytes by which tables may differ.
const SLACK: i64 = 1 << 20;

/// A single test, since all cases count the same host bytes. A thorough run has a million streams and ten
/// thousand threads.
#[test]
fn streams_and_threads_leave_no_trace() {
    for (pages, share) in [(PagesMode::Off, size::of(4, 1)), (PagesMode::On, 10)] {
        let share = if cfg!(miri) { 50_000 } else { share };
        let setup = Setup::new(pages);
        let once = || setup.short_lived_stream(1);
        setup.assert_nothing_grows("streams used once", 300_000 / share, 700_000 / share, once);
        let stream = setup.stream();
        let thread = || std::thread::scope(|scope| _ = scope.spawn(|| setup.work(stream, 8)));
        setup.assert_nothing_grows("threads", 3_000 / share, 7_000 / share, thread);
        // Often enough that each stream gets a front; a thread has several hundred fronts at most.
        let (first, more) = if cfg!(miri) { (2, 2) } else { (3_500, 2_000) };
        setup.assert_nothing_grows("streams used often", first, more, || setup.short_lived_stream(8));
        setup.pool.trim(0).expect("free memory can be returned");
        assert_eq!(setup.pool.pool_bytes(), 0);
    }
}
