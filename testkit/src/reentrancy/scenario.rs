//! What a program does with a stack while it is probed: it comes by the places where layers call others.

use millpond_core::driver::StreamFlags;
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef,
};

use super::probe::Probe;

/// The rounds of requests that repeat, for layers that learn what repeats.
const ROUNDS: usize = 24;

/// The sizes of one round, in bytes.
const SIZES: [u64; 6] = [700, 5000, 200 << 10, 1 << 20, 2 << 20, 5 << 20];

/// The sizes of requests until memory is out, and how many blocks of each are taken at most.
const TO_THE_END: [(u64, usize); 2] = [(9 << 20, 64), (700 << 10, 512)];

type Block = (DevicePtr, Layout);

pub(super) fn run(stack: &AnyResource, probe: &Probe) {
    let stream = stack.driver().stream_create(StreamFlags::NON_BLOCKING).unwrap_or(StreamRef::LEGACY);
    for round in 0..ROUNDS {
        repeat(stack, if round % 8 == 7 { stream } else { StreamRef::LEGACY });
    }
    SIZES.iter().for_each(|bytes| {
        if let Some((ptr, layout)) = take(stack, *bytes, StreamRef::LEGACY) {
            probe.leave(ptr, layout);
        }
    });
    exhaust(stack, stream);
    // What differs from before.
    for bytes in [3 << 20, 12 << 20, 400] {
        let block = take(stack, bytes, stream);
        give(stack, block, StreamRef::LEGACY);
    }
    for bytes in [700, 1 << 19, 4 << 20] {
        misuse(stack, bytes);
    }
    let asked = (stack.statistics(), stack.memory_info().is_ok(), stack.memory_report());
    drop((asked, format!("{stack}{stack:?}"), stack.trim(0)));
    (0..3).for_each(|_| repeat(stack, StreamRef::LEGACY));
    for (ptr, layout) in probe.take_spare() {
        give(stack, Some((ptr, layout)), StreamRef::LEGACY);
    }
    drop(stack.trim(0));
    if stream != StreamRef::LEGACY {
        // SAFETY: the stream was made above, and no call names it any more.
        drop(unsafe { stack.driver().stream_destroy(stream) });
    }
}

fn take(stack: &AnyResource, bytes: u64, stream: StreamRef) -> Option<Block> {
    let layout = Layout::new(bytes);
    stack.allocate(layout, stream).ok().map(|ptr| (ptr, layout))
}

fn give(stack: &AnyResource, block: Option<Block>, stream: StreamRef) {
    if let Some((ptr, layout)) = block {
        // SAFETY: the scenario gives each block of `take` back once; no work uses it.
        unsafe { stack.deallocate(ptr, layout, stream) };
    }
}

/// Requests of all sizes, whose blocks live until the end of the round.
fn repeat(stack: &AnyResource, stream: StreamRef) {
    let blocks: Vec<_> = SIZES.iter().map(|bytes| take(stack, *bytes, stream)).collect();
    blocks.into_iter().for_each(|block| give(stack, block, stream));
}

/// Takes all memory, twice: the second time on another stream than the blocks were freed on.
fn exhaust(stack: &AnyResource, other: StreamRef) {
    for (allocated_on, freed_on) in [(StreamRef::LEGACY, other), (StreamRef::LEGACY, StreamRef::LEGACY)] {
        let mut blocks = Vec::new();
        for (bytes, most) in TO_THE_END {
            let more = std::iter::repeat_with(|| take(stack, bytes, allocated_on));
            blocks.extend(more.take(most).map_while(|block| block));
        }
        blocks.into_iter().for_each(|block| give(stack, Some(block), freed_on));
    }
}

/// Frees with a wrong size, twice, and at an address inside. A layer that cannot tell passes it on, to the
/// simulated device in the end, which refuses it.
fn misuse(stack: &AnyResource, bytes: u64) {
    let Some((ptr, layout)) = take(stack, bytes, StreamRef::LEGACY) else { return };
    let (inside, longer) = (DevicePtr::new(ptr.address() + 256), Layout::new(bytes + 1));
    for (ptr, layout) in [(inside, layout), (ptr, longer), (ptr, layout), (ptr, layout)] {
        // SAFETY: none. This is what the stack has to refuse; the memory is the simulated device's, which
        // nothing reads.
        unsafe { stack.deallocate(ptr, layout, StreamRef::LEGACY) };
    }
}
