//! The program that uses a stack while it is probed. It reaches the places where layers call other code.

use std::fmt::{self, Write};

use millpond_core::driver::StreamFlags;
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef,
};

use super::probe::Probe;

/// The number of rounds with repeating requests.
const ROUNDS: usize = 24;

/// The sizes of one round, in bytes; `plans/reentrancy.plan` is for these.
const SIZES: [u64; 6] = [700, 5000, 200 << 10, 1 << 20, 2 << 20, 5 << 20];

/// The sizes of the requests that exhaust the memory, and how many blocks of each are taken at most.
const TO_THE_END: [(u64, usize); 2] = [(9 << 20, 64), (700 << 10, 512)];

type Block = (DevicePtr, Layout);

/// Runs everything twice. First only hooks and subscribers call back, which finds layers in every state. Then
/// everything calls back.
pub(super) fn run(stack: &AnyResource, probe: &Probe) {
    for is_reserved in [true, false] {
        probe.reserve(is_reserved);
        run_once(stack, probe);
    }
}

fn run_once(stack: &AnyResource, probe: &Probe) {
    let stream = stack.driver().stream_create(StreamFlags::NON_BLOCKING).unwrap_or(StreamRef::LEGACY);
    probe.new_state();
    for round in 0..ROUNDS {
        repeat(stack, if round % 8 == 7 { stream } else { StreamRef::LEGACY });
    }
    probe.new_state();
    SIZES.iter().for_each(|bytes| {
        if let Some((ptr, layout)) = take(stack, *bytes, StreamRef::LEGACY) {
            probe.leave(ptr, layout);
        }
    });
    exhaust(stack, stream);
    probe.new_state();
    // Requests that differ from the earlier ones.
    for bytes in [3 << 20, 12 << 20, 400] {
        let block = take(stack, bytes, stream);
        give(stack, block, StreamRef::LEGACY);
    }
    for bytes in [700, 1 << 19, 4 << 20] {
        if let Some(block) = take(stack, bytes, StreamRef::LEGACY) {
            misuse(stack, block);
        }
    }
    probe.new_state();
    let asked = (stack.statistics(), stack.memory_info().is_ok(), stack.memory_report());
    drop((asked, write!(Page { probe, writes: 0 }, "{stack}{stack:?}"), stack.trim(0)));
    (0..3).for_each(|_| repeat(stack, StreamRef::LEGACY));
    for (ptr, layout) in probe.take_spare() {
        give(stack, Some((ptr, layout)), StreamRef::LEGACY);
    }
    drop(stack.trim(0));
    if stream != StreamRef::LEGACY {
        // SAFETY: the stream was created above, and no call uses it any more.
        drop(unsafe { stack.driver().stream_destroy(stream) });
    }
}

/// A formatter's destination that runs the program's code.
struct Page<'a> {
    probe: &'a Probe,
    writes: u32,
}

impl Write for Page<'_> {
    fn write_str(&mut self, _text: &str) -> fmt::Result {
        if self.writes < 64 || self.writes.is_multiple_of(16) {
            self.probe.call("the writer of a text");
        }
        self.writes += 1;
        Ok(())
    }
}

fn take(stack: &AnyResource, bytes: u64, stream: StreamRef) -> Option<Block> {
    let layout = Layout::new(bytes);
    stack.allocate(layout, stream).ok().map(|ptr| (ptr, layout))
}

fn give(stack: &AnyResource, block: Option<Block>, stream: StreamRef) {
    if let Some((ptr, layout)) = block {
        // SAFETY: the scenario frees each block from `take` once; no work uses it.
        unsafe { stack.deallocate(ptr, layout, stream) };
    }
}

/// Makes requests of all sizes, whose blocks live until the end of the round.
fn repeat(stack: &AnyResource, stream: StreamRef) {
    let blocks: Vec<_> = SIZES.iter().map(|bytes| take(stack, *bytes, stream)).collect();
    blocks.into_iter().for_each(|block| give(stack, block, stream));
}

/// Takes all memory, twice: the second time on another stream than the one on which the blocks were freed.
fn exhaust(stack: &AnyResource, other: StreamRef) {
    for (allocated_on, freed_on) in [(StreamRef::LEGACY, other), (StreamRef::LEGACY, StreamRef::LEGACY)] {
        let mut blocks = Vec::new();
        for (bytes, most) in TO_THE_END {
            let more = std::iter::repeat_with(|| take(stack, bytes, allocated_on));
            blocks.extend(more.take(most).take_while(Option::is_some));
            // A layer may serve the last blocks in another way than the rest.
            if let Some(Some(block)) = blocks.pop() {
                misuse(stack, block);
            }
        }
        blocks.into_iter().for_each(|block| give(stack, block, freed_on));
    }
}

/// Frees a block at an inner address, with a wrong size, and twice. A layer that cannot detect this passes it
/// on. In the end the simulated device refuses it.
fn misuse(stack: &AnyResource, (ptr, layout): Block) {
    let (inside, longer) = (DevicePtr::new(ptr.address() + 256), Layout::new(layout.bytes() + 1));
    for (ptr, layout) in [(inside, layout), (ptr, longer), (ptr, layout), (ptr, layout)] {
        // SAFETY: none. The stack must refuse this call. The memory belongs to the simulated device, and
        // nothing reads it.
        unsafe { stack.deallocate(ptr, layout, StreamRef::LEGACY) };
    }
}
