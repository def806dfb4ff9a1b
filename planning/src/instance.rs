//! The problem in the form that searches use: sizes in units of the problem, and the conflicts of blocks.

use crate::clocks::{Clocks, number_streams};
use crate::{Block, Problem};

/// The value that stands for the height of a block that is not placed.
pub(crate) const UNPLACED: u64 = u64::MAX;

/// The nonempty blocks of a problem, sorted by stream and birth.
#[derive(Debug, Default)]
pub(crate) struct Instance {
    /// The block's index in the problem.
    pub(crate) ids: Vec<u32>,
    /// The size of each block in units of the problem.
    pub(crate) size: Vec<u64>,
    pub(crate) birth: Vec<u64>,
    pub(crate) death: Vec<u64>,
    /// The lifetime of each block, in positions of the log.
    pub(crate) life: Vec<u64>,
    lanes: Vec<Lane>,
    /// The positions in which a lane's blocks conflict with a block, by block and lane. Empty if there is one
    /// lane.
    windows: Vec<(u64, u64)>,
}

/// The blocks of one stream, or all blocks in host order.
#[derive(Debug)]
struct Lane {
    start: usize,
    end: usize,
    /// A complete binary tree over the lane's blocks. Each node has the last death below it.
    last_death: Vec<u64>,
    leaves: usize,
}

impl Instance {
    /// Puts all blocks in one lane. Births and deaths become numbers of sections. A section is a maximal set
    /// of blocks that are live together. So two blocks share a section exactly if their lifetimes overlap.
    pub(crate) fn one_lane(problem: &Problem, ids: impl Iterator<Item = u32>) -> Self {
        let blocks = problem.blocks();
        let ids: Vec<u32> = ids.filter(|&id| blocks[id as usize].size > 0).collect();
        let mut events = Vec::with_capacity(ids.len() * 2);
        for (index, &id) in ids.iter().enumerate() {
            let Block { birth, death, .. } = blocks[id as usize];
            events.push((birth, true, index));
            events.push((death, false, index));
        }
        events.sort_unstable();
        let mut spans = vec![(0u64, 0u64); ids.len()];
        let (mut section, mut died) = (0, false);
        for (_, is_birth, index) in events {
            if is_birth {
                section += u64::from(died);
                died = false;
                spans[index].0 = section;
            } else {
                died = true;
                spans[index].1 = section + 1;
            }
        }
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_unstable_by_key(|&index| (spans[index].0, std::cmp::Reverse(spans[index].1), index));
        let ids = order.iter().map(|&index| ids[index]).collect();
        let mut instance = Self::with(problem, ids, order.iter().map(|&index| spans[index]));
        instance.lanes.push(Lane::new(0, &instance.death));
        instance
    }

    /// Puts each stream in its own lane, with the orders of the problem between the lanes.
    pub(crate) fn by_stream(problem: &Problem) -> Self {
        let blocks = problem.blocks();
        let numbers = number_streams(blocks);
        let lane_of = |id: u32| numbers[&blocks[id as usize].stream];
        let mut ids: Vec<u32> = (0..blocks.len() as u32).filter(|&id| blocks[id as usize].size > 0).collect();
        ids.sort_by_key(|&id| (lane_of(id), blocks[id as usize].birth));
        let spans: Vec<_> =
            ids.iter().map(|&id| (blocks[id as usize].birth, blocks[id as usize].death)).collect();
        let mut instance = Self::with(problem, ids, spans.into_iter());
        let clocks = Clocks::new(blocks, problem.orders().unwrap_or_default());
        let mut start = 0;
        for lane in 0..numbers.len() {
            let length = instance.ids[start..].iter().take_while(|&&id| lane_of(id) == lane).count();
            instance.lanes.push(Lane::new(start, &instance.death[start..start + length]));
            start += length;
        }
        for (index, &id) in instance.ids.iter().enumerate() {
            let own = lane_of(id);
            let (birth, death) = (instance.birth[index], instance.death[index]);
            instance.windows.extend((0..numbers.len()).map(|other| {
                if other == own {
                    (birth, death)
                } else {
                    (clocks.ordered_up_to(own, other, birth), clocks.ready(other, own, death))
                }
            }));
        }
        instance
    }

    fn with(problem: &Problem, ids: Vec<u32>, spans: impl Iterator<Item = (u64, u64)>) -> Self {
        let (birth, death) = spans.unzip();
        let size = ids.iter().map(|&id| problem.blocks()[id as usize].size.div_ceil(problem.unit()));
        let size = size.collect();
        let life = |&id: &u32| problem.blocks()[id as usize].death - problem.blocks()[id as usize].birth;
        let life = ids.iter().map(life).collect();
        Self { ids, size, birth, death, life, lanes: Vec::new(), windows: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn is_one_lane(&self) -> bool {
        self.lanes.len() == 1
    }

    /// Returns the number of sections. Only for one lane.
    pub(crate) fn sections(&self) -> usize {
        self.death.iter().max().map_or(0, |&last| last as usize)
    }

    /// Returns the largest sum of sizes of blocks that are live together. Only for one lane.
    pub(crate) fn load(&self) -> u64 {
        self.loads().into_iter().max().unwrap_or(0)
    }

    /// Returns the sum of sizes of the blocks in each section. Only for one lane.
    pub(crate) fn loads(&self) -> Vec<u64> {
        let mut change = vec![0u64; self.sections() + 1];
        for index in 0..self.len() {
            let (birth, death) = (self.birth[index] as usize, self.death[index] as usize);
            change[birth] = change[birth].wrapping_add(self.size[index]);
            change[death] = change[death].wrapping_sub(self.size[index]);
        }
        let mut sum = 0u64;
        for entry in &mut change {
            sum = sum.wrapping_add(*entry);
            *entry = sum;
        }
        change.pop();
        change
    }

    /// Calls `visit` with each block that conflicts with `index`.
    pub(crate) fn conflicts(&self, index: usize, mut visit: impl FnMut(usize)) {
        for (number, lane) in self.lanes.iter().enumerate() {
            let (low, high) = match self.windows.get(index * self.lanes.len() + number) {
                Some(&window) => window,
                None => (self.birth[index], self.death[index]),
            };
            let births = &self.birth[lane.start..lane.end];
            let first = births.partition_point(|&birth| birth < low);
            lane.live_after(low, first, &mut |at| {
                if lane.start + at != index {
                    visit(lane.start + at);
                }
            });
            for (at, &birth) in births.iter().enumerate().skip(first) {
                if birth >= high {
                    break;
                }
                if lane.start + at != index {
                    visit(lane.start + at);
                }
            }
        }
    }
}

impl Lane {
    fn new(start: usize, deaths: &[u64]) -> Self {
        let leaves = deaths.len().next_power_of_two();
        let mut last_death = vec![0; 2 * leaves];
        last_death[leaves..leaves + deaths.len()].copy_from_slice(deaths);
        for node in (1..leaves).rev() {
            last_death[node] = last_death[2 * node].max(last_death[2 * node + 1]);
        }
        Self { start, end: start + deaths.len(), last_death, leaves }
    }

    /// Calls `visit` for the blocks before `end` that die after `position`.
    fn live_after(&self, position: u64, end: usize, visit: &mut impl FnMut(usize)) {
        // Each level below the root adds one waiting node, and a tree has fewer than 64 levels.
        let mut waiting = [(0usize, 0usize, 0usize); 64];
        let mut height = 1;
        waiting[0] = (1, 0, self.leaves);
        while height > 0 {
            height -= 1;
            let (node, from, width) = waiting[height];
            if from >= end || self.last_death[node] <= position {
                continue;
            }
            if width == 1 {
                visit(from);
                continue;
            }
            let half = width / 2;
            waiting[height] = (2 * node + 1, from + half, half);
            waiting[height + 1] = (2 * node, from, half);
            height += 2;
        }
    }
}
