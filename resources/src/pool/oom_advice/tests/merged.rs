//! Tests advice that is true only if the pool merges free neighbours of several owners for the request.

use super::*;

const ALIGNED: u64 = 4 * MIB;

/// Asks for 10 MiB at a multiple of 4 MiB. A pool of at most 12 MiB has no room for the padding of new
/// memory. Only memory that it already holds can serve this, if it starts at such a multiple by chance.
const TAKE_ALIGNED: Step = Step::Take { bytes: 10 * MIB, alignment: ALIGNED, stream: 2 };

/// Returns steps after which a pool of at most 12 MiB holds all of it in one free piece, followed by `then`.
fn in_one_piece(then: &[Step]) -> Vec<Step> {
    [&[take(12 * MIB, 0), free(0, 0)], then].concat()
}

fn named_sizes(report: &OutOfMemoryReport) -> Vec<u64> {
    named(report).iter().map(|block| block.bytes).collect()
}

fn at_most_12_mib(setup: Setup) -> Setup {
    Setup { maximum: Some(12 * MIB), ..setup }
}

/// The pool checks whether its own memory is aligned, and does not refuse the request at once.
#[test]
fn a_large_alignment_is_served_from_free_memory_of_several_streams() {
    for setup in [regions(), pages()].map(at_most_12_mib) {
        let halves = [take(6 * MIB, 0), take(6 * MIB, 1), free(0, 0), free(0, 1), TAKE_ALIGNED];
        let (mut world, steps) = (World::new(setup), in_one_piece(&halves));
        assert!(world.run(&steps, 0).is_none(), "{setup:?}");
        let address = *world.live.keys().next().expect("the last block is live");
        assert!(address.is_multiple_of(ALIGNED), "{address:#x}");
    }
}

#[test]
fn blocks_are_named_without_which_memory_is_aligned() {
    for setup in [regions(), pages()].map(at_most_12_mib) {
        let (half, small) = (take(6 * MIB, 0), take(1000, 0));
        let beside = Step::Take { bytes: 1000, alignment: 256, stream: 1 };
        for (blocks, sizes) in [
            (vec![half, take(6 * MIB, 1)], vec![6 * MIB; 2]),
            // A span of small blocks; another stream owns its rest.
            (vec![small, beside], vec![1000; 2]),
        ] {
            let full = story(setup, &in_one_piece(&[&blocks[..], &[TAKE_ALIGNED]].concat()));
            let report = full.report();
            assert_eq!(named_sizes(&report), sizes, "{report}");
            full.check(&report).unwrap();
            check_failure(&full).unwrap();
        }
    }
}

/// Blocks whose alignment keeps them out of arenas fit between small ones.
#[test]
fn an_aligned_block_is_served_from_a_span_of_small_blocks() {
    // The alignment exceeds the pool's maximum, so new memory cannot be aligned.
    let aligned = Step::Take { bytes: 1000, alignment: 16 * MIB, stream: 0 };
    for setup in [regions(), pages()].map(at_most_12_mib) {
        // The first calls of a stream do not use its cache.
        let mut steps = in_one_piece(&[take(1000, 0), take(1000, 1)]);
        steps.extend((0..6).flat_map(|_| [free(0, 0), take(1000, 0)]));
        let full = story(setup, &[&steps[..], &[aligned]].concat());
        let report = full.report();
        assert_eq!(named(&report).len(), 1, "{report}");
        full.check(&report).unwrap();
        // The first block of the span is cached for its size.
        let cached = story(setup, &[&steps[..], &[free(0, 0), aligned]].concat());
        assert!(cached.tell().is_none(), "{setup:?}");
    }
}

#[test]
fn during_a_capture_a_span_serves_an_aligned_block_from_own_and_unowned_bytes() {
    const SPAN: u64 = MIB / 2;
    for setup in [regions(), pages()].map(at_most_12_mib) {
        let aligned = Step::Take { bytes: SPAN - 512, alignment: 512, stream: 0 };
        let capture = Step::Capture { stream: 0, capturing: true };
        let steps = [take(1000, 0), take(12 * MIB - SPAN, 1), capture, aligned];
        let full = story(setup, &in_one_piece(&steps));
        let report = full.report();
        assert_eq!(named_sizes(&report), [1000], "{report}");
        full.check(&report).unwrap();
    }
}

/// If no memory of the pool is aligned, nothing would help.
#[test]
fn without_aligned_memory_no_block_is_named() {
    for setup in [regions(), pages()].map(at_most_12_mib) {
        let unaligned = Step::Take { bytes: 10 * MIB, alignment: 1 << 50, stream: 2 };
        let half = in_one_piece(&[take(256, 0), take(6 * MIB, 0), unaligned]);
        let report = story(setup, &half).report();
        assert!(report.remedies.is_empty(), "{report}");
    }
}

/// During a capture the pool waits for no stream, so a small block must come from a span that is partly the
/// stream's own and partly unowned.
#[test]
fn during_a_capture_a_span_is_taken_from_an_own_block_and_its_unowned_neighbour() {
    for (setup, first, own, then) in [
        (Setup { maximum: Some(3 * MIB), ..regions() }, 7 * MIB / 4, MIB / 2, 900 << 10),
        (Setup { capacity: 4 * MIB, ..pages() }, 4 * MIB - (100 << 10), 64 << 10, 100 << 10),
    ] {
        // The alignment keeps the stream's own block out of an arena.
        let own = Step::Take { bytes: own, alignment: 512, stream: 0 };
        let capture = Step::Capture { stream: 0, capturing: true };
        let captured = story(setup, &[take(first, 1), own, capture, take(then, 0)]);
        let report = captured.report();
        assert!(report.is_capturing);
        assert_eq!(named(&report).len(), 1, "{report}");
        captured.check(&report).unwrap();
    }
}
