//! First fit: places blocks in the order of a key. Each block goes into the lowest gap between the placed
//! blocks that conflict with it.

use std::cmp::Reverse;

use crate::instance::{Instance, UNPLACED};
use crate::skyline;

/// Places all blocks, the largest key first. Returns `None` if `stop` ends the placement early.
pub(crate) fn first_fit(instance: &Instance, key: usize, stop: &dyn Fn() -> bool) -> Option<Vec<u64>> {
    let keys = skyline::keys(instance, key);
    let mut order: Vec<usize> = (0..instance.len()).collect();
    order.sort_by_key(|&index| Reverse(keys[index]));
    let mut offsets = vec![UNPLACED; instance.len()];
    let mut around: Vec<(u64, u64)> = Vec::new();
    for (count, index) in order.into_iter().enumerate() {
        if count.is_multiple_of(64) && stop() {
            return None;
        }
        around.clear();
        instance.conflicts(index, |other| {
            if offsets[other] != UNPLACED {
                around.push((offsets[other], offsets[other] + instance.size[other]));
            }
        });
        around.sort_unstable();
        let mut lowest = 0;
        for &(offset, end) in &around {
            if offset >= lowest + instance.size[index] {
                break;
            }
            lowest = lowest.max(end);
        }
        offsets[index] = lowest;
    }
    Some(offsets)
}
