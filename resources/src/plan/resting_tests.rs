//! Programs in which nothing repeats for a while: the layer leaves them alone, and watches them once more.

use millpond_core::{DeviceMemoryResourceExt, DevicePtr, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::Rng;

use crate::plan::history::{FIRST_EVENTS, MOST_EVENTS};
use crate::plan::learning::REST_REQUESTS;
use crate::plan::recovery_tests::{Stack, body, give, on_legacy, over_a_pool};
use crate::sync::Ordering;

fn stack() -> Stack {
    over_a_pool(&SimDevice::new(SimConfig::with_capacity(1 << 30)))
}

/// Allocates and frees blocks of random sizes.
fn do_not_repeat(stack: &Stack, rng: &mut Rng, times: usize) {
    for _ in 0..times {
        let bytes = rng.between(1, 1000) * 256;
        let ptr = stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap();
        give(stack, (ptr, bytes), StreamRef::LEGACY);
    }
}

fn is_bypassed(stack: &Stack) -> bool {
    stack.is_bypassed.load(Ordering::Relaxed)
}

#[test]
fn a_program_that_repeats_after_a_rest_gets_a_plan() {
    let (stack, mut rng) = (stack(), Rng::new(1));
    let blocks = on_legacy((1..41u64).map(|size| size << 16));
    do_not_repeat(&stack, &mut rng, FIRST_EVENTS - 1);
    assert!(!is_bypassed(&stack));
    do_not_repeat(&stack, &mut rng, 1);
    assert!(is_bypassed(&stack), "nothing repeated: the program is left alone");
    (0..100).for_each(|_| body(&stack, &blocks));
    let counts = stack.plan_statistics();
    assert!(counts.plans == 0 && !counts.has_given_up, "{counts:?}");
    do_not_repeat(&stack, &mut rng, REST_REQUESTS as usize - 4000 - 1);
    assert!(is_bypassed(&stack));
    (0..100).for_each(|_| body(&stack, &blocks));
    let counts = stack.plan_statistics();
    assert!(counts.plans == 1 && counts.served > 1000, "{counts:?}");
}

#[test]
fn a_program_that_does_not_repeat_after_a_rest_either_is_given_up() {
    let (stack, mut rng) = (stack(), Rng::new(2));
    do_not_repeat(&stack, &mut rng, FIRST_EVENTS + REST_REQUESTS as usize + MOST_EVENTS - 2);
    assert!(!is_bypassed(&stack) && !stack.plan_statistics().has_given_up);
    do_not_repeat(&stack, &mut rng, 1);
    assert!(is_bypassed(&stack) && stack.plan_statistics().has_given_up);
    do_not_repeat(&stack, &mut rng, 100);
    assert!(is_bypassed(&stack), "it is not watched any more");
}

/// While a block keeps memory of an old plan, each free has to find out whose its block is.
#[test]
fn a_rest_with_memory_of_an_old_plan_bypasses_nothing_until_that_is_back_and_ends_nevertheless() {
    for frees_early in [true, false] {
        let (stack, mut rng) = (stack(), Rng::new(3));
        let blocks = on_legacy((1..41u64).map(|size| size << 16));
        (0..100).for_each(|_| body(&stack, &blocks));
        let (first, stream) = blocks[0];
        let kept: DevicePtr = stack.allocate_bytes(first, stream).unwrap();
        do_not_repeat(&stack, &mut rng, FIRST_EVENTS + 10);
        let held = stack.plan_statistics().held_bytes;
        assert!(held > 0 && stack.state.lock().is_resting && !is_bypassed(&stack), "{held}");
        if frees_early {
            give(&stack, (kept, first), stream);
            assert!(stack.plan_statistics().held_bytes == 0 && is_bypassed(&stack));
        }
        do_not_repeat(&stack, &mut rng, REST_REQUESTS as usize);
        assert!(!stack.state.lock().is_resting && !is_bypassed(&stack));
        if !frees_early {
            give(&stack, (kept, first), stream);
            assert_eq!(stack.plan_statistics().held_bytes, 0);
        }
        (0..100).for_each(|_| body(&stack, &blocks));
        assert_eq!(stack.plan_statistics().plans, 2);
    }
}
