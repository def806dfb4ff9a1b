//! Placements that are safe for several streams.

use crate::Problem;
use crate::clocks::number_streams;
use crate::instance::Instance;
use crate::run::{Lane, Placed, Search};
use crate::search::Piece;

/// The most pairs of a block and a stream whose orders are examined. Each pair needs 16 bytes. If there are
/// more pairs, the memory of each stream is placed above the memory of the previous one.
const CONFLICTS: usize = 1 << 25;

/// Returns the blocks of each stream.
fn lanes(problem: &Problem) -> Vec<Vec<u32>> {
    let numbers = number_streams(problem.blocks());
    let mut lanes = vec![Vec::new(); numbers.len()];
    for (id, block) in problem.blocks().iter().enumerate() {
        lanes[numbers[&block.stream]].push(id as u32);
    }
    lanes
}

/// Places blocks so that streams share addresses only if orders allow it.
///
/// One stream needs no order with itself, so it is placed in host order. Streams on top of each other are
/// always safe, and nothing is better without an order. With orders, first fit may be lower, and a repair
/// begins from the lowest result.
pub(crate) fn place(search: &Search, problem: &Problem, bound: u64, capacity: Option<u64>) -> Placed {
    let lanes = lanes(problem);
    if let [ids] = &lanes[..] {
        return search.one_lane(problem, ids.clone(), capacity);
    }
    let has_orders = problem.orders().is_some_and(|orders| !orders.is_empty());
    let is_many = problem.blocks().len().saturating_mul(lanes.len()) > CONFLICTS;
    let goal = capacity.unwrap_or(bound).max(bound);
    // With orders, the later steps deserve more of the time.
    let mut all = one_above_another(search, problem, lanes, goal, if has_orders && !is_many { 4 } else { 1 });
    if has_orders {
        // The streams may share addresses, so the sum of their bounds is none.
        all.bound = bound;
    }
    if !has_orders || is_many || all.height <= goal {
        return all;
    }
    let instance = Instance::by_stream(problem);
    let offsets = instance.ids.iter().map(|&id| all.offsets[id as usize]).collect();
    let mut piece = Piece::new(instance, 0, all.goal, bound, capacity.is_some());
    piece.offer(offsets);
    if !piece.is_done() {
        for offsets in search.part_of(2).first_fits(&piece.instance).into_iter().flatten() {
            piece.offer(offsets);
        }
    }
    let mut rounds = 0;
    while !piece.is_done() && rounds < search.rounds() && !search.is_late() {
        search.round(&mut piece);
        rounds += 1;
    }
    for (&id, &offset) in piece.instance.ids.iter().zip(piece.offsets()) {
        all.offsets[id as usize] = offset;
    }
    Placed { height: piece.height().min(all.height), bound: piece.bound(), ..all }
}

/// Places each stream above the ones before it, and searches until all together are at most `goal` high. The
/// streams get one of `shares` of the time.
fn one_above_another(
    search: &Search,
    problem: &Problem,
    lanes: Vec<Vec<u32>>,
    goal: u64,
    shares: usize,
) -> Placed {
    let parts = shares * lanes.len();
    let share_of = |number: usize| search.part_of(parts - number);
    let first = |(number, ids)| share_of(number).first_placement(problem, ids, None);
    let mut lanes: Vec<Lane> = lanes.into_iter().enumerate().map(first).collect();
    for number in 0..lanes.len() {
        let excess = lanes.iter().map(Lane::height).sum::<u64>().saturating_sub(goal);
        if excess == 0 {
            break;
        }
        // If this stream becomes lower by the whole excess, the others need not.
        let lane = &mut lanes[number];
        lane.aim(lane.height().saturating_sub(excess));
        share_of(number).improve(&mut lane.pieces);
    }
    let mut all = Placed { offsets: vec![0; problem.blocks().len()], height: 0, bound: 0, goal };
    for lane in lanes {
        lane.write(all.height, &mut all.offsets);
        all.height += lane.height();
        all.bound += lane.bound();
    }
    all
}
