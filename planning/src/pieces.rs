//! Divides a problem in host order into pieces that can be planned separately.

use crate::Problem;
use crate::instance::Instance;

/// A piece of the problem, and its base in units.
pub(crate) type Part = (Instance, u64);

/// How often each block is examined, on average. After that, the rest is planned undivided. Each time a piece
/// is divided, its blocks are sorted again, and blocks may be nested as deep as there are blocks.
const LOOKS: usize = 64;

/// Returns the placement of the blocks that live through their piece, by their ids in the problem. Also
/// returns the pieces above these blocks.
///
/// If a block is live through a whole piece, it can lie at the bottom without loss, because every other block
/// of the piece conflicts with it. The rest of the piece may have positions where no block is live, and is
/// divided in the same way.
///
/// When the time is over, the rest stays undivided.
pub(crate) fn divide(
    problem: &Problem,
    ids: Vec<u32>,
    base: u64,
    is_late: &dyn Fn() -> bool,
) -> (Vec<(u32, u64)>, Vec<Part>) {
    let (mut placed, mut parts) = (Vec::new(), Vec::new());
    let mut looks = ids.len().saturating_mul(LOOKS);
    let mut waiting = vec![(ids, base)];
    while let Some((ids, mut base)) = waiting.pop() {
        let is_last_look = looks < ids.len() || is_late();
        looks = looks.saturating_sub(ids.len());
        let instance = Instance::one_lane(problem, ids.into_iter());
        let rest = Rest::of(&instance);
        let mut first = 0;
        // The first block began first and lives longest, so only this block can live through the piece.
        while !is_last_look
            && first < instance.len()
            && rest.pieces[first] == 1
            && instance.death[first] == rest.end[first]
        {
            placed.push((instance.ids[first], base));
            base += instance.size[first];
            first += 1;
        }
        if first == instance.len() {
            continue;
        }
        if rest.pieces[first] > 1 && !is_last_look {
            // The first piece is divided first, so that pieces come in the order of the log.
            let left = split(&instance, first);
            waiting.extend(left.into_iter().rev().map(|ids| (ids, base)));
        } else if first > 0 {
            let ids = instance.ids[first..].iter().copied();
            parts.push((Instance::one_lane(problem, ids), base));
        } else {
            parts.push((instance, base));
        }
    }
    (placed, parts)
}

/// For each block in the order of births: the rest of an instance from this block on.
struct Rest {
    /// The number of pieces in the rest.
    pieces: Vec<usize>,
    /// The last death in the rest.
    end: Vec<u64>,
}

impl Rest {
    fn of(instance: &Instance) -> Self {
        let mut rest = Self { pieces: vec![0; instance.len()], end: vec![0; instance.len()] };
        // The births and the ends of the pieces. The first piece is the last entry.
        let mut open: Vec<(u64, u64)> = Vec::new();
        let mut last = 0;
        for index in (0..instance.len()).rev() {
            let mut end = instance.death[index];
            last = last.max(end);
            while let Some(&(birth, piece_end)) = open.last()
                && birth < end
            {
                end = end.max(piece_end);
                open.pop();
            }
            open.push((instance.birth[index], end));
            (rest.pieces[index], rest.end[index]) = (open.len(), last);
        }
        rest
    }
}

/// Returns the ids of the pieces of the blocks from `first` on.
fn split(instance: &Instance, first: usize) -> Vec<Vec<u32>> {
    let mut pieces: Vec<Vec<u32>> = Vec::new();
    let mut end = 0;
    for index in first..instance.len() {
        if pieces.is_empty() || instance.birth[index] >= end {
            pieces.push(Vec::new());
        }
        end = end.max(instance.death[index]);
        if let Some(piece) = pieces.last_mut() {
            piece.push(instance.ids[index]);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Options, plan, validate};

    fn problem(lives: impl Iterator<Item = (u64, u64)>) -> Problem {
        let blocks = lives.map(|(birth, death)| Block { birth, death, size: 1, stream: 0 });
        Problem::new(blocks.collect(), 1).unwrap()
    }

    /// Each block lies within the one before: a division that sorted the rest at each level would take days.
    #[test]
    fn a_million_blocks_within_each_other_lie_one_above_the_other() {
        let count = 1_000_000;
        let problem = problem((0..count).map(|at| (at, 2 * count - at)));
        let (placed, parts) = divide(&problem, (0..count as u32).collect(), 0, &|| false);
        assert!(parts.is_empty());
        assert_eq!(placed.len() as u64, count);
        assert!(placed.iter().all(|&(id, offset)| u64::from(id) == offset));
    }

    /// At each level, one block lives next to the deeper blocks, on alternating sides.
    #[test]
    fn nested_pieces_are_planned_undivided_from_some_depth_on() {
        let count = 2_000;
        let lives = (0..count).flat_map(|at| {
            let (from, to) = (3 * at, 10 * count - 3 * at);
            let beside = if at % 2 == 0 { (from + 1, from + 2) } else { (to - 2, to - 1) };
            [(from, to), beside]
        });
        let problem = problem(lives);
        let (placed, parts) = divide(&problem, (0..2 * count as u32).collect(), 0, &|| false);
        let left: usize = parts.iter().map(|(instance, _)| instance.len()).sum();
        assert_eq!(placed.len() + left, 2 * count as usize);
        let options = Options { time: std::time::Duration::ZERO, ..Options::default() };
        let plan = plan(&problem, &options);
        assert_eq!(validate(&problem, &plan.offsets), Ok(plan.height));
        assert_eq!(plan.bound, count + 1);
    }
}
