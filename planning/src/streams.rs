//! Placements that are safe for several streams.

use crate::Problem;
use crate::clocks::number_streams;
use crate::instance::Instance;
use crate::run::{Placed, Search};
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
/// A stream needs no order with itself, so each stream is placed in host order. If the memory of each stream
/// lies above the memory of the previous stream, the placement is always safe. Without orders, no placement
/// is better. With orders, first fit may give a lower placement, and a repair begins from the lowest result.
pub(crate) fn place(search: &Search, problem: &Problem, bound: u64, capacity: Option<u64>) -> Placed {
    let lanes = lanes(problem);
    if let [ids] = &lanes[..] {
        return search.one_lane(problem, ids.clone(), capacity);
    }
    let mut all = Placed { offsets: vec![0; problem.blocks().len()], height: 0, bound: 0, goal: 0 };
    // With orders, the later steps get more of the time.
    let has_orders = problem.orders().is_some_and(|orders| !orders.is_empty());
    let is_many = problem.blocks().len().saturating_mul(lanes.len()) > CONFLICTS;
    let is_done = !has_orders || is_many;
    let parts = if is_done { lanes.len() } else { 4 * lanes.len() };
    for (number, ids) in lanes.into_iter().enumerate() {
        let lane = search.part_of(parts - number).one_lane(problem, ids.clone(), None);
        for id in ids {
            all.offsets[id as usize] = all.height + lane.offsets[id as usize];
        }
        all.height += lane.height;
        all.bound += lane.bound;
    }
    all.goal = capacity.unwrap_or(bound).max(bound);
    if is_done {
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
