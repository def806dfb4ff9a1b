//! Tests random problems against exhaustive oracles, and against each other.

use std::time::Duration;

use millpond_planning::{
    Block, Fit, Invalid, Options, Order, Problem, bounds, bounds_until, fits, plan, validate,
};
use proptest::prelude::*;

/// Returns options that are enough for tiny problems, with the same result on every machine.
fn options() -> Options {
    Options::default().time(Duration::from_secs(600)).rounds(4).seed(1).threads(2)
}

fn block(positions: u64, streams: u64) -> impl Strategy<Value = Block> {
    (0..positions, 1..=positions, 0..40u64, 0..streams).prop_map(|(birth, life, size, stream)| Block {
        birth,
        death: birth + life,
        size,
        stream,
    })
}

fn blocks(count: usize, positions: u64, streams: u64) -> impl Strategy<Value = Vec<Block>> {
    prop::collection::vec(block(positions, streams), 0..=count)
}

fn orders(count: usize, positions: u64, streams: u64) -> impl Strategy<Value = Vec<Order>> {
    let order = (0..positions, 0..positions, 0..streams, 0..streams, 0..4u8);
    prop::collection::vec(order, 0..=count).prop_map(|orders| {
        let of = |(index, (first, second, from, to, kind)): (usize, (u64, u64, u64, u64, u8))| {
            // The orders have different positions: among equal positions, the sequence would decide.
            let at = |position: u64| position * 64 + 2 * index as u64;
            match kind {
                0 => Order::Device { at: at(first) },
                1 => Order::Stream { at: at(first), stream: from },
                _ => Order::Event {
                    recorded: at(first.min(second)),
                    waited: at(first.max(second)) + 1,
                    from,
                    to,
                },
            }
        };
        orders.into_iter().enumerate().map(of).collect()
    })
}

fn stream_safe() -> impl Strategy<Value = Problem> {
    (blocks(6, 8, 3), orders(4, 8, 4), 1..20u64).prop_map(|(mut blocks, orders, alignment)| {
        for block in &mut blocks {
            block.birth *= 64;
            block.death *= 64;
        }
        Problem::stream_safe(blocks, alignment, orders).unwrap()
    })
}

/// Returns the first position from which the stream is ordered after a free: repeats all orders until none
/// adds knowledge.
fn ready(problem: &Problem, freed: &Block, stream: u64) -> u64 {
    let streams = 8;
    let mut ready = vec![u64::MAX; streams];
    let knows = |ready: &[u64], of: u64, at: u64| {
        (of == freed.stream && freed.death <= at) || ready[of as usize] <= at
    };
    for _ in 0..streams {
        for order in problem.orders().unwrap() {
            let (told, at) = match *order {
                Order::Device { at } if at >= freed.death => (0..streams, at),
                Order::Stream { at, stream } if knows(&ready, stream, at) => (0..streams, at),
                Order::Event { recorded, waited, from, to } if knows(&ready, from, recorded) => {
                    (to as usize..to as usize + 1, waited)
                }
                _ => continue,
            };
            for stream in told {
                ready[stream] = ready[stream].min(at);
            }
        }
    }
    ready[stream as usize]
}

fn conflict(problem: &Problem, a: &Block, b: &Block) -> bool {
    let (first, second) = if a.birth <= b.birth { (a, b) } else { (b, a) };
    let is_ordered = || {
        problem.orders().is_none()
            || first.stream == second.stream
            || ready(problem, first, second.stream) <= second.birth
    };
    a.size > 0 && b.size > 0 && (second.birth < first.death || !is_ordered())
}

fn taken(problem: &Problem, block: &Block) -> u64 {
    block.size.next_multiple_of(problem.alignment())
}

/// Finds the least height of all by trying each order of dropping blocks onto each other.
fn least(problem: &Problem, placed: &mut Vec<(usize, u64)>, height: u64, best: &mut u64) {
    if height >= *best {
        return;
    }
    let blocks = problem.blocks();
    if placed.len() == blocks.len() {
        *best = height;
        return;
    }
    for index in 0..blocks.len() {
        if placed.iter().any(|&(other, _)| other == index) {
            continue;
        }
        let below = placed.iter().filter(|&&(other, _)| conflict(problem, &blocks[other], &blocks[index]));
        let offset = below.map(|&(_, top)| top).max().unwrap_or(0);
        let top = offset + taken(problem, &blocks[index]);
        placed.push((index, top));
        least(problem, placed, height.max(top), best);
        placed.pop();
    }
}

/// Checks each pair of blocks, one by one.
fn is_placement(problem: &Problem, offsets: &[u64]) -> bool {
    let blocks = problem.blocks();
    let shares = |a: usize, b: usize| {
        offsets[a] < offsets[b] + taken(problem, &blocks[b])
            && offsets[b] < offsets[a] + taken(problem, &blocks[a])
    };
    (0..blocks.len()).all(|a| (0..a).all(|b| !shares(a, b) || !conflict(problem, &blocks[a], &blocks[b])))
}

proptest! {
    #[test]
    fn small_problems_are_placed_at_the_least_height(blocks in blocks(7, 6, 1), alignment in 1..20u64) {
        let problem = Problem::new(blocks, alignment).unwrap();
        let mut best = u64::MAX;
        least(&problem, &mut Vec::new(), 0, &mut best);
        let plan = plan(&problem, &options());
        prop_assert_eq!(validate(&problem, &plan.offsets), Ok(plan.height));
        prop_assert_eq!(plan.height, best);
        prop_assert!(plan.is_optimal(), "{:?}", plan);
        prop_assert!(plan.bounds.bytes <= best);
        prop_assert!(matches!(fits(&problem, best, &options()), Fit::Fits(_)));
        if best > 0 {
            let answer = fits(&problem, best - 1, &options());
            prop_assert!(matches!(answer, Fit::Impossible { bound } if bound <= best), "{:?}", answer);
        }
    }

    #[test]
    fn stream_safe_problems_are_bounded_by_the_least_height(problem in stream_safe()) {
        let mut best = u64::MAX;
        least(&problem, &mut Vec::new(), 0, &mut best);
        let plan = plan(&problem, &options());
        prop_assert_eq!(validate(&problem, &plan.offsets), Ok(plan.height));
        prop_assert!(is_placement(&problem, &plan.offsets));
        prop_assert!(plan.bound <= best, "bound {} above the least height {}", plan.bound, best);
        prop_assert!(plan.bounds.host_order <= plan.bounds.bytes);
        prop_assert!(plan.height >= best);
    }

    #[test]
    fn the_validator_agrees_with_each_pair(
        (problem, places) in stream_safe().prop_flat_map(|problem| {
            let count = problem.blocks().len();
            (Just(problem), prop::collection::vec(0..12u64, count))
        }),
    ) {
        let offsets: Vec<u64> = places.iter().map(|place| place * problem.alignment()).collect();
        let validated = validate(&problem, &offsets);
        prop_assert_eq!(validated.is_ok(), is_placement(&problem, &offsets), "{:?}", validated);
    }

    #[test]
    fn larger_problems_are_placed_and_bounded(
        blocks in blocks(200, 60, 4),
        orders in orders(6, 60, 4),
        is_stream_safe: bool,
    ) {
        let problem = if is_stream_safe {
            Problem::stream_safe(blocks, 8, orders).unwrap()
        } else {
            Problem::new(blocks, 8).unwrap()
        };
        let plan = plan(&problem, &options().rounds(1));
        prop_assert_eq!(validate(&problem, &plan.offsets), Ok(plan.height));
        prop_assert!(plan.bound <= plan.height);
        prop_assert_eq!(bounds(&problem), plan.bounds);
    }

    #[test]
    fn the_number_of_threads_does_not_change_a_plan(blocks in blocks(80, 30, 1)) {
        let problem = Problem::new(blocks, 1).unwrap();
        let with = |threads| plan(&problem, &options().threads(threads));
        prop_assert_eq!(with(1), with(3));
    }

    // The canary: a placement that is wrong by one byte is refused.
    #[test]
    fn a_placement_that_overlaps_by_a_byte_is_caught(blocks in blocks(40, 20, 1), pick: prop::sample::Index) {
        let problem = Problem::new(blocks, 1).unwrap();
        let mut plan = plan(&problem, &options());
        // A block that lies directly on top of a block that is live with it.
        let lies_on_another = |&index: &usize| {
            let block = &problem.blocks()[index];
            problem.blocks().iter().zip(&plan.offsets).any(|(below, offset)| {
                offset + below.size == plan.offsets[index] && conflict(&problem, below, block)
            })
        };
        let on_others: Vec<usize> = (0..problem.blocks().len()).filter(lies_on_another).collect();
        prop_assume!(!on_others.is_empty());
        let index = on_others[pick.index(on_others.len())];
        plan.offsets[index] -= 1;
        let refused = validate(&problem, &plan.offsets);
        prop_assert!(matches!(refused, Err(Invalid::Overlap { .. })), "{:?}", refused);
    }
}

/// Cuts a rectangle into blocks. The cut itself reaches the rectangle's height, and no lower height is
/// possible.
fn cut(random: &mut impl FnMut(u64) -> u64, area: [u64; 4], pieces: usize, blocks: &mut Vec<Block>) {
    let [birth, death, low, high] = area;
    if pieces == 1 || death - birth < 2 || high - low < 2 {
        blocks.push(Block { birth, death, size: high - low, stream: 0 });
        return;
    }
    let first = 1 + random(pieces as u64 - 1) as usize;
    if random(2) == 0 {
        let at = birth + 1 + random(death - birth - 1);
        cut(random, [birth, at, low, high], first, blocks);
        cut(random, [at, death, low, high], pieces - first, blocks);
    } else {
        let at = low + 1 + random(high - low - 1);
        cut(random, [birth, death, low, at], first, blocks);
        cut(random, [birth, death, at, high], pieces - first, blocks);
    }
}

#[test]
fn cut_rectangles_are_put_together_again() {
    for seed in 0..20u64 {
        let mut state = seed;
        let mut random = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let mut blocks = Vec::new();
        cut(&mut random, [0, 400, 0, 1000], 60, &mut blocks);
        let problem = Problem::new(blocks, 1).unwrap();
        let plan = plan(&problem, &options().rounds(40));
        assert_eq!(validate(&problem, &plan.offsets), Ok(plan.height));
        assert_eq!((plan.bound, plan.height), (1000, 1000), "seed {seed}");
    }
}

#[test]
fn a_bound_that_is_too_high_would_be_caught() {
    // Blocks 0 and 2 never meet: a bound that added all three would exceed the least height.
    let of = |birth, death| Block { birth, death, size: 10, stream: 0 };
    let problem = Problem::new(vec![of(0, 2), of(1, 3), of(2, 4)], 1).unwrap();
    let mut best = u64::MAX;
    least(&problem, &mut Vec::new(), 0, &mut best);
    let wrong: u64 = problem.blocks().iter().map(|block| block.size).sum();
    assert!(bounds(&problem).bytes <= best && wrong > best);
}

#[test]
fn streams_without_orders_lie_one_above_the_other() {
    let of = |birth, death, size, stream| Block { birth, death, size, stream };
    let blocks = vec![of(0, 2, 100, 1), of(2, 4, 60, 1), of(4, 6, 30, 2), of(5, 6, 50, 2)];
    let plan = plan(&Problem::stream_safe(blocks.clone(), 1, Vec::new()).unwrap(), &options());
    assert_eq!((plan.height, plan.bound, plan.bounds.host_order), (180, 180, 100));
    // The second stream waits for the first stream's work before 3, so it may take the block freed at 2.
    let event = Order::Event { recorded: 3, waited: 3, from: 1, to: 2 };
    let problem = Problem::stream_safe(blocks, 1, vec![event]).unwrap();
    let plan = millpond_planning::plan(&problem, &options());
    assert_eq!(validate(&problem, &plan.offsets), Ok(plan.height));
    assert_eq!((plan.height, plan.bound), (140, 140));
}

/// Makes blocks of two streams for which the first placement is seldom the lowest.
fn two_streams(seed: u64) -> Problem {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let blocks = (0..80).map(|number| {
        let birth = random(40);
        Block { birth, death: birth + 1 + random(12), size: 1 + random(60), stream: number % 2 }
    });
    Problem::stream_safe(blocks.collect(), 1, Vec::new()).unwrap()
}

#[test]
fn the_search_ends_as_soon_as_all_streams_together_fit() {
    let height = |problem: &Problem, rounds| plan(problem, &options().rounds(rounds)).height;
    let mut seen = 0;
    for problem in (0..40).map(two_streams) {
        let (first, best) = (height(&problem, 0), height(&problem, 4));
        if best == first {
            continue;
        }
        seen += 1;
        let Fit::Fits(plan) = fits(&problem, first, &options()) else { panic!("{first} suffices") };
        assert_eq!(plan.height, first, "the first placement fits, and {best} is not needed");
        let Fit::Fits(plan) = fits(&problem, best, &options()) else { panic!("{best} suffices") };
        assert_eq!(validate(&problem, &plan.offsets), Ok(plan.height));
    }
    assert!(seen > 4, "{seen}");
}

#[test]
fn bounds_of_streams_without_orders_need_no_time() {
    let (problem, now) = (two_streams(3), std::time::Instant::now());
    assert_eq!(bounds_until(&problem, now), bounds(&problem));
    assert!(bounds(&problem).bytes > bounds(&problem).host_order);
}

#[test]
fn a_million_blocks_of_a_training_loop_reach_the_bound() {
    let blocks = millpond_planning::synthetic::training(1_000_000, 7);
    let problem = Problem::new(blocks, 512).unwrap();
    let plan = plan(&problem, &options());
    assert_eq!(validate(&problem, &plan.offsets), Ok(plan.height));
    assert!(plan.is_optimal(), "{}", plan.ratio());
}

/// Positions may be any 64-bit numbers, whatever the search uses them for.
#[test]
fn one_stream_with_orders_is_placed_at_any_positions() {
    let rows = [(5, 8, 4), (3, 7, 1), (4, 7, 2), (3, 5, 3), (0, 3, 4), (7, 8, 4), (2, 4, 4)];
    let block = |&(birth, death, size): &(u64, u64, u64)| Block {
        birth: birth << 50,
        death: death << 50,
        size,
        stream: 0,
    };
    let blocks: Vec<Block> = rows.iter().map(block).collect();
    let ordered = Problem::stream_safe(blocks.clone(), 1, vec![Order::Device { at: 0 }]).unwrap();
    let plain = Problem::new(blocks, 1).unwrap();
    let (ordered, plain) = (plan(&ordered, &options()), plan(&plain, &options()));
    assert_eq!((ordered.height, ordered.bound), (plain.height, plain.bound));
    // The load is 8, and no placement of 8 exists.
    assert_eq!((ordered.height, ordered.is_optimal()), (9, true));
}
