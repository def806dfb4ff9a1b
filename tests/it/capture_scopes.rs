//! Replays captured graphs that use a scope's memory while other threads allocate from the same stack, and
//! checks the contents of all blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond::driver::cuda::{CudaDriver, GraphExec};
use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::driver::{CaptureMode, CaptureModeGuard, DriverResult, StreamFlags};
use millpond::resources::CaptureScope;
use millpond::stack::StackSpec;
use millpond::{AnyResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef};
use millpond_testkit::Rng;

const STACKS: [&str; 3] =
    ["cuda+pool:pages=on+capture_scopes", "cuda+pool:pages=off+capture_scopes", "cuda_async+capture_scopes"];
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
const REPLAYS: u64 = 1000;
/// The content of blocks that no graph writes.
const HELD: u8 = 0x55;
const SECOND: u8 = 0xEE;

/// A device that captures graphs.
#[derive(Clone)]
enum Rig {
    Sim(Arc<SimDevice>),
    Cuda(Arc<CudaDriver>),
}

/// Work in a graph.
#[derive(Clone, Copy)]
enum Op {
    Fill(DevicePtr, u8, u64),
    /// From, to, bytes.
    Copy(DevicePtr, DevicePtr, u64),
}

/// Captures work.
type Submit<'a> = dyn FnMut(Op) + 'a;

/// A captured graph. The simulated device keeps no graph: there, the same work is submitted again.
enum Graph {
    Sim(Vec<Op>),
    Cuda(GraphExec),
}

impl Rig {
    fn driver(&self) -> DriverHandle {
        match self {
            Self::Sim(device) => device.clone(),
            Self::Cuda(driver) => driver.clone(),
        }
    }

    fn submit(&self, op: Op, stream: StreamRef) -> DriverResult<()> {
        let driver = self.driver();
        // SAFETY: every caller names live blocks with their sizes, ordered for the stream. The canary's
        // graphs use memory with other owners on purpose.
        unsafe {
            match op {
                Op::Fill(ptr, value, bytes) => driver.memset_d8_async(ptr, value, bytes, stream),
                Op::Copy(from, to, bytes) => driver.memcpy_dtod_async(to, from, bytes, stream),
            }
        }
    }

    fn fill(&self, ptr: DevicePtr, value: u8, bytes: u64, stream: StreamRef) {
        self.submit(Op::Fill(ptr, value, bytes), stream).expect("the block is alive");
    }

    /// Captures the work that `act` submits through its argument.
    fn capture(&self, stream: StreamRef, mode: CaptureMode, act: impl FnOnce(&mut Submit<'_>)) -> Graph {
        let mut ops = Vec::new();
        let mut record = |op| {
            self.submit(op, stream).expect("the block is alive");
            ops.push(op);
        };
        let begun: DriverResult<()> = match self {
            Self::Sim(device) => device.begin_capture(stream, mode),
            Self::Cuda(driver) => driver.begin_capture(stream, mode),
        };
        begun.expect("nothing is captured yet");
        act(&mut record);
        match self {
            Self::Sim(device) => {
                device.end_capture(stream).expect("the capture goes on to its end");
                Graph::Sim(ops)
            }
            Self::Cuda(driver) => {
                let graph = driver.end_capture(stream).expect("the capture goes on to its end");
                let (nodes, of_memory) = graph.node_counts().expect("the graph is alive");
                assert_eq!((nodes, of_memory), (ops.len(), 0), "the work and nothing else, {mode:?}");
                Graph::Cuda(graph.instantiate().expect("the graph can run"))
            }
        }
    }

    fn launch(&self, graph: &Graph, stream: StreamRef) -> DriverResult<()> {
        match graph {
            Graph::Sim(ops) => ops.iter().try_for_each(|op| self.submit(*op, stream)),
            // SAFETY: the scope lives; all graphs, and all work that reads their results, run on this stream.
            Graph::Cuda(exec) => unsafe { exec.launch(stream) },
        }
    }

    /// Returns how many bytes of a block are not `value`, after all work on the stream.
    fn wrong_bytes(&self, ptr: DevicePtr, bytes: u64, value: u8, stream: StreamRef) -> usize {
        let driver = self.driver();
        let mut found = vec![!value; bytes as usize];
        // SAFETY: the block is alive with this size, and the host waits before it reads.
        unsafe { driver.memcpy_dtoh_async(found.as_mut_ptr(), ptr, bytes, stream) }.expect("it is copied");
        driver.stream_synchronize(stream).expect("the device works");
        found.iter().filter(|byte| **byte != value).count()
    }
}

fn give(stack: &AnyResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: every caller frees a block once, with its size, after its uses on the stream.
    unsafe { stack.deallocate_bytes(ptr, bytes, stream) }
}

/// Allocates, fills, checks and frees its own blocks until `done`; returns the number of wrong bytes.
fn churn(
    rig: &Rig,
    stack: &AnyResource,
    bytes: u64,
    seed: u64,
    done: &AtomicBool,
    turns: &AtomicU64,
) -> usize {
    let driver = rig.driver();
    // The test's own driver calls must not end a capture either.
    let _captures = CaptureModeGuard::relaxed(&*driver);
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
    let (mut random, mut wrong) = (Rng::new(seed), 0);
    while !done.load(Ordering::Relaxed) {
        let value = random.below(256) as u8;
        let sizes: Vec<u64> = (0..4).map(|_| 1 + random.below(3 * bytes)).collect();
        let take = |bytes| stack.allocate_bytes(bytes, stream).expect("there is memory");
        let blocks: Vec<_> = sizes.into_iter().map(|bytes| (take(bytes), bytes)).collect();
        blocks.iter().for_each(|(ptr, bytes)| rig.fill(*ptr, value, *bytes, stream));
        for (ptr, bytes) in blocks {
            wrong += rig.wrong_bytes(ptr, bytes, value, stream);
            give(stack, ptr, bytes, stream);
        }
        turns.fetch_add(1, Ordering::Relaxed);
    }
    wrong
}

/// Captures two graphs and replays them; the second graph reads the first graph's results. Returns the number
/// of wrong bytes in the graphs' results and in others' blocks.
fn replay(rig: &Rig, text: &str, mode: CaptureMode, bytes: u64, has_scope: bool, threads: u64) -> usize {
    let driver = rig.driver();
    let stack = text.parse::<StackSpec>().expect("the text is right").build(&millpond::layers(), &driver);
    let stack = stack.expect("there is memory");
    let s = driver.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
    let take = |bytes| stack.allocate_bytes(bytes, s).expect("there is memory");
    let input = take(bytes);
    let (done, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    let wrong = std::thread::scope(|scope| {
        let churns: Vec<_> = (0..threads)
            .map(|seed| {
                let (stack, done, turns) = (&stack, &done, &turns);
                scope.spawn(move || churn(rig, stack, bytes, seed, done, turns))
            })
            .collect();
        while turns.load(Ordering::Relaxed) < threads {
            std::thread::yield_now();
        }
        let wrong = replay_beside(rig, &stack, mode, bytes, has_scope, s, input);
        done.store(true, Ordering::Relaxed);
        wrong + churns.into_iter().map(|churn| churn.join().expect("no thread panics")).sum::<usize>()
    });
    give(&stack, input, bytes, s);
    wrong
}

fn replay_beside(
    rig: &Rig,
    stack: &AnyResource,
    mode: CaptureMode,
    bytes: u64,
    has_scope: bool,
    s: StreamRef,
    input: DevicePtr,
) -> usize {
    let take = |bytes| stack.allocate_bytes(bytes, s).expect("there is memory");
    let scope = has_scope.then(|| CaptureScope::of(stack).expect("the layer is there"));
    let captured = |act: &dyn Fn(&mut Submit<'_>)| {
        let opened = scope.as_ref().map(|scope| scope.begin(s).expect("the stream is open nowhere"));
        let graph = rig.capture(s, mode, act);
        (graph, opened.map(|opened| opened.end().len()))
    };
    let [a, b, c] = [(); 3].map(|()| std::cell::Cell::new(DevicePtr::NULL));
    let (first, left) = captured(&|submit| {
        let scratch = take(bytes);
        submit(Op::Copy(input, scratch, bytes));
        a.set(take(bytes));
        submit(Op::Copy(scratch, a.get(), bytes));
        give(stack, scratch, bytes, s);
        let scratch = take(2 * bytes);
        submit(Op::Fill(scratch, SECOND, 2 * bytes));
        b.set(take(2 * bytes));
        submit(Op::Copy(scratch, b.get(), 2 * bytes));
        give(stack, scratch, 2 * bytes, s);
    });
    assert_eq!(left, has_scope.then_some(2));
    let (second, left) = captured(&|submit| {
        let scratch = take(bytes);
        submit(Op::Copy(a.get(), scratch, bytes));
        c.set(take(bytes));
        submit(Op::Copy(scratch, c.get(), bytes));
        give(stack, scratch, bytes, s);
    });
    assert_eq!(left, has_scope.then_some(1));

    let mut wrong = 0;
    let driver = rig.driver();
    let _captures = CaptureModeGuard::relaxed(&*driver);
    for round in 0..REPLAYS {
        // Between launches, other work uses the stream.
        let held = [bytes, 2 * bytes].map(|bytes| (take(bytes), bytes));
        held.iter().for_each(|(ptr, bytes)| rig.fill(*ptr, HELD, *bytes, s));
        let value = round as u8;
        rig.fill(input, value, bytes, s);
        // A graph cannot run if its memory went back to the driver.
        wrong += [&first, &second].into_iter().filter(|graph| rig.launch(graph, s).is_err()).count();
        wrong += rig.wrong_bytes(a.get(), bytes, value, s);
        wrong += rig.wrong_bytes(b.get(), 2 * bytes, SECOND, s);
        wrong += rig.wrong_bytes(c.get(), bytes, value, s);
        for (ptr, bytes) in held {
            wrong += rig.wrong_bytes(ptr, bytes, HELD, s);
            give(stack, ptr, bytes, s);
        }
    }
    for (ptr, bytes) in [(a, bytes), (b, 2 * bytes), (c, bytes)] {
        give(stack, ptr.get(), bytes, s);
    }
    if let Some(scope) = scope {
        assert_eq!(scope.memory().blocks, 0);
    }
    wrong
}

/// Frees a scope's block, which work outside of captures uses, while its stream captures. The block goes back
/// to the scope, and another stream takes a block there. Returns that block's wrong bytes.
fn take_after_captured_free(rig: &Rig, text: &str, second_captures: bool, bytes: u64) -> usize {
    let driver = rig.driver();
    let stack = text.parse::<StackSpec>().expect("the text is right").build(&millpond::layers(), &driver);
    let stack = stack.expect("there is memory");
    let [s, t] = [(); 2].map(|()| driver.stream_create(StreamFlags::NON_BLOCKING).expect("a stream"));
    let scope = CaptureScope::of(&stack).expect("the layer is there");
    let take = |bytes, stream| stack.allocate_bytes(bytes, stream).expect("there is memory");
    // This work keeps the stream behind the host for a while.
    let long = 256 * bytes;
    let busy = take(long, s);
    let opened = scope.begin(s).expect("the stream is open nowhere");
    let input = take(bytes, s);
    (0..200).for_each(|round| rig.fill(busy, round, long, s));
    rig.fill(input, HELD, bytes, s);
    rig.capture(s, CaptureMode::ThreadLocal, |_| give(&stack, input, bytes, s));
    drop(opened);

    let opened = scope.begin(t).expect("the stream is open nowhere");
    let next = std::cell::Cell::new(DevicePtr::NULL);
    if second_captures {
        let graph = rig.capture(t, CaptureMode::ThreadLocal, |submit| {
            next.set(take(bytes, t));
            submit(Op::Fill(next.get(), SECOND, bytes));
        });
        rig.launch(&graph, t).expect("the graph's memory is alive");
    } else {
        next.set(take(bytes, t));
        rig.fill(next.get(), SECOND, bytes, t);
    }
    driver.stream_synchronize(t).expect("the device works");
    driver.stream_synchronize(s).expect("the device works");
    let wrong = rig.wrong_bytes(next.get(), bytes, SECOND, t);
    give(&stack, next.get(), bytes, t);
    drop(opened);
    give(&stack, busy, long, s);
    wrong
}

fn assert_earlier_work_is_done(rig: &Rig, bytes: u64) {
    for text in STACKS {
        for second_captures in [false, true] {
            let wrong = take_after_captured_free(rig, text, second_captures, bytes);
            assert_eq!(wrong, 0, "{text}, the second stream captures: {second_captures}");
        }
    }
}

fn sim() -> (Arc<SimDevice>, Rig) {
    let device = SimDevice::new(SimConfig::with_capacity(512 << 20));
    (device.clone(), Rig::Sim(device))
}

#[test]
fn replayed_graphs_and_others_keep_their_contents() {
    for text in STACKS {
        for mode in MODES {
            let (device, rig) = sim();
            assert_eq!(replay(&rig, text, mode, 3000, true, 3), 0, "{text}, {mode:?}");
            assert_eq!(device.take_violations(), [], "{text}, {mode:?}");
            assert_eq!(device.live_bytes(), 0, "{text}, {mode:?}");
        }
    }
}

/// The canary: without a scope, a graph shares memory with others, and the test notices.
#[test]
fn graphs_without_a_scope_are_caught() {
    for text in STACKS {
        let (_device, rig) = sim();
        assert_ne!(replay(&rig, text, CaptureMode::Global, 3000, false, 0), 0, "{text}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn replayed_graphs_of_a_gpu_and_others_keep_their_contents() {
    let driver = CudaDriver::open(0).expect("a CUDA GPU");
    let rig = Rig::Cuda(driver);
    for text in STACKS {
        for mode in MODES {
            assert_eq!(replay(&rig, text, mode, 300_000, true, 4), 0, "{text}, {mode:?}");
            println!("{text}, {mode:?}: {REPLAYS} replays of two graphs");
        }
    }
}

#[test]
fn a_block_freed_in_a_capture_waits_for_its_earlier_work() {
    let (device, rig) = sim();
    assert_earlier_work_is_done(&rig, 3000);
    assert_eq!(device.take_violations(), []);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_block_freed_in_a_capture_waits_for_its_earlier_work_on_a_gpu() {
    let driver = CudaDriver::open(0).expect("a CUDA GPU");
    assert_earlier_work_is_done(&Rig::Cuda(driver), 1 << 20);
}
