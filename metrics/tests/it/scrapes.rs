//! Tests scrapes while other threads use the stacks, and while stacks end.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, ResourceStatistics, forward_to_upstream,
};
use millpond_metrics::Metrics;

use crate::{S, build, device, free, of};

const THREADS: usize = 3;
const ROUNDS: u64 = 20;

/// While threads work, counters do not fall. When they pause, each value is the stack's own.
#[test]
fn values_are_the_statistics_of_the_moment() {
    let stack = build("cuda+pool+statistics", &device());
    let metrics = Metrics::new();
    metrics.register(&stack, "train").unwrap();
    let (pause, resume, is_done) =
        (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1), AtomicBool::new(false));
    let work = |thread: u64| {
        for round in 0..ROUNDS {
            let mut blocks = Vec::new();
            for number in 0..100 {
                let bytes = 256 * (1 + (number * 7 + thread) % 40);
                blocks.push((stack.allocate_bytes(bytes, S).unwrap(), bytes));
            }
            let kept = blocks.split_off(usize::try_from(round).unwrap() % 3);
            kept.into_iter().for_each(|(block, bytes)| free(&stack, block, bytes));
            pause.wait();
            resume.wait();
            blocks.into_iter().for_each(|(block, bytes)| free(&stack, block, bytes));
        }
    };
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || work(number as u64));
        }
        scope.spawn(|| {
            let mut before = 0;
            while !is_done.load(Ordering::Relaxed) {
                let now = of(&metrics, "millpond.allocations", &stack, &[])[0];
                assert!(now >= before, "the counter fell from {before} to {now}");
                before = now;
            }
        });
        for _ in 0..ROUNDS {
            pause.wait();
            let is = stack.statistics().unwrap();
            for (name, value) in [
                ("millpond.memory.live", is.bytes_in_use),
                ("millpond.memory.requested", is.bytes_requested),
                ("millpond.memory.reserved", is.bytes_reserved),
                ("millpond.memory.peak", is.peak_bytes_in_use),
                ("millpond.blocks.live", is.blocks_in_use),
                ("millpond.allocations", is.allocations),
                ("millpond.frees", is.deallocations),
            ] {
                assert_eq!(of(&metrics, name, &stack, &[]), [value], "{name}");
            }
            let steps: u64 = of(&metrics, "millpond.requests", &stack, &[]).iter().sum();
            assert_eq!(steps, is.allocations);
            resume.wait();
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// The last owner drops this stack while a scrape reads it.
struct DropsItself {
    upstream: AnyResource,
    owner: Arc<Mutex<Option<AnyResource>>>,
}

impl fmt::Display for DropsItself {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+drops_itself", self.upstream)
    }
}

millpond_core::debug_as_text!(DropsItself);

// SAFETY: all calls go to the upstream with the same arguments.
unsafe impl DeviceMemoryResource for DropsItself {
    fn statistics(&self) -> Option<ResourceStatistics> {
        drop(self.owner.lock().unwrap().take());
        self.upstream.statistics()
    }

    forward_to_upstream!(self.upstream, except statistics);
}

#[test]
fn a_stack_that_ends_during_a_scrape_is_read_once_more() {
    let owner = Arc::default();
    let pool = build("cuda+pool", &device());
    let stack: AnyResource = Arc::new(DropsItself { upstream: pool.clone(), owner: Arc::clone(&owner) });
    let (metrics, weak) = (Metrics::new(), Arc::downgrade(&stack));
    metrics.register(&stack, "ends").unwrap();
    *owner.lock().unwrap() = Some(stack);
    assert_eq!(of(&metrics, "millpond.memory.live", &pool, &[("stack", "ends")]), [0]);
    assert_eq!(weak.strong_count(), 0, "the scrape kept the stack");
    assert!(of(&metrics, "millpond.memory.live", &pool, &[]).is_empty());
}
