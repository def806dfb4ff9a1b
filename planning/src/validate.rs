//! Checks a placement in one sweep over the log, with maps of addresses. Uses no code of the planner.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fmt;

use crate::{Block, Order, Problem};

/// The reason why a list of offsets is not a valid placement of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invalid {
    /// The number of offsets differs from the number of blocks.
    Count {
        /// The number of blocks.
        blocks: usize,
        /// The number of offsets.
        offsets: usize,
    },
    /// An offset is not a multiple of the alignment.
    Misaligned {
        /// The block's index in the problem.
        block: usize,
        /// The offset of the block, in bytes.
        offset: u64,
        /// The alignment of the problem, in bytes.
        alignment: u64,
    },
    /// A block ends above 2^64 - 1.
    TooHigh {
        /// The block's index in the problem.
        block: usize,
        /// Its offset, in bytes.
        offset: u64,
    },
    /// Two blocks share an address while both are live.
    Overlap {
        /// The index of the block that is born first.
        first: usize,
        /// The index of the other block.
        second: usize,
    },
    /// A block uses an address that another stream freed, and no order exists between the two streams.
    Unordered {
        /// The index of the block that was freed.
        first: usize,
        /// The index of the block that uses its address.
        second: usize,
    },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { blocks, offsets } => {
                write!(f, "the number of offsets is {offsets}, but the number of blocks is {blocks}")
            }
            Self::Misaligned { block, offset, alignment } => {
                write!(f, "block {block} lies at {offset}, which is not a multiple of {alignment}")
            }
            Self::TooHigh { block, offset } => {
                write!(f, "the end of block {block} at {offset} does not fit into 64 bits")
            }
            Self::Overlap { first, second } => {
                write!(f, "blocks {first} and {second} share an address while both are live")
            }
            Self::Unordered { first, second } => {
                write!(
                    f,
                    "block {second} uses an address of block {first}, but no order lets its stream wait for \
                     the stream of block {first}"
                )
            }
        }
    }
}

impl Error for Invalid {}

/// Checks that no two [conflicting](Problem) blocks share an address. Returns the height in bytes: the end of
/// the highest block, with its size rounded up to the alignment.
///
/// # Errors
/// Returns the first defect, in the order of positions.
///
/// ```
/// use millpond_planning::{Block, Invalid, Problem, validate};
///
/// let block = Block { birth: 0, death: 1, size: 100, stream: 0 };
/// let problem = Problem::new(vec![block; 2], 1)?;
/// assert_eq!(validate(&problem, &[0, 100]), Ok(200));
/// assert_eq!(validate(&problem, &[0, 99]), Err(Invalid::Overlap { first: 0, second: 1 }));
/// # Ok::<(), millpond_planning::ProblemError>(())
/// ```
pub fn validate(problem: &Problem, offsets: &[u64]) -> Result<u64, Invalid> {
    let blocks = problem.blocks();
    if blocks.len() != offsets.len() {
        return Err(Invalid::Count { blocks: blocks.len(), offsets: offsets.len() });
    }
    let alignment = problem.alignment();
    let mut height = 0;
    let mut ends = Vec::with_capacity(blocks.len());
    for (block, (&offset, Block { size, .. })) in offsets.iter().zip(blocks).enumerate() {
        if offset % alignment != 0 {
            return Err(Invalid::Misaligned { block, offset, alignment });
        }
        let taken = size.checked_next_multiple_of(alignment);
        let end = taken.and_then(|taken| offset.checked_add(taken));
        let end = end.ok_or(Invalid::TooHigh { block, offset })?;
        if *size > 0 {
            height = height.max(end);
        }
        ends.push(end);
    }
    let mut sweep = Sweep { blocks, offsets, ends, live: BTreeMap::new(), streams: None };
    if let Some(orders) = problem.orders() {
        sweep.streams = Some(Streams::new(blocks, orders));
    }
    let mut steps: Vec<(u64, Step)> = Vec::new();
    for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.size > 0) {
        steps.push((block.birth, Step::Born(index)));
        steps.push((block.death, Step::Dies(index)));
    }
    for (index, order) in problem.orders().unwrap_or_default().iter().enumerate() {
        if let Order::Event { recorded, .. } = *order {
            steps.push((recorded, Step::Order(index, false)));
        }
        steps.push((order.at(), Step::Order(index, true)));
    }
    steps.sort_unstable();
    for (at, step) in steps {
        sweep.step(at, step)?;
    }
    Ok(height)
}

/// The steps at one position, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Dies(usize),
    /// The index of an order, and whether the order holds from this position on. If not, its event is
    /// recorded here.
    Order(usize, bool),
    Born(usize),
}

struct Sweep<'a> {
    blocks: &'a [Block],
    offsets: &'a [u64],
    ends: Vec<u64>,
    /// The live blocks by offset. They never overlap.
    live: BTreeMap<u64, usize>,
    streams: Option<Streams<'a>>,
}

impl Sweep<'_> {
    fn step(&mut self, at: u64, step: Step) -> Result<(), Invalid> {
        match step {
            Step::Dies(index) => {
                self.live.remove(&self.offsets[index]);
                if let Some(streams) = &mut self.streams {
                    streams.freed(
                        self.blocks[index].stream,
                        self.offsets[index],
                        self.ends[index],
                        at,
                        index,
                    );
                }
                Ok(())
            }
            Step::Order(index, holds) => {
                if let Some(streams) = &mut self.streams {
                    streams.order(index, holds, at);
                }
                Ok(())
            }
            Step::Born(index) => self.born(index),
        }
    }

    fn born(&mut self, index: usize) -> Result<(), Invalid> {
        let (offset, end) = (self.offsets[index], self.ends[index]);
        let below = self.live.range(..end).next_back().map(|(_, &below)| below);
        if let Some(first) = below.filter(|&below| self.ends[below] > offset) {
            return Err(Invalid::Overlap { first, second: index });
        }
        let stream = self.blocks[index].stream;
        let streams = self.streams.as_ref();
        if let Some(first) = streams.and_then(|streams| streams.unordered(stream, offset, end)) {
            return Err(Invalid::Unordered { first, second: index });
        }
        self.live.insert(offset, index);
        Ok(())
    }
}

/// The last frees of each stream at each address, and what each stream knows of the other streams.
struct Streams<'a> {
    orders: &'a [Order],
    /// The freed addresses of each stream: disjoint ranges, from start to (end, freed at, block).
    freed: HashMap<u64, BTreeMap<u64, (u64, u64, usize)>>,
    /// The knowledge of each stream about each other stream: frees up to this position are ordered before its
    /// work.
    known: HashMap<u64, HashMap<u64, u64>>,
    /// The knowledge of the recording stream at the record, by the index of the order.
    recorded: HashMap<usize, HashMap<u64, u64>>,
}

impl<'a> Streams<'a> {
    fn new(blocks: &[Block], orders: &'a [Order]) -> Self {
        let mut known: HashMap<u64, HashMap<u64, u64>> =
            blocks.iter().map(|block| (block.stream, HashMap::new())).collect();
        for order in orders {
            if let Order::Event { from, to, .. } = *order {
                known.entry(from).or_default();
                known.entry(to).or_default();
            }
        }
        Self { orders, freed: HashMap::new(), known, recorded: HashMap::new() }
    }

    fn freed(&mut self, stream: u64, start: u64, end: u64, at: u64, block: usize) {
        let ranges = self.freed.entry(stream).or_default();
        let touched: Vec<u64> = ranges
            .range(..end)
            .rev()
            .take_while(|(_, (other_end, ..))| *other_end > start)
            .map(|(&from, _)| from)
            .collect();
        for from in touched {
            let Some((other_end, freed, other)) = ranges.remove(&from) else { continue };
            if from < start {
                ranges.insert(from, (start, freed, other));
            }
            if end < other_end {
                ranges.insert(end, (other_end, freed, other));
            }
        }
        ranges.insert(start, (end, at, block));
    }

    /// Finds a block of another stream that was freed in `start..end` and is not ordered before the work of
    /// `stream`.
    fn unordered(&self, stream: u64, start: u64, end: u64) -> Option<usize> {
        for (other, ranges) in self.freed.iter().filter(|(other, _)| **other != stream) {
            let known = self.known[&stream].get(other).copied();
            let late = ranges
                .range(..end)
                .rev()
                .take_while(|(_, (range_end, ..))| *range_end > start)
                .find(|(_, (_, freed, _))| known.is_none_or(|up_to| *freed > up_to));
            if let Some((_, &(_, _, block))) = late {
                return Some(block);
            }
        }
        None
    }

    fn order(&mut self, index: usize, holds: bool, at: u64) {
        match self.orders[index] {
            Order::Device { .. } => {
                let all: HashMap<u64, u64> = self.known.keys().map(|&stream| (stream, at)).collect();
                self.tell_all(&all);
            }
            Order::Stream { stream, .. } => {
                let told = self.told_by(stream, at);
                self.tell_all(&told);
            }
            Order::Event { from, .. } if !holds => {
                let told = self.told_by(from, at);
                self.recorded.insert(index, told);
            }
            Order::Event { to, .. } => {
                if let Some(told) = self.recorded.remove(&index) {
                    tell(self.known.entry(to).or_default(), &told);
                }
            }
        }
    }

    fn told_by(&self, stream: u64, at: u64) -> HashMap<u64, u64> {
        let mut told = self.known.get(&stream).cloned().unwrap_or_default();
        told.insert(stream, at);
        told
    }

    fn tell_all(&mut self, told: &HashMap<u64, u64>) {
        for known in self.known.values_mut() {
            tell(known, told);
        }
    }
}

fn tell(known: &mut HashMap<u64, u64>, told: &HashMap<u64, u64>) {
    for (&stream, &up_to) in told {
        let entry = known.entry(stream).or_insert(up_to);
        *entry = up_to.max(*entry);
    }
}
