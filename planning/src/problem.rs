//! The input: blocks, their alignment, and how the log orders streams.

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
pub struct Block {
    /// The position at which the block is allocated, for example the number of the log's line.
    pub birth: u64,
    /// The position at which the block is freed: it is live in `birth..death`.
    pub death: u64,
    /// The size in bytes. A block of 0 bytes takes no place.
    pub size: u64,
    /// The stream that uses the block. Ignored in host order.
    pub stream: u64,
}

/// A point of the log at which work of a stream is ordered before work of others.
///
/// A free at position `d` is ordered before an allocation at position `b` of another stream if there are such
/// points between them that lead from one stream to the other. A point at the position of the free or of the
/// allocation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The host waits for all work of the device.
    Device {
        /// The position of the wait.
        at: u64,
    },
    /// The host waits for all work of one stream, so what it enqueues later, on any stream, is after it.
    Stream {
        /// The position of the wait.
        at: u64,
        /// The stream that is waited for.
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
        /// The stream that waits.
        to: u64,
    },
}

impl Order {
    /// The position from which the order holds.
    #[must_use]
    pub fn at(&self) -> u64 {
        match *self {
            Self::Device { at } | Self::Stream { at, .. } => at,
            Self::Event { waited, .. } => waited,
        }
    }
}

/// Blocks to place in one range of addresses.
///
/// Two blocks conflict, and may not share an address, if both are live at one position. In a stream-safe
/// problem, two blocks of different streams conflict as well if one dies before the other is born and no
/// [`Order`] between the two leads from the first block's stream to the other's. Without any order, blocks of
/// different streams never share an address.
///
/// Each block takes its size rounded up to the alignment, and begins at a multiple of it.
///
/// ```
/// use millpond_planning::{Block, Order, Problem, bounds};
///
/// let block = |birth, death, stream| Block { birth, death, size: 100, stream };
/// let blocks = vec![block(0, 1, 1), block(2, 3, 2)];
/// let problem = Problem::new(blocks.clone(), 256)?;
/// assert_eq!(bounds(&problem).bytes, 256);
/// // The second stream may still not take what the first one uses on the device.
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
    /// A problem in host order: streams are ignored.
    ///
    /// That is right for one stream, and for a program that orders streams before each reuse.
    ///
    /// # Errors
    /// If the alignment is 0, a block does not die after its birth, or the sizes together exceed `u64`.
    pub fn new(blocks: Vec<Block>, alignment: u64) -> Result<Self, ProblemError> {
        Self::checked(blocks, alignment, None)
    }

    /// A problem in which blocks of different streams share addresses only where `orders` allow it.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and if an event is waited for before it is recorded.
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

    /// The blocks, in the order of [`Plan::offsets`](crate::Plan::offsets).
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The alignment of offsets, in bytes.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The greatest common divisor of all sizes, rounded up to the alignment. No placement is lower than the
    /// lowest one whose offsets are all multiples of it: blocks that drop as low as they can lie at sums of
    /// sizes.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// The orders between streams, by position; `None` in host order.
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

/// The reason why blocks are no problem to place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemError {
    /// Offsets cannot be multiples of 0.
    ZeroAlignment,
    /// A block is never live.
    NeverLive {
        /// The block's place in the list.
        index: usize,
        /// Its birth.
        birth: u64,
        /// Its death.
        death: u64,
    },
    /// An event was waited for before it was recorded.
    WaitBeforeRecord {
        /// The order's place in the list.
        index: usize,
        /// The position of the record.
        recorded: u64,
        /// The position of the wait.
        waited: u64,
    },
    /// More than 2^32 - 1 blocks, or more than 2^64 - 1 bytes in all blocks together.
    TooLarge,
}

impl fmt::Display for ProblemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroAlignment => f.write_str("the alignment is 0; use 1 for none"),
            Self::NeverLive { index, birth, death } => {
                write!(f, "block {index} is born at {birth} and dies at {death}; a death is after its birth")
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
