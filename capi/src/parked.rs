//! Blocks that were freed while other streams may still use them. Such a block is parked.

use std::collections::VecDeque;
use std::mem;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use millpond_core::driver::{CaptureModeGuard, Event, EventFlags, call};
use millpond_core::{DeviceId, Result, StreamId, StreamRef};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::block::{Block, Use};

/// All parked blocks, except those that a thread is examining.
static PARKED: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);
/// The number of blocks that are parked, or that are being returned to their resource.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// How many blocks have been marked so far.
static NUMBERS: AtomicU64 = AtomicU64::new(0);
/// If there is no memory while another thread examines the parked blocks, a request sleeps for this time, and
/// at most this often.
const NAP: Duration = Duration::from_millis(1);
const MOST_NAPS: u32 = 100;

/// A block that waits for streams.
struct Parked {
    block: Block,
    device: DeviceId,
    /// An event for each of these streams, recorded when the block was freed.
    events: Vec<(StreamId, Event)>,
    /// How many blocks were marked earlier.
    number: u64,
}

/// Parked blocks, grouped by the stream that each block waits for first. A stream finishes with its blocks in
/// order, so one query of the driver per stream is enough.
#[derive(Default)]
struct Queues {
    by_stream: FxHashMap<(DeviceId, StreamId), VecDeque<Parked>>,
    /// Blocks that have an unmarked stream, or that wait for the whole device.
    others: Vec<Parked>,
}

/// The parked blocks that a thread examines. The driver is called without a lock. If blocks are left at the
/// end, or after a panic in the driver, they are parked again.
#[derive(Default)]
struct Looked {
    queues: Queues,
    passed: Vec<Parked>,
}

impl Parked {
    /// Marks the present position in each unmarked stream. A capturing stream is marked after its capture.
    fn mark(&mut self) -> Result<()> {
        if self.block.used_on.is_empty() {
            return Ok(());
        }
        let Self { block, events, .. } = self;
        let driver = block.driver().clone();
        let _captures = CaptureModeGuard::relaxed(&*driver);
        let mark = |stream: StreamRef| {
            call(&*driver, |driver| {
                match driver.stream_is_capturing(stream) {
                    // The legacy default stream, while a blocking stream captures.
                    Err(error) if error.is_capture_refusal() => return Ok(None),
                    Ok(true) => return Ok(None),
                    Err(error) if !error.is_unsupported() => return Err(error),
                    Ok(false) | Err(_) => {}
                }
                let event = driver.event_create(EventFlags::default())?;
                let recorded = driver.event_record(event, stream);
                // A capture that another thread began in the meantime may contain the record.
                let is_marked = recorded.and_then(|()| match driver.stream_is_capturing(stream) {
                    Err(error) if error.is_capture_refusal() => Ok(false),
                    Err(error) if !error.is_unsupported() => Err(error),
                    answer => Ok(!answer.unwrap_or(false)),
                });
                if !matches!(is_marked, Ok(true)) {
                    // SAFETY: the event is this function's own, and nothing waits for it.
                    drop(unsafe { driver.event_destroy(event) });
                }
                is_marked.map(|is_marked| is_marked.then_some(event))
            })
        };
        let mut outcome = Ok(());
        block.used_on.retain(|used| {
            let event = mark(used.here()).unwrap_or_else(|error| {
                outcome = Err(error);
                None
            });
            events.extend(event.map(|event| (used.id, event)));
            event.is_none()
        });
        self.number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        outcome
    }

    /// Returns whether the block need no longer wait for its first stream: the device has passed the block's
    /// mark in that stream, or cannot tell.
    fn passes_first(&mut self) -> bool {
        let Some((_, event)) = self.events.last().copied() else { return true };
        let driver = self.block.driver();
        if driver.health().is_lost() {
            self.events.clear();
            return true;
        }
        let captures = CaptureModeGuard::relaxed(&**driver);
        let answer = call(&**driver, |driver| driver.event_query(event));
        if matches!(answer, Ok(false)) {
            return false;
        }
        // SAFETY: the event is the block's own, and leaves the list here.
        let _ = call(&**driver, |driver| unsafe { driver.event_destroy(event) });
        drop(captures);
        self.events.pop();
        // If the event tells nothing, all work of the device must end before the block returns to its
        // resource.
        self.block.may_be_free |= answer.is_err();
        true
    }

    /// Returns whether the device has finished all uses of a block that is in no queue.
    fn passes_aside(&mut self) -> bool {
        if self.block.driver().health().is_lost() {
            return true;
        }
        if self.block.may_be_free {
            return self.wait_for_device() && self.end_events();
        }
        self.mark().is_ok() && self.block.used_on.is_empty() && self.events.is_empty()
    }

    /// Destroys events that no stream waits for any more. Returns true.
    fn end_events(&mut self) -> bool {
        let driver = self.block.driver().clone();
        let _captures = CaptureModeGuard::relaxed(&*driver);
        while let Some((_, event)) = self.events.pop() {
            // SAFETY: the event was the block's own.
            let _ = call(&*driver, |driver| unsafe { driver.event_destroy(event) });
        }
        true
    }

    /// Waits for all work of the device, without naming a stream. If that would end a capture, does not wait.
    fn wait_for_device(&self) -> bool {
        let driver = self.block.driver();
        let _captures = CaptureModeGuard::relaxed(&**driver);
        matches!(call(&**driver, |driver| driver.synchronize_beside_captures()), Ok(true))
    }

    /// Waits for all marked uses, and for uses on streams that ended before they were marked.
    fn wait(&mut self) {
        let driver = self.block.driver().clone();
        let _captures = CaptureModeGuard::relaxed(&*driver);
        for (_, event) in &self.events {
            let _ = call(&*driver, |driver| driver.event_synchronize(*event));
        }
        let is_gone = |used: &Use| driver.stream_is_gone(used.stream);
        if self.block.used_on.iter().any(is_gone) && self.wait_for_device() {
            self.block.used_on.retain(|used| !is_gone(used));
        }
    }
}

impl Queues {
    fn is_empty(&self) -> bool {
        self.by_stream.is_empty() && self.others.is_empty()
    }

    fn add(&mut self, parked: Parked) {
        match parked.events.last() {
            Some((stream, _)) if parked.block.used_on.is_empty() && !parked.block.may_be_free => {
                let queue = self.by_stream.entry((parked.device, *stream)).or_default();
                let place = queue.partition_point(|other| other.number < parked.number);
                queue.insert(place, parked);
            }
            _ => self.others.push(parked),
        }
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parked> {
        self.by_stream.values_mut().flatten().chain(&mut self.others)
    }

    fn into_all(self) -> impl Iterator<Item = Parked> {
        self.by_stream.into_values().flatten().chain(self.others)
    }
}

impl Looked {
    fn take() -> Self {
        Self { queues: mem::take(&mut *PARKED.lock()), passed: Vec::new() }
    }

    /// Finds the blocks whose uses the device has finished, except blocks that have to wait for the whole
    /// device.
    fn find_passed(&mut self) {
        let Self { queues, passed } = self;
        for at in (0..queues.others.len()).rev() {
            let is_passed = queues.others[at].passes_aside();
            let parked = queues.others.swap_remove(at);
            if is_passed { passed.push(parked) } else { queues.add(parked) }
        }
        loop {
            let before = passed.len();
            for queue in queues.by_stream.values_mut() {
                while queue.front_mut().is_some_and(Parked::passes_first) {
                    passed.extend(queue.pop_front());
                }
            }
            queues.by_stream.retain(|_, queue| !queue.is_empty());
            // Some of these blocks now wait for another stream or for the device. The other stream may
            // already have passed them, too.
            let waits = |parked: &mut Parked| !parked.events.is_empty() || parked.block.may_be_free;
            let waiting = passed.extract_if(before.., waits);
            let mut waiting = waiting.peekable();
            if waiting.peek().is_none() {
                return;
            }
            waiting.for_each(|parked| queues.add(parked));
        }
    }
}

impl Drop for Looked {
    fn drop(&mut self) {
        let mut queues = mem::take(&mut self.queues);
        self.passed.drain(..).for_each(|parked| queues.add(parked));
        let mut parked = PARKED.lock();
        if parked.is_empty() {
            *parked = queues;
        } else {
            queues.into_all().for_each(|each| parked.add(each));
        }
    }
}

/// Returns whether any block is parked, or is being returned to its resource.
pub(crate) fn are_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Parks a block until the device has finished the work of all its streams.
///
/// # Errors
/// If the driver cannot mark the streams, returns the driver's error. The block is parked anyway.
pub(crate) fn park(mut block: Block) -> Result<()> {
    let is_ended = block.names_ended();
    // A default stream never ends. The block is freed in the order of this stream, so it need not wait for
    // the stream's work.
    let own = block.stream;
    if !is_ended && !own.stream.is_legacy() && !own.stream.is_per_thread() {
        block.used_on.push(own);
    }
    let device = block.driver().device();
    let mut looked = Looked::default();
    COUNT.fetch_add(1, Ordering::Relaxed);
    looked.passed.push(Parked { block, device, events: Vec::new(), number: 0 });
    if is_ended { Ok(()) } else { looked.passed[0].mark() }
}

/// Returns parked blocks whose uses the device has finished to their resources. If `is_waiting` is set, waits
/// for these uses first. Returns whether any blocks were parked. Another thread may have returned some of the
/// blocks.
pub(crate) fn give_back_passed(is_waiting: bool) -> bool {
    if !are_any() {
        return false;
    }
    let mut looked = Looked::take();
    if is_waiting && looked.queues.is_empty() {
        await_others();
        looked = Looked::take();
    }
    if is_waiting {
        looked.queues.iter_mut().for_each(Parked::wait);
    }
    looked.find_passed();
    if is_waiting {
        looked.find_passed();
    }
    // The other blocks are parked again before the first block is returned to its resource, because that may
    // take long.
    let mut passed = Looked::default();
    mem::swap(&mut passed.passed, &mut looked.passed);
    drop(looked);
    while let Some(parked) = passed.passed.pop() {
        let _on_its_way = OnItsWay;
        parked.block.note_passed();
        parked.block.give_back_passed();
    }
    true
}

/// Counts a block that is being returned to its resource, until this value is dropped.
struct OnItsWay;

impl Drop for OnItsWay {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits a moment while another thread has all parked blocks. That thread may be waiting for this thread. It
/// may even be this thread, if the driver called back into the library.
fn await_others() {
    for _ in 0..MOST_NAPS {
        if !PARKED.lock().is_empty() || !are_any() {
            return;
        }
        thread::sleep(NAP);
    }
}
