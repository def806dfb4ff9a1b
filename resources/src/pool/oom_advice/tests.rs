//! Tests the advice of out-of-memory reports: repeats the steps and follows the advice. Then the request must
//! succeed. Wrong reports must fail that test.

mod merged;
mod others;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use millpond_core::driver::{CaptureMode, CaptureModeGuard, StreamFlags};
use millpond_core::{
    DeviceMemoryResource, DevicePtr, Driver, DriverError, Error, Layout, LiveBlock, OutOfMemoryReport,
    Remedy, RemedyAction, StreamRef,
};
use millpond_driver::CallKind;
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::driver_memory::CudaMemoryResource;
use crate::pool::{PagesMode, PoolMemoryResource, PoolOptions};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;
const STREAMS: usize = 3;

/// A device and a pool on it.
#[derive(Clone, Copy, Debug)]
struct Setup {
    capacity: u64,
    /// Bytes allocated outside the pool.
    elsewhere: u64,
    maximum: Option<u64>,
    pages: PagesMode,
    /// Whether the device refuses memory that it has.
    lies: bool,
}

impl Setup {
    const fn of(capacity: u64, pages: PagesMode) -> Self {
        Self { capacity, elsewhere: 0, maximum: None, pages, lies: false }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take {
        bytes: u64,
        alignment: u64,
        stream: usize,
    },
    /// Frees a live block, by its number.
    Free {
        number: usize,
        stream: usize,
    },
    Capture {
        stream: usize,
        capturing: bool,
    },
    /// Frees the block of this size.
    FreeOfSize {
        bytes: u64,
        stream: usize,
    },
}

const fn take(bytes: u64, stream: usize) -> Step {
    Step::Take { bytes, alignment: 256, stream }
}

const fn free(number: usize, stream: usize) -> Step {
    Step::Free { number, stream }
}

/// A request that failed.
#[derive(Clone, Copy, Debug)]
struct Failed {
    layout: Layout,
    stream: StreamRef,
}

struct World {
    device: Arc<SimDevice>,
    pool: PoolMemoryResource<CudaMemoryResource>,
    streams: Vec<StreamRef>,
    live: BTreeMap<u64, u64>,
    elsewhere: Vec<DevicePtr>,
}

impl World {
    fn new(setup: Setup) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(setup.capacity));
        let stream = |_| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let streams = (0..STREAMS).map(stream).collect();
        let pieces = setup.elsewhere / PAGE;
        let elsewhere = (0..pieces).map(|_| device.mem_alloc(PAGE).expect("there is room")).collect();
        if setup.lies {
            let plan = FaultPlan::nth_of(CallKind::MemCreate, 0, DriverError::OUT_OF_MEMORY);
            device.set_faults(plan.persistent());
        }
        let options =
            PoolOptions { maximum_bytes: setup.maximum, pages: setup.pages, ..PoolOptions::default() };
        let upstream = CudaMemoryResource::new(Arc::clone(&device) as _);
        let pool = PoolMemoryResource::new(upstream, options).expect("a pool");
        Self { device, pool, streams, live: BTreeMap::new(), elsewhere }
    }

    /// Runs the steps until a request fails after `skip` earlier failures; returns that request and its
    /// error.
    fn run(&mut self, steps: &[Step], mut skip: usize) -> Option<(Failed, Error)> {
        for step in steps {
            match *step {
                Step::Take { bytes, alignment, stream } => {
                    let layout = Layout::with_alignment(bytes, alignment).expect("a power of two");
                    let failed = Failed { layout, stream: self.streams[stream] };
                    match self.take(failed) {
                        Ok(ptr) => _ = self.live.insert(ptr.address(), bytes),
                        Err(error) if skip == 0 => return Some((failed, error)),
                        Err(_) => skip -= 1,
                    }
                }
                Step::Free { number, stream } if !self.live.is_empty() => {
                    let number = number % self.live.len();
                    let address = *self.live.keys().nth(number).expect("there are as many");
                    self.free(address, self.streams[stream]);
                }
                Step::Free { .. } => {}
                Step::FreeOfSize { bytes, stream } => {
                    let found = self.live.iter().find(|(_, live)| **live == bytes);
                    let address = *found.expect("there is one").0;
                    self.free(address, self.streams[stream]);
                }
                Step::Capture { stream, capturing } => {
                    self.set_capturing(self.streams[stream], capturing);
                }
            }
        }
        None
    }

    fn take(&self, Failed { layout, stream }: Failed) -> Result<DevicePtr, Error> {
        let outcome = self.pool.allocate(layout, stream);
        if let Err(error) = &outcome {
            assert!(error.is_out_of_memory(), "{error}");
        }
        outcome
    }

    fn free(&mut self, address: u64, stream: StreamRef) {
        let bytes = self.live.remove(&address).expect("a report names live blocks");
        // SAFETY: the block came from the pool with this size and is freed once; nothing uses it.
        unsafe { self.pool.deallocate(DevicePtr::new(address), Layout::new(bytes), stream) };
    }

    fn end_captures(&mut self) {
        self.streams.iter().for_each(|stream| self.set_capturing(*stream, false));
    }

    /// Begins or ends a capture. Panics if a call of the pool broke the capture.
    fn set_capturing(&self, stream: StreamRef, capturing: bool) {
        match (self.device.stream_is_capturing(stream), capturing) {
            (Ok(false), true) => self.device.begin_capture(stream, CaptureMode::Global),
            (Ok(true), false) => self.device.end_capture(stream),
            (answer, _) => answer.map(|_| ()),
        }
        .expect("the capture is still valid");
    }

    /// Follows the advice of a report.
    fn follow(&mut self, action: &RemedyAction, failed: Failed) {
        match action {
            RemedyAction::WaitForStream { .. } | RemedyAction::MergeStreams { .. } => self.end_captures(),
            RemedyAction::RaiseMaximum { bytes } => {
                self.pool.central.with_heaps(|heaps| {
                    heaps.maximum_bytes += bytes;
                    heaps.most_bytes += bytes;
                    heaps.store.raise_maximum(*bytes);
                });
            }
            RemedyAction::FreeDeviceMemory { bytes, held_bytes } => {
                assert!(bytes <= held_bytes, "the report asks for more than others hold");
                let _captures = CaptureModeGuard::relaxed(&*self.device);
                let free = || self.device.mem_get_info().expect("a device").free;
                let enough = free() + bytes;
                while free() < enough {
                    let ptr = self.elsewhere.pop().expect("others hold as much as the report says");
                    // SAFETY: the memory came from the device, and nothing uses it.
                    unsafe { self.device.mem_free(ptr) }.expect("it was taken");
                }
            }
            RemedyAction::FreeBlocks { number, bytes, blocks } => {
                assert_eq!(*number, blocks.len() as u64, "a report names all of a few blocks");
                assert_eq!(*bytes, blocks.iter().map(|block| block.bytes).sum::<u64>());
                for LiveBlock { address, bytes } in blocks {
                    assert_eq!(self.live.get(address), Some(bytes), "a report names live blocks");
                    self.free(*address, failed.stream);
                }
            }
            other => panic!("{other} is for another run"),
        }
    }
}

/// The steps up to a request that failed, which a test can repeat.
#[derive(Clone, Debug)]
struct Story {
    setup: Setup,
    steps: Vec<Step>,
    /// The number of earlier requests that failed.
    earlier: usize,
}

impl Story {
    fn tell(&self) -> Option<(World, Failed, OutOfMemoryReport)> {
        let mut world = World::new(self.setup);
        let (failed, error) = world.run(&self.steps, self.earlier)?;
        let report = error.out_of_memory_report().expect("a pool reports").clone();
        Some((world, failed, report))
    }

    /// The report of a request that must fail.
    fn report(&self) -> OutOfMemoryReport {
        self.tell().expect("the last step is to fail").2
    }

    /// Checks that all advice is true.
    fn check(&self, report: &OutOfMemoryReport) -> Result<(), String> {
        for remedy in report.remedies.iter().filter(|remedy| remedy.suffices) {
            self.try_out(std::slice::from_ref(remedy))?;
        }
        let is_part =
            |remedy: &&Remedy| !remedy.suffices && !matches!(remedy.action, RemedyAction::MapPages { .. });
        let together: Vec<Remedy> = report.remedies.iter().filter(is_part).cloned().collect();
        if together.is_empty() { Ok(()) } else { self.try_out(&together) }
    }

    /// Checks that the request succeeds after all of this advice is followed.
    fn try_out(&self, remedies: &[Remedy]) -> Result<(), String> {
        let (mut world, failed, _) = self.tell().expect("it failed before");
        remedies.iter().for_each(|remedy| world.follow(&remedy.action, failed));
        let outcome = world.take(failed).map(|_| world.pool.validate());
        outcome.map_err(|error| format!("followed {remedies:?} in vain: {error}"))
    }
}

/// Returns the bytes that a request takes from the pool's maximum and from the device, if no free block
/// serves it.
fn needed(layout: Layout, over_pages: bool) -> (u64, u64) {
    let exact = layout.bytes().next_multiple_of(256);
    let padded = exact + layout.alignment() - 256;
    if over_pages {
        let pages = if layout.alignment() <= PAGE { exact } else { padded }.next_multiple_of(PAGE);
        return (pages, pages);
    }
    (padded, padded.next_multiple_of(512))
}

/// Checks that a request failed only because the device or the pool's maximum has too little.
fn check_failure(story: &Story) -> Result<(), String> {
    let (world, failed, report) = story.tell().expect("it failed before");
    let (_, _, again) = story.tell().expect("it failed before");
    assert_eq!(report, again, "the same happens each time");
    let over_pages = story.setup.pages == PagesMode::On;
    let (of_limit, of_device) = needed(failed.layout, over_pages);
    let free = world.device.mem_get_info().expect("a device").free;
    let maximum = story.setup.maximum.unwrap_or(u64::MAX);
    let within_limit = world.pool.pool_bytes() + of_limit <= maximum;
    if within_limit && of_device <= free {
        return Err(format!("{of_device} bytes are needed, {free} are free on the device: {report}"));
    }
    assert_eq!(report.device.expect("the device was asked").free, free);
    assert_eq!(report.held_bytes, world.pool.pool_bytes());
    assert_eq!(report.live_blocks, Some(world.live.len() as u64));
    if report.is_capturing {
        return Ok(());
    }
    // If anything helps, then freeing all blocks does, so the report must name some.
    let names_blocks = |remedy: &Remedy| matches!(remedy.action, RemedyAction::FreeBlocks { .. });
    let there_is = (story.setup.capacity - story.setup.elsewhere).min(maximum);
    if of_device.next_multiple_of(PAGE) <= there_is && !report.remedies.iter().any(names_blocks) {
        return Err(format!("{there_is} bytes could be free, and the report names no block: {report}"));
    }
    world.pool.trim(0).map_err(|error| error.to_string())?;
    match world.take(failed) {
        Ok(_) => Err(format!("the request succeeds after a trim: {report}")),
        Err(_) => Ok(()),
    }
}

fn setups() -> impl Strategy<Value = Setup> {
    let pages = prop_oneof![Just(PagesMode::On), Just(PagesMode::Off)];
    (8..48u64, 0..12u64, prop::option::of(4..40u64), pages).prop_map(
        |(capacity, elsewhere, maximum, pages)| {
            let capacity = capacity * PAGE;
            let elsewhere = (elsewhere * 3 * MIB / 4).min(capacity / 2) / PAGE * PAGE;
            let maximum = maximum.map(|pages| (pages * PAGE - 256 * pages).min(capacity));
            Setup { capacity, elsewhere, maximum, pages, lies: false }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![
        2 => 1..4096u64,
        3 => 4096..300_000u64,
        4 => 300_000..(3 * MIB),
        3 => (3 * MIB)..(20 * MIB),
    ];
    let alignment = prop_oneof![8 => Just(256u64), 1 => (9..23u32).prop_map(|log2| 1 << log2)];
    let step = prop_oneof![
        8 => (bytes, alignment, 0..STREAMS)
            .prop_map(|(bytes, alignment, stream)| Step::Take { bytes, alignment, stream }),
        5 => (any::<usize>(), 0..STREAMS).prop_map(|(number, stream)| Step::Free { number, stream }),
        1 => (0..STREAMS, any::<bool>()).prop_map(|(stream, capturing)| Step::Capture { stream, capturing }),
    ];
    prop::collection::vec(step, 20..if cfg!(miri) { 30 } else { 200 })
}

/// Random steps on small devices: each request that fails had to fail, and all advice is true.
#[test]
fn all_advice_is_true() {
    let cases = std::env::var("MILLPOND_SHORTAGES").ok().and_then(|cases| cases.parse().ok());
    let config = ProptestConfig {
        cases: cases.unwrap_or(if cfg!(miri) { 1 } else { 300 }),
        source_file: (!cfg!(miri)).then_some(file!()), // earlier failures take Miri hours
        ..ProptestConfig::default()
    };
    let seen: RefCell<BTreeMap<&str, u32>> = RefCell::default();
    let outcome = TestRunner::new(config).run(&(setups(), steps()), |(setup, steps)| {
        for earlier in 0..3 {
            let story = Story { setup, steps: steps.clone(), earlier };
            let Some((_, _, report)) = story.tell() else { break };
            check_failure(&story).map_err(TestCaseError::fail)?;
            story.check(&report).map_err(TestCaseError::fail)?;
            let name = |remedy: &Remedy| name(&remedy.action, remedy.suffices);
            report.remedies.iter().map(name).for_each(|it| *seen.borrow_mut().entry(it).or_default() += 1);
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    println!("{seen:?}");
    let all = ["wait", "merge", "raise", "raise and", "elsewhere", "elsewhere and", "blocks", "pages"];
    let missing: Vec<&str> = all.into_iter().filter(|it| !seen.borrow().contains_key(it)).collect();
    assert!(missing.is_empty() || cfg!(miri), "never seen: {missing:?}");
}

fn name(action: &RemedyAction, suffices: bool) -> &'static str {
    match (action, suffices) {
        (RemedyAction::WaitForStream { .. }, _) => "wait",
        (RemedyAction::MergeStreams { .. }, _) => "merge",
        (RemedyAction::RaiseMaximum { .. }, true) => "raise",
        (RemedyAction::RaiseMaximum { .. }, false) => "raise and",
        (RemedyAction::FreeDeviceMemory { .. }, true) => "elsewhere",
        (RemedyAction::FreeDeviceMemory { .. }, false) => "elsewhere and",
        (RemedyAction::FreeBlocks { .. }, _) => "blocks",
        (RemedyAction::MapPages { .. }, _) => "pages",
        _ => "other",
    }
}

fn story(setup: Setup, steps: &[Step]) -> Story {
    Story { setup, steps: steps.to_vec(), earlier: 0 }
}

fn regions() -> Setup {
    Setup::of(64 * MIB, PagesMode::Off)
}

fn pages() -> Setup {
    Setup::of(64 * MIB, PagesMode::On)
}

/// Returns the names of the advice, in the order of the report.
fn advice(report: &OutOfMemoryReport) -> Vec<&'static str> {
    report.remedies.iter().map(|remedy| name(&remedy.action, remedy.suffices)).collect()
}

/// Fills the device with blocks of 16 MiB; then streams free some, and the first stream captures.
fn captured(given: &[Step], then: u64) -> Vec<Step> {
    let mut steps = vec![take(16 * MIB, 0), take(16 * MIB, 1), take(16 * MIB, 2), take(16 * MIB, 0)];
    steps.extend(given);
    steps.extend([Step::Capture { stream: 0, capturing: true }, take(then, 0)]);
    steps
}

#[test]
fn during_a_capture_the_report_names_streams_with_a_fit() {
    for setup in [regions(), pages()] {
        let one = story(setup, &captured(&[free(1, 1)], 16 * MIB));
        let report = one.report();
        assert!(report.is_capturing);
        assert_eq!(advice(&report)[0], "wait", "{report}");
        one.check(&report).unwrap();
        // Two neighbours belong to two streams, and neither is enough.
        let two = story(setup, &captured(&[free(1, 1), free(1, 2)], 32 * MIB));
        let report = two.report();
        assert_eq!(advice(&report)[0], "merge", "{report}");
        two.check(&report).unwrap();
        // Outside a capture, the pool waits by itself.
        let steps = [take(40 * MIB, 1), free(0, 1), take(40 * MIB, 0), take(40 * MIB, 0)];
        let report = story(setup, &steps).report();
        assert!(advice(&report).iter().all(|it| !["wait", "merge"].contains(it)), "{report}");
        // Waiting for a stream that has too little does not help either.
        let little = story(setup, &captured(&[free(1, 1)], 17 * MIB));
        let report = little.report();
        assert!(advice(&report).iter().all(|it| !["wait", "merge"].contains(it)), "{report}");
        let end = Remedy::merge_streams(0);
        little.try_out(&[end]).unwrap_err();
    }
}

#[test]
fn the_maximum_is_raised_by_what_is_missing_and_no_less() {
    for setup in [regions(), pages()] {
        let setup = Setup { maximum: Some(20 * MIB), ..setup };
        let short = story(setup, &[take(16 * MIB, 0), take(10 * MIB, 1)]);
        let report = short.report();
        assert_eq!((advice(&report)[0], report.short_bytes), ("raise", Some(6 * MIB)), "{report}");
        short.check(&report).unwrap();
        short.try_out(&[Remedy::raise_maximum(6 * MIB - 256, true)]).unwrap_err();
        // If the device also has too little, both remedies are needed, as far as others hold the rest.
        let full = Setup { elsewhere: 42 * MIB, ..setup };
        let both = story(full, &[take(16 * MIB, 0), take(10 * MIB, 1)]);
        let report = both.report();
        assert_eq!(advice(&report)[..2], ["raise and", "elsewhere and"], "{report}");
        both.check(&report).unwrap();
        report.remedies[..2]
            .iter()
            .for_each(|remedy| _ = both.try_out(std::slice::from_ref(remedy)).unwrap_err());
        // The request exceeds the device: nothing helps.
        let report = story(setup, &[take(65 * MIB, 0)]).report();
        assert!(report.remedies.is_empty(), "{report}");
        assert!(report.to_string().contains("the device has 64MiB in all: request less"), "{report}");
    }
}

#[test]
fn others_free_what_is_missing_and_no_less() {
    for setup in [regions(), pages()] {
        let setup = Setup { elsewhere: 30 * MIB, ..setup };
        let short = story(setup, &[take(20 * MIB, 0), take(20 * MIB, 1)]);
        let report = short.report();
        assert_eq!((advice(&report)[0], report.short_bytes), ("elsewhere", Some(6 * MIB)), "{report}");
        short.check(&report).unwrap();
        let less = Remedy::free_device_memory(6 * MIB - PAGE, 30 * MIB, true);
        short.try_out(&[less]).unwrap_err();
        // Others have less than that.
        let alone = Setup { elsewhere: 2 * PAGE, ..setup };
        let report = story(alone, &[take(50 * MIB, 0), take(20 * MIB, 1)]).report();
        assert_eq!(advice(&report), ["blocks"], "{report}");
    }
}

/// Leaves two free extents, of 8 and 6 MiB, with a small block between them and a large one after them, in
/// one region.
fn free_extents(then: u64) -> [Step; 9] {
    let free = |bytes, stream| Step::FreeOfSize { bytes: bytes * MIB, stream };
    let take = |bytes| take(bytes * MIB, 0);
    let (left, between, right, rest) = (take(8), take(2), take(6), take(48));
    let then = Step::Take { bytes: then, alignment: 256, stream: 1 };
    [take(64), free(64, 0), left, between, right, rest, free(8, 1), free(6, 2), then]
}

fn named(report: &OutOfMemoryReport) -> Vec<LiveBlock> {
    let blocks = report.remedies.iter().filter_map(|remedy| match &remedy.action {
        RemedyAction::FreeBlocks { blocks, .. } => Some(blocks.clone()),
        _ => None,
    });
    blocks.flatten().collect()
}

#[test]
fn the_block_between_two_free_extents_is_named() {
    for setup in [regions(), pages()] {
        let free_extents = story(setup, &free_extents(16 * MIB));
        let report = free_extents.report();
        let sizes: Vec<u64> = named(&report).iter().map(|block| block.bytes).collect();
        assert_eq!(sizes, [2 * MIB], "{report}");
        free_extents.check(&report).unwrap();
    }
}

#[test]
fn pages_are_advised_where_enough_lie_apart() {
    let apart = story(regions(), &free_extents(12 * MIB));
    let report = apart.report();
    let advised = |report: &OutOfMemoryReport| advice(report).contains(&"pages");
    assert!(report.remedies.contains(&Remedy::map_pages(6, PAGE)), "{report}");
    apart.check(&report).unwrap();
    assert!(story(pages(), &free_extents(12 * MIB)).tell().is_none(), "with pages=on the same steps succeed");
    let too_few = story(regions(), &free_extents(16 * MIB));
    assert!(!advised(&too_few.report()), "{}", too_few.report());
    assert!(story(pages(), &free_extents(16 * MIB)).tell().is_some(), "with pages=on they fail, too");
}

#[test]
fn small_blocks_that_keep_a_span_are_named() {
    for setup in [regions(), pages()] {
        let setup = Setup { capacity: 8 * MIB, ..setup };
        // A few small blocks stay in their spans.
        let mut steps = vec![take(64 << 10, 0); 120];
        steps.extend((0..100).map(|_| free(1, 0)));
        steps.push(take(7 * MIB, 0));
        let story = story(setup, &steps);
        let report = story.report();
        assert!(named(&report).iter().all(|block| block.bytes == 64 << 10), "{report}");
        assert!(!named(&report).is_empty(), "{report}");
        story.check(&report).unwrap();
    }
}

/// A region below a page counts as the page that returns with it, and two regions in one page count once.
#[test]
fn regions_below_a_page_count_as_the_page_that_returns_with_them() {
    let setup = Setup { elsewhere: PAGE, maximum: Some(22 * MIB - 2816), ..regions() };
    let setup = Setup { capacity: 22 * MIB, ..setup };
    let filled = [17_760_257, 1_113_857, 1_113_856, 981_760, 1024].map(|bytes| take(bytes, 0));
    for (blocks, then, named_blocks) in [(2, 18 * MIB + 1, 2), (5, 18 * MIB + 1, 5), (5, 20 * MIB + 1, 0)] {
        let short = story(setup, &[&filled[..blocks], &[take(then, 0)]].concat());
        let report = short.report();
        assert!(report.held_bytes < 20 * MIB && named(&report).len() == named_blocks, "{report}");
        short.check(&report).unwrap();
        check_failure(&short).unwrap();
    }
}

/// The test finds wrong reports.
#[test]
fn wrong_reports_are_found_out() {
    let wrong = |story: &Story, change: &dyn Fn(&mut RemedyAction)| {
        let mut report = story.report();
        story.check(&report).expect("the report is right");
        let before = report.clone();
        report.remedies.iter_mut().for_each(|remedy| change(&mut remedy.action));
        assert_ne!(report, before, "{report}");
        story.check(&report).expect_err("the report is wrong");
    };
    for setup in [regions(), pages()] {
        let limited = Setup { maximum: Some(20 * MIB), ..setup };
        wrong(&story(limited, &[take(16 * MIB, 0), take(10 * MIB, 1)]), &|action| {
            if let RemedyAction::RaiseMaximum { bytes } = action {
                *bytes -= 256;
            }
        });
        let full = Setup { elsewhere: 30 * MIB, ..setup };
        wrong(&story(full, &[take(20 * MIB, 0), take(20 * MIB, 1)]), &|action| {
            if let RemedyAction::FreeDeviceMemory { bytes, .. } = action {
                *bytes -= PAGE;
            }
        });
        wrong(&story(setup, &free_extents(16 * MIB)), &|action| {
            if let RemedyAction::FreeBlocks { number, bytes, blocks } = action {
                (*number, *bytes, *blocks) = (0, 0, Vec::new());
            }
        });
        // A stream to wait for that has too little.
        let little = story(setup, &captured(&[free(1, 1)], 17 * MIB));
        let mut report = little.report();
        report.remedies = vec![Remedy::wait_for_stream(StreamRef::LEGACY, 16 * MIB)];
        little.check(&report).expect_err("the report is wrong");
    }
    // A device that refuses memory that it has.
    let lies = story(Setup { lies: true, ..pages() }, &[take(16 * MIB, 0)]);
    check_failure(&lies).expect_err("the device has room");
}

#[test]
fn a_report_says_it_in_a_few_lines() {
    let (_, failed, report) = story(regions(), &free_extents(12 * MIB)).tell().unwrap();
    let error = Error::out_of_memory(failed.layout, failed.stream).in_stack("cuda+pool").with_report(report);
    let text = error.to_string();
    let ranges: Vec<&str> = text.lines().collect();
    assert!(ranges[0].starts_with("out of memory for 12MiB on stream 0x"), "{text}");
    assert!(ranges[0].ends_with(" in `cuda+pool`: 12MiB more is needed"), "{text}");
    assert_eq!(ranges[1], "  this would have helped:");
}

#[test]
fn the_free_memory_of_all_owners_is_what_statistics_say() {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let pool = PoolMemoryResource::new(cuda, PoolOptions::default()).unwrap();
    for bytes in [256, 1000, 300_000, 3 * MIB, 5 * MIB] {
        pool.allocate(Layout::new(bytes), StreamRef::LEGACY).unwrap();
    }
    let of_owners = pool.central.with_heaps(|heaps| super::free_by_owner(heaps));
    let said = pool.statistics().unwrap();
    assert!(said.blocks_free > 0);
    assert_eq!(of_owners.iter().map(|free| free.blocks).sum::<u64>(), said.blocks_free);
    assert_eq!(of_owners.iter().map(|free| free.bytes).sum::<u64>(), said.bytes_free());
    assert_eq!(of_owners.iter().map(|free| free.largest).max(), Some(said.largest_free_block));
}
