//! Tests that foreign code on a pool's slow path may use the pool: upstream, the driver, a callback, and a
//! subscriber of `tracing`, on the same thread or on another that it waits for.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use millpond_adaptors::{FailedRequest, FailureCallbackLayer};
use millpond_core::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Layout, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CallbackMemoryResource, CudaMemoryResource, PagesMode, PoolLayer};
use millpond_testkit::hooked::HookedDriver;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const MIB: u64 = 1 << 20;

/// How foreign code uses a stack.
#[derive(Clone, Copy, Debug)]
enum Use {
    Small,
    Large,
    Trim,
    Ask,
}

const USES: [Use; 4] = [Use::Small, Use::Large, Use::Trim, Use::Ask];

impl Use {
    fn run(self, stack: &AnyResource) {
        match self {
            Self::Small => take_and_give(stack, 256),
            Self::Large => take_and_give(stack, 3 * MIB),
            Self::Trim => _ = stack.trim(0),
            Self::Ask => _ = (stack.statistics(), stack.memory_info(), format!("{stack} {stack:?}")),
        }
    }
}

fn take_and_give(stack: &AnyResource, bytes: u64) {
    if let Ok(ptr) = stack.allocate_bytes(bytes, StreamRef::LEGACY) {
        // SAFETY: the block came from the stack with this size and is freed once.
        unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
    }
}

/// Foreign code: it uses a stack once it knows one, but not from inside itself.
#[derive(Clone)]
struct Foreign {
    stack: Arc<OnceLock<AnyResource>>,
    how: Use,
    on_other_thread: bool,
    runs: Arc<AtomicU64>,
}

impl Foreign {
    fn new(how: Use, on_other_thread: bool) -> Self {
        Self { stack: Arc::default(), how, on_other_thread, runs: Arc::default() }
    }

    fn run(&self) {
        thread_local! { static IS_INSIDE: Cell<bool> = const { Cell::new(false) }; }
        let Some(stack) = self.stack.get() else { return };
        if IS_INSIDE.replace(true) {
            return;
        }
        self.runs.fetch_add(1, Ordering::Relaxed);
        if self.on_other_thread {
            let (stack, how) = (Arc::clone(stack), self.how);
            let other = thread::spawn(move || {
                IS_INSIDE.set(true);
                how.run(&stack);
            });
            other.join().expect("it does not panic");
        } else {
            self.how.run(stack);
        }
        IS_INSIDE.set(false);
    }
}

/// A program on the slow path: it grows, uses other streams' blocks, trims, and runs out of memory.
fn program(stack: &AnyResource) {
    let device = stack.driver();
    let stream = |_| device.stream_create(Default::default()).expect("the device creates streams");
    let streams: Vec<StreamRef> = (0..2).map(stream).collect();
    for round in 0..2 {
        let sizes = [10 * MIB, 1000, 5 * MIB, 12 * MIB, 300];
        let take = |(index, bytes)| stack.allocate_bytes(bytes, streams[index % 2]).map(|ptr| (ptr, bytes));
        let taken: Vec<_> = sizes.into_iter().enumerate().map(take).collect();
        for (index, (ptr, bytes)) in taken.into_iter().enumerate().filter_map(|(i, it)| Some((i, it.ok()?))) {
            // SAFETY: the block came from the stack with this size and is freed once.
            unsafe { stack.deallocate_bytes(ptr, bytes, streams[(index + round) % 2]) };
        }
        take_and_give(stack, 30 * MIB);
        assert!(stack.allocate_bytes(100 * MIB, streams[0]).is_err(), "the device has less");
        if round == 0 {
            stack.trim(0).expect("the device is there");
        }
    }
}

/// Runs a test on a separate thread, and panics if it does not end.
fn within_a_minute(what: &str, test: impl FnOnce() + Send + 'static) {
    let (ended, end) = channel();
    let thread = thread::spawn(move || {
        test();
        _ = ended.send(());
    });
    match end.recv_timeout(Duration::from_secs(60)) {
        Ok(()) => thread.join().expect("it has ended"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: {:?}", thread.join()),
        Err(RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
    }
}

fn each_use(what: &'static str, test: fn(PagesMode, Foreign)) {
    for pages in [PagesMode::On, PagesMode::Off] {
        for how in USES {
            for on_other_thread in [false, true] {
                let what = format!("{what}, {pages}, {how:?}, on another thread: {on_other_thread}");
                within_a_minute(&what, move || test(pages, Foreign::new(how, on_other_thread)));
            }
        }
    }
}

fn run_over(device: &SimDevice, stack: AnyResource, foreign: &Foreign) {
    assert!(foreign.stack.set(Arc::clone(&stack)).is_ok());
    program(&stack);
    assert!(foreign.runs.load(Ordering::Relaxed) > 0, "the foreign code did not run");
    assert_eq!(device.violations(), []);
    let statistics = stack.statistics().expect("a pool has statistics");
    assert_eq!(statistics.bytes_in_use, 0);
}

#[test]
fn a_failure_callback_below_a_pool_may_use_it() {
    each_use("a failure callback", |_, foreign| {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let callback = foreign.clone();
        let layer = FailureCallbackLayer::new(move |_: &FailedRequest<'_>| {
            callback.run();
            false
        });
        let stack = CudaMemoryResource::new(device.clone()).layer(layer).expect("a layer without memory");
        let stack = stack.layer(PoolLayer::new()).expect("an empty pool").into_any();
        run_over(&device, stack, &foreign);
    });
}

#[test]
fn an_upstream_may_use_the_pool_above_it() {
    each_use("an upstream", |_, foreign| {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let base = Arc::new(CudaMemoryResource::new(device.clone()));
        let (takes, gives) = ((Arc::clone(&base), foreign.clone()), (base, foreign.clone()));
        // SAFETY: both functions pass the call to a resource that keeps the contract.
        let upstream = unsafe {
            CallbackMemoryResource::new(
                device.clone(),
                move |layout: Layout, stream| {
                    takes.1.run();
                    takes.0.allocate(layout, stream)
                },
                move |ptr, layout: Layout, stream| {
                    gives.1.run();
                    gives.0.deallocate(ptr, layout, stream);
                },
            )
        };
        let stack = upstream.layer(PoolLayer::new()).expect("an empty pool").into_any();
        run_over(&device, stack, &foreign);
    });
}

#[test]
fn a_driver_may_use_the_pool_above_it() {
    each_use("a driver", |pages, foreign| {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let driver = HookedDriver::new(device.clone());
        let runs = || {
            let foreign = foreign.clone();
            move || foreign.run()
        };
        driver.before_record(runs());
        driver.before_query(runs());
        driver.before_create(runs());
        driver.before_unmap(runs());
        driver.before_free(runs());
        driver.before_get_info(runs());
        let stack = CudaMemoryResource::new(driver).layer(PoolLayer::new().pages(pages));
        run_over(&device, stack.expect("an empty pool").into_any(), &foreign);
    });
}

/// A subscriber that runs foreign code at each event, and at each entry and exit of a span.
struct Subscribes(Foreign);

impl<S: tracing::Subscriber> Layer<S> for Subscribes {
    fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
        self.0.run();
    }

    fn on_enter(&self, _: &tracing::span::Id, _: Context<'_, S>) {
        self.0.run();
    }

    fn on_exit(&self, _: &tracing::span::Id, _: Context<'_, S>) {
        self.0.run();
    }
}

#[test]
fn a_subscriber_may_use_the_pool_that_reports_to_it() {
    each_use("a subscriber", |pages, foreign| {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let subscriber = tracing_subscriber::registry().with(Subscribes(foreign.clone()));
        millpond_testkit::events::heard_by(subscriber, || {
            let stack = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new().pages(pages));
            run_over(&device, stack.expect("an empty pool").into_any(), &foreign);
        });
    });
}

/// From inside a decay step, another step runs and a device is admitted: neither waits for the other.
#[test]
fn a_subscriber_may_make_steps_of_the_decay() {
    within_a_minute("a step of the decay", || {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new().pages(PagesMode::On));
        let pool = Arc::new(pool.expect("an empty pool"));
        struct Steps(Arc<dyn Fn() + Send + Sync>);
        impl<S: tracing::Subscriber> Layer<S> for Steps {
            fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
                (self.0)();
            }
        }
        let (inner, steps) = (Arc::clone(&pool), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&steps);
        let step = move || {
            count.fetch_add(1, Ordering::Relaxed);
            let later = Duration::from_secs(1000 + count.load(Ordering::Relaxed));
            assert_eq!(inner.decay_step(later).expect("the device is there"), 0, "a step is under way");
        };
        let subscriber = tracing_subscriber::registry().with(Steps(Arc::new(step)));
        let any: AnyResource = pool.clone();
        take_and_give(&any, 32 * MIB);
        pool.decay_step(Duration::ZERO).expect("the device is there");
        let released: u64 = millpond_testkit::events::heard_by(subscriber, || {
            (1..100).map(|seconds| pool.decay_step(Duration::from_secs(seconds)).expect("it is there")).sum()
        });
        assert!(released >= 16 * MIB && steps.load(Ordering::Relaxed) > 0, "{released}");
        pool.validate();
    });
}

/// Two pools whose upstreams use each other's pool.
#[test]
fn pools_may_use_each_other() {
    within_a_minute("two pools", || {
        let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
        let foreign = [Foreign::new(Use::Large, true), Foreign::new(Use::Large, true)];
        let pool = |foreign: Foreign| {
            let base = Arc::new(CudaMemoryResource::new(device.clone()));
            let gives = Arc::clone(&base);
            // SAFETY: both functions pass the call to a resource that keeps the contract.
            let upstream = unsafe {
                CallbackMemoryResource::new(
                    device.clone(),
                    move |layout: Layout, stream| {
                        foreign.run();
                        base.allocate(layout, stream)
                    },
                    move |ptr, layout: Layout, stream| gives.deallocate(ptr, layout, stream),
                )
            };
            upstream.layer(PoolLayer::new()).expect("an empty pool").into_any()
        };
        let pools = foreign.clone().map(pool);
        assert!(foreign[0].stack.set(Arc::clone(&pools[1])).is_ok());
        assert!(foreign[1].stack.set(Arc::clone(&pools[0])).is_ok());
        thread::scope(|scope| {
            for pool in &pools {
                scope.spawn(|| (1..8).for_each(|index| take_and_give(pool, index * 5 * MIB)));
            }
        });
        assert!(foreign.iter().all(|it| it.runs.load(Ordering::Relaxed) > 0));
        assert_eq!(device.violations(), []);
    });
}
