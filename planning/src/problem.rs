//! The input of the planner: blocks, their alignment, and the orders between streams.

use std::error::Error;
use std::fmt;

/// A block of memory that a program used.
///
/// ```
/// use millpond_planning::Block;
///
/// // Allocated by line 3 of a log, freed by line 8, on stream 7.
/// let block = Block { birth: 3, death: 8, size: 4096, stream: 7 };
/// assert!(block.birth < block.death);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "the problem has no other part")]
pub struct Block {
    /// The position at which the block is allocated, for example the line number in the log.
    pub birth: u64,
    /// The position at which the block is freed. The block is live in `birth..death`.
    pub death: u64,
    /// The size in bytes. A block of 0 bytes needs no space.
    pub size: u64,
    /// The stream that uses the block. It is ignored in host order.
    pub stream: u64,
}

/// A position in the log at which work of one stream is ordered before later work of other streams.
///
/// A free at position `d` is ordered before an allocation of another stream at position `b`, if such orders
/// lead from the first stream to the other. Only orders from position `d` to position `b`, both included,
/// count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// The host waits for all work of the device.
    Device {
        /// The position of the wait.
        at: u64,
    },
    /// The host waits for all work of one stream. Work that the host enqueues later, on any stream, runs
    /// after that work.
    Stream {
        /// The position of the wait.
        at: u64,
        /// The awaited stream.
        stream: u64,
    },
    /// A stream waits for an event that another stream recorded.
    Event {
        /// The position at which the event was recorded.
        recorded: u64,
        /// The position at which the wait was enqueued, at or after `recorded`.
        waited: u64,
        /// The stream that recorded the event.
        from: u64,
        /// The stream that the host waits for.
        to: u64,
    },
}

impl Order {
    /// Returns the position from which the order holds.
    #[must_use]
    pub fn at(&self) -> u64 {
        match *self {
            Self::Device { at } | Self::Stream { at, .. } => at,
            Self::Event { waited, .. } => waited,
        }
    }
}

/// Blocks that are to be placed in one range of addresses.
///
/// Two blocks conflict if both are live at one position. Blocks that conflict may not share an address. In a
/// stream-safe problem, two blocks of different streams can also conflict if one dies before the other is
/// born. They conflict unless an [`Order`] between the two positions leads from the first block's stream to
/// the other block's stream. If there are no orders, blocks of different streams never share an address.
///
/// Each block uses its size rounded up to the alignment, and begins at a multiple of the alignment.
///
/// ```
/// use millpond_planning::{Block, Order, Problem, bounds};
///
/// let block = |birth, death, stream| Block { birth, death, size: 100, stream };
/// let blocks = vec![block(0, 1, 1), block(2, 3, 2)];
/// let problem = Problem::new(blocks.clone(), 256)?;
/// assert_eq!(bounds(&problem).bytes, 256);
/// // The first stream may still use its block on the device, so the second stream may not take it.
/// let problem = Problem::stream_safe(blocks.clone(), 256, Vec::new())?;
/// assert_eq!(bounds(&problem).bytes, 512);
/// // Here the host waited in between.
/// let problem = Problem::stream_safe(blocks, 256, vec![Order::Device { at: 1 }])?;
/// assert_eq!(bounds(&problem).bytes, 256);
/// # Ok::<(), millpond_planning::ProblemError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Problem {
    blocks: Vec<Block>,
    alignment: u64,
    unit: u64,
    orders: Option<Vec<Order>>,
}

impl Problem {
    /// Makes a problem in host order: streams are ignored.
    ///
    /// Use this for a program with one stream, or for a program that orders its streams before each reuse.
    ///
    /// # Errors
    /// Returns an error if the alignment is 0, if a block does not die after its birth, or if the sum of
    /// sizes exceeds `u64`.
    pub fn new(blocks: Vec<Block>, alignment: u64) -> Result<Self, ProblemError> {
        Self::checked(blocks, alignment, None)
    }

    /// Makes a problem in which blocks of different streams share addresses only if `orders` allow it.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new), and an error if a wait for an event comes before its record.
    pub fn stream_safe(
        blocks: Vec<Block>,
        alignment: u64,
        mut orders: Vec<Order>,
    ) -> Result<Self, ProblemError> {
        for (index, order) in orders.iter().enumerate() {
            if let Order::Event { recorded, waited, .. } = *order
                && waited < recorded
            {
                return Err(ProblemError::WaitBeforeRecord { index, recorded, waited });
            }
        }
        orders.sort_by_key(Order::at);
        Self::checked(blocks, alignment, Some(orders))
    }

    fn checked(blocks: Vec<Block>, alignment: u64, orders: Option<Vec<Order>>) -> Result<Self, ProblemError> {
        if alignment == 0 {
            return Err(ProblemError::ZeroAlignment);
        }
        if u32::try_from(blocks.len()).is_err() {
            return Err(ProblemError::TooLarge);
        }
        let (mut total, mut unit) = (0u64, 0);
        for (index, block) in blocks.iter().enumerate() {
            if block.death <= block.birth {
                let Block { birth, death, .. } = *block;
                return Err(ProblemError::NeverLive { index, birth, death });
            }
            let rounded = block.size.checked_next_multiple_of(alignment).ok_or(ProblemError::TooLarge)?;
            total = total.checked_add(rounded).ok_or(ProblemError::TooLarge)?;
            unit = greatest_common_divisor(unit, rounded);
        }
        Ok(Self { blocks, alignment, unit: unit.max(alignment), orders })
    }

    /// Returns the blocks, in the order of [`Plan::offsets`](crate::Plan::offsets).
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns the alignment of offsets, in bytes.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Returns the greatest common divisor of all sizes, which are rounded up to the alignment. Some lowest
    /// placement uses only multiples of this number as offsets, because blocks that drop as low as they can
    /// lie at sums of sizes.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// Returns the orders between streams, by position; `None` in host order.
    #[must_use]
    pub fn orders(&self) -> Option<&[Order]> {
        self.orders.as_deref()
    }
}

pub(crate) fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The reason why a list of blocks is not a valid problem.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemError {
    /// The alignment is 0, but offsets cannot be multiples of 0.
    ZeroAlignment,
    /// A block is never live, because it does not die after its birth.
    NeverLive {
        /// The block's index in the list.
        index: usize,
        /// The position of the block's birth.
        birth: u64,
        /// The position of the block's death.
        death: u64,
    },
    /// A wait for an event comes before the event's record.
    WaitBeforeRecord {
        /// The order's index in the list.
        index: usize,
        /// The position of the record.
        recorded: u64,
        /// The position of the wait.
        waited: u64,
    },
    /// There are more than 2^32 - 1 blocks, or all blocks together have more than 2^64 - 1 bytes.
    TooLarge,
}

impl fmt::Display for ProblemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroAlignment => f.write_str("the alignment is 0; write 1 for no alignment"),
            Self::NeverLive { index, birth, death } => {
                write!(f, "block {index} is born at {birth} and dies at {death}; it must die after its birth")
            }
            Self::WaitBeforeRecord { index, recorded, waited } => write!(
                f,
                "order {index} waits at {waited} for an event that is recorded later, at {recorded}"
            ),
            Self::TooLarge => f.write_str("too many blocks, or their sizes together exceed 64 bits"),
        }
    }
}

impl Error for ProblemError {}
