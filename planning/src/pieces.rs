//! Divides a problem in host order into pieces that can be planned apart.

use crate::Problem;
use crate::instance::Instance;

/// A piece, and where it begins in units.
pub(crate) type Part = (Instance, u64);

/// The placement of the blocks that outlive their piece, by id in the problem, and the pieces above them.
///
/// A block that is live through a whole piece lies at the bottom without loss: every other block of the piece
/// conflicts with it. What is left may fall into pieces between which no block is live, and so on.
pub(crate) fn divide(problem: &Problem, ids: Vec<u32>, base: u64) -> (Vec<(u32, u64)>, Vec<Part>) {
    let (mut placed, mut parts) = (Vec::new(), Vec::new());
    let mut waiting = vec![(ids, base)];
    while let Some((ids, mut base)) = waiting.pop() {
        let instance = Instance::one_lane(problem, ids.into_iter());
        let sections = instance.sections() as u64;
        let mut left: Vec<Vec<u32>> = Vec::new();
        let mut end = 0;
        let mut is_divided = false;
        for index in 0..instance.len() {
            let (birth, death) = (instance.birth[index], instance.death[index]);
            if birth == 0 && death == sections {
                placed.push((instance.ids[index], base));
                base += instance.size[index];
                is_divided = true;
                continue;
            }
            if left.is_empty() || birth >= end {
                left.push(Vec::new());
            }
            end = end.max(death);
            if let Some(piece) = left.last_mut() {
                piece.push(instance.ids[index]);
            }
        }
        is_divided |= left.len() > 1;
        if is_divided {
            // The first piece is divided first, so that pieces come in the order of the log.
            waiting.extend(left.into_iter().rev().map(|ids| (ids, base)));
        } else if instance.len() > 0 {
            parts.push((instance, base));
        }
    }
    (placed, parts)
}
