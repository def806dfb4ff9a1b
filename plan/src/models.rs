//! Models of threads that meet in the layer. loom runs them in every order.
//!
//! Upstream is a few bytes under its own lock. It checks that it gets back the blocks that it gave out. Each
//! model ends with a check that it got all of them. The models keep their own notes under locks that loom
//! does not see, so that the notes add no order to the layer's.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use loom::thread::{self, ThreadId};
use millpond_core::driver::StreamFlags;
use millpond_core::{
    Accessibility, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, Error, ErrorKind,
    Layout, MemoryInfo, ResourceStatistics, Result, StreamRef, Traits, is_same,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_planning::{LogHash, PlanParts, PlannedAllocation, PlannedSlot, ProgramPlan};
use parking_lot::Mutex as UnseenMutex;
use rustc_hash::FxHashMap;

use crate::following::Mistake;
use crate::resource::PlanMemoryResource;
use crate::state::State;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, explore, explore_canary};

type Stack = PlanMemoryResource<Upstream>;

const STREAM: StreamRef = StreamRef::LEGACY;

/// The memory that upstream has free and has given out.
#[derive(Debug)]
struct Books {
    free: u64,
    made: u64,
    /// The bytes of each block by its address. No address is used twice.
    blocks: BTreeMap<u64, u64>,
    /// The number of threads that have made all of their calls.
    ended: u32,
}

#[derive(Debug)]
struct Upstream {
    driver: DriverHandle,
    books: Arc<Mutex<Books>>,
    /// For each thread: how often it asked for memory, or for the free bytes, since its request began. Also
    /// how many threads had ended when it last asked.
    asked: UnseenMutex<FxHashMap<ThreadId, (u32, u32)>>,
}

impl Upstream {
    fn ask(&self) -> MutexGuard<'_, Books> {
        let books = self.books.lock();
        let mut asked = self.asked.lock();
        let (times, ended) = asked.entry(thread::current().id()).or_default();
        (*times, *ended) = (*times + 1, books.ended);
        drop(asked);
        books
    }
}

// SAFETY: fresh addresses never overlap and are aligned; they stand for memory that is never touched.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Upstream {
    fn allocate(&self, layout: Layout, _: StreamRef) -> Result<DevicePtr> {
        let mut books = self.ask();
        let bytes = layout.rounded_bytes().expect("models ask for a few bytes");
        if bytes > books.free {
            return Err(Error::new(ErrorKind::OutOfMemory, "the model has no more memory"));
        }
        books.free -= bytes;
        books.made += 1;
        let address = books.made << 20;
        books.blocks.insert(address, bytes);
        Ok(DevicePtr::new(address))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, _: StreamRef) {
        let mut books = self.books.lock();
        let known = books.blocks.remove(&ptr.address());
        assert_eq!(known, layout.rounded_bytes(), "not a block of upstream");
        books.free += known.unwrap_or(0);
    }

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { free: self.ask().free, total: 1 << 20 })
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        false
    }

    fn accessibility(&self) -> Accessibility {
        Accessibility::DEVICE
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        None
    }

    fn trim(&self, _: u64) -> Result<u64> {
        Ok(0)
    }

    fn provide(&self, _: &mut Traits) {}
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("model")
    }
}

/// A block in use.
struct Block {
    ptr: DevicePtr,
    bytes: u64,
    stream: StreamRef,
}

/// The layer, and the blocks of its callers.
struct World {
    stack: Stack,
    /// The bytes of each block in use by its address.
    in_use: UnseenMutex<BTreeMap<u64, u64>>,
    /// The blocks that are freed at the end.
    kept: UnseenMutex<Vec<Block>>,
    used: AtomicU64,
}

/// A way to make a request.
type Ask = fn(&Stack, Layout, StreamRef) -> Result<DevicePtr>;

/// A row of a plan: its bytes, the number of its stream, and its offset in that stream's lane. Its block
/// lives until the next row.
type Row = (u64, u32, u64);

impl World {
    /// Makes the layer over `free` bytes with a plan of these rows.
    fn new(free: u64, lanes: &[u64], rows: &[Row]) -> Arc<Self> {
        let row = |&(bytes, stream, offset): &Row| {
            let slot = Some(PlannedSlot { life: NonZeroU32::MIN, offset });
            PlannedAllocation { bytes, stream, slot }
        };
        let (log, allocations) = (LogHash([0; 32]), rows.iter().map(row).collect());
        let parts =
            PlanParts { log, alignment: 256, lanes: lanes.to_vec(), bound: 0, beside: 0, allocations };
        let plan = ProgramPlan::new(parts).expect("the plan is valid");
        let books = Books { free, made: 0, blocks: BTreeMap::new(), ended: 0 };
        let driver = SimDevice::new(SimConfig::with_capacity(1 << 20));
        let upstream = Upstream { driver, books: Arc::new(Mutex::new(books)), asked: Default::default() };
        let stack = Stack::new(upstream, &plan).expect("the plan is valid");
        let (in_use, kept) = Default::default();
        Arc::new(Self { stack, in_use, kept, used: AtomicU64::new(0) })
    }

    fn streams<const N: usize>(&self) -> [StreamRef; N] {
        let create = |()| self.stack.driver().stream_create(StreamFlags::NON_BLOCKING);
        [(); N].map(create).map(|stream| stream.expect("the device is there"))
    }

    /// Notes a new block: no other live block may have any of its bytes.
    fn note(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) -> Block {
        let mut in_use = self.in_use.lock();
        let below = in_use.range(..ptr.address() + bytes).next_back();
        let is_alone = below.is_none_or(|(start, others)| start + others <= ptr.address());
        assert!(is_alone, "two blocks in use overlap");
        in_use.insert(ptr.address(), bytes);
        Block { ptr, bytes, stream }
    }

    fn take_on(&self, bytes: u64, stream: StreamRef) -> Block {
        let ptr = self.stack.allocate_bytes(bytes, stream).expect("there is memory");
        self.note(ptr, bytes, stream)
    }

    fn take(&self, bytes: u64) -> Block {
        self.take_on(bytes, STREAM)
    }

    /// Allocates a block and frees it.
    fn take_and_give(&self, bytes: u64) {
        let block = self.take(bytes);
        // While blocks are in use, loom switches threads only at something that it sees both of them do.
        self.used.fetch_add(1, Ordering::Relaxed);
        self.give(block);
    }

    /// Makes a request with `ask` when memory may be out. After the other thread has ended there is enough
    /// memory. So a refusal is right only if the layer last looked before that, and did not refuse at once.
    fn try_take(&self, bytes: u64, stream: StreamRef, ask: Ask) -> Option<Block> {
        let (asked, this) = (&self.stack.upstream.asked, thread::current().id());
        asked.lock().remove(&this);
        let served = ask(&self.stack, Layout::new(bytes), stream);
        let (times, ended) = asked.lock().get(&this).copied().unwrap_or_default();
        assert!(served.is_ok() || ended == 0, "refused although there was memory");
        assert!(served.is_ok() || times > 1, "refused at once");
        served.ok().map(|ptr| self.note(ptr, bytes, stream))
    }

    fn leave(&self, block: &Block) {
        self.in_use.lock().remove(&block.ptr.address());
    }

    fn give(&self, block: Block) {
        self.leave(&block);
        // SAFETY: the block came from the stack with this size, and nothing uses it.
        unsafe { self.stack.deallocate_bytes(block.ptr, block.bytes, block.stream) };
    }

    fn keep(&self, block: Block) {
        self.kept.lock().push(block);
    }

    /// Notes that a thread makes no further call.
    fn end_thread(&self) {
        self.stack.upstream.books.lock().ended += 1;
    }

    /// Ends the layer, and checks that upstream got everything back.
    fn end(self: Arc<Self>) {
        let mut world = Arc::into_inner(self).expect("the other threads have ended");
        let kept = std::mem::take(world.kept.get_mut());
        kept.into_iter().for_each(|block| world.give(block));
        let has_plan = world.stack.has_plan.load(Ordering::Relaxed);
        let state = world.stack.state.get_mut();
        assert_eq!(has_plan, state.plan.is_some(), "bypassed after the plan was dropped and nothing is held");
        assert_eq!(world.stack.misuses.load(Ordering::Relaxed), 0, "a free was refused");
        let books = Arc::clone(&world.stack.upstream.books);
        drop(world);
        assert_eq!(books.lock().blocks, BTreeMap::new(), "upstream did not get everything back");
    }
}

/// Runs `other` in a new thread, at the same time as `own`, and ends the layer.
fn beside(world: Arc<World>, own: impl FnOnce(&World) + 'static, other: impl FnOnce(&World) + 'static) {
    let thread = {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            other(&world);
            world.end_thread();
        })
    };
    own(&world);
    world.end_thread();
    thread.join().expect("no assertion failed");
    world.end();
}

/// Two threads have blocks of two slots that have bytes in common.
fn two_allocate_and_free(mistake: Option<Mistake>) {
    let world = World::new(1792, &[768], &[(256, 0, 256), (768, 0, 0)]);
    world.give(world.take(256));
    world.stack.locked(|state| state.plan.iter_mut().for_each(|plan| plan.mistake = mistake));
    let large = |world: &World| world.take_and_give(768);
    let small = |world: &World| (0..2).for_each(|_| world.take_and_give(256));
    beside(world, large, small);
}

#[test]
fn blocks_of_two_threads_never_overlap() {
    explore(|| two_allocate_and_free(None));
}

#[test]
fn canary_slots_that_are_handed_out_unchecked() {
    explore_canary("two blocks in use overlap", || two_allocate_and_free(Some(Mistake::Unchecked)));
}

/// A thread frees the last block of a lane while another one makes a request that needs the lane's memory.
/// `before` is called first.
fn the_last_block_is_freed(before: fn(&mut State), ask: Ask, free: fn(&World, Block)) {
    let world = World::new(1024, &[512], &[(256, 0, 0), (512, 0, 0)]);
    let last = world.take(256);
    world.stack.locked(before);
    let request = move |world: &World| {
        world.try_take(1024, STREAM, ask).into_iter().for_each(|block| world.give(block));
    };
    beside(world, request, move |world| free(world, last));
}

fn drop_the_plan(state: &mut State) {
    state.drop_plan("a model says so");
}

#[test]
fn a_request_gets_what_another_thread_frees() {
    explore(|| the_last_block_is_freed(|_| {}, Stack::allocate, World::give));
}

#[test]
fn a_request_gets_what_another_thread_gives_back() {
    explore(|| the_last_block_is_freed(drop_the_plan, Stack::allocate, World::give));
}

const REFUSED: &str = "refused although there was memory";

#[test]
fn canary_counted_after_upstream_was_asked() {
    explore_canary(REFUSED, || {
        let ask: Ask = |stack, layout, stream| {
            stack.upstream.allocate(layout, stream).or_else(|error| {
                let given_back = stack.given_back.load(Ordering::Acquire);
                stack.recover(layout, stream, true, given_back, error)
            })
        };
        the_last_block_is_freed(drop_the_plan, ask, World::give);
    });
}

#[test]
fn canary_refused_once_the_layer_is_bypassed() {
    explore_canary("refused at once", || {
        let ask: Ask = |stack, layout, stream| {
            let given_back = stack.given_back.load(Ordering::Acquire);
            match stack.upstream.allocate(layout, stream) {
                Err(error) if stack.has_plan.load(Ordering::Acquire) => {
                    stack.recover(layout, stream, true, given_back, error)
                }
                other => other,
            }
        };
        the_last_block_is_freed(drop_the_plan, ask, World::give);
    });
}

#[test]
fn canary_counted_before_the_memory_is_back() {
    explore_canary(REFUSED, || {
        the_last_block_is_freed(drop_the_plan, Stack::allocate, |world, block| {
            world.leave(&block);
            let stack = &world.stack;
            let mut state = stack.state.lock();
            let State { plan, marks, .. } = &mut *state;
            let plan = plan.as_mut().expect("it has memory");
            let place = plan.lane_at(block.ptr).expect("it is a block of the lane");
            assert_eq!(plan.free(place, block.bytes, block.stream, marks), Ok(None));
            state.release_dropped(STREAM);
            stack.has_plan.store(false, Ordering::Release);
            let (leaving, _) = state.take_left();
            drop(state);
            stack.given_back.fetch_add(1, Ordering::Release);
            for (base, bytes, stream) in leaving {
                // SAFETY: the lane came from upstream with this layout, and nothing uses it.
                unsafe { stack.upstream.deallocate(base, Layout::new(bytes), stream) };
            }
        });
    });
}

/// Two threads make requests that need the memory of a lane without blocks; the lane goes back only once. It
/// belongs to another stream, so neither request gets a gap.
fn two_requests_need_a_lane(ask: Ask) {
    let world = World::new(1024, &[1024], &[(256, 0, 0), (256, 0, 768)]);
    world.give(world.take(256));
    let [stream] = world.streams();
    let request = move |world: &World| {
        world.try_take(512, stream, ask).into_iter().for_each(|block| world.keep(block));
    };
    beside(world, request, request);
}

#[test]
fn two_requests_share_what_is_given_back() {
    explore(|| two_requests_need_a_lane(Stack::allocate));
}

#[test]
fn canary_a_lane_that_two_threads_give_back() {
    explore_canary("not a block of upstream", || {
        two_requests_need_a_lane(|stack, layout, stream| {
            stack.upstream.allocate(layout, stream).or_else(|_| {
                let base = stack.locked(|state| state.plan.as_ref().and_then(|plan| plan.lanes[0].base));
                let base = base.flatten().unwrap_or(DevicePtr::NULL);
                // SAFETY: none. The other thread may give the lane back too.
                unsafe { stack.upstream.deallocate(base, Layout::new(1024), stream) };
                stack.upstream.allocate(layout, stream)
            })
        });
    });
}

/// A thread's request drops the plan, while another thread has a block of a lane, frees it and allocates
/// another block. `bypass` is called after the request.
fn the_plan_is_dropped(bypass: fn(&Stack)) {
    let world = World::new(1024, &[512], &[(256, 0, 0), (512, 0, 0)]);
    let held = world.take(256);
    let request = move |world: &World| {
        let served = world.try_take(768, STREAM, Stack::allocate);
        bypass(&world.stack);
        served.into_iter().for_each(|block| world.give(block));
    };
    let other = |world: &World| {
        world.give(held);
        world.give(world.take(256));
    };
    beside(world, request, other);
}

#[test]
fn a_dropped_plan_gives_its_lane_back_once() {
    explore(|| the_plan_is_dropped(|_| {}));
}

#[test]
fn canary_bypassed_while_a_lane_has_a_block() {
    explore_canary("not a block of upstream", || {
        the_plan_is_dropped(|stack| {
            if stack.state.lock().counts.is_dropped {
                stack.has_plan.store(false, Ordering::Release);
            }
        });
    });
}

/// Two threads make the first requests of a plan, which need one lane. `before` is called before one of these
/// requests.
fn two_need_a_lane(before: fn(&Stack)) {
    let world = World::new(1024, &[512], &[(256, 0, 0), (256, 0, 256)]);
    let take = |world: &World| world.give(world.take(256));
    beside(world, take, move |world| {
        before(&world.stack);
        take(world);
    });
}

#[test]
fn a_lane_is_taken_once() {
    explore(|| two_need_a_lane(|_| {}));
}

#[test]
fn canary_a_lane_that_two_threads_take() {
    explore_canary("upstream did not get everything back", || {
        two_need_a_lane(|stack| {
            stack.locked(|state| state.plan.iter_mut().for_each(|plan| plan.lanes[0].is_awaited = false));
        });
    });
}

/// Two threads make the first requests of their streams, and there is room for one lane. The plan is dropped
/// when the other lane is refused, maybe while the first one is on its way. `take` makes the smaller request.
fn two_lanes_without_room(take: fn(&World, StreamRef)) {
    let rows = [(256, 0, 0), (256, 1, 0), (512, 2, 0)];
    let world = World::new(2048, &[256, 768, 1024], &rows);
    let [one, other] = world.streams();
    world.give(world.take(256));
    let filler = world.stack.upstream.allocate(Layout::new(512), STREAM).expect("there is memory");
    let large = move |world: &World| world.give(world.take_on(512, other));
    let own = move |world: &World| {
        take(world, one);
        // SAFETY: the block came from upstream with this layout, and nothing uses it.
        unsafe { world.stack.upstream.deallocate(filler, Layout::new(512), STREAM) };
    };
    beside(world, own, large);
}

#[test]
fn a_lane_of_a_plan_that_was_dropped_meanwhile_goes_back() {
    explore(|| two_lanes_without_room(|world, one| world.give(world.take_on(256, one))));
}

#[test]
fn canary_a_lane_put_without_a_look_at_the_plan() {
    explore_canary("upstream did not get everything back", || {
        two_lanes_without_room(|world, one| {
            let stack = &world.stack;
            let at = stack.locked(|state| {
                let plan = state.followed()?;
                let at = plan.locate(256, one.id())?;
                plan.lanes[1].is_awaited = true;
                Some(at)
            });
            assert_eq!(at, Some(Some(1)), "the request is expected");
            let Ok(base) = stack.upstream.allocate(Layout::new(768), one) else { return };
            stack.locked(|state| {
                if let Some(plan) = state.followed() {
                    plan.lanes[1].is_awaited = false;
                    plan.lanes[1].put(base, one);
                }
            });
        });
    });
}
