//! The lives of blocks and of reserved memory, counted in events.

use std::collections::{BTreeMap, HashMap};

use super::{Event, EventKind, Id, Recording};

/// The life of a block, or of a range of reserved memory.
///
/// ```
/// use millpond_snapshot::import::{self, Options};
/// let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
/// let recording = import::read("example", csv.as_bytes(), &Options::default())?;
/// let lives = recording.block_lives();
/// assert_eq!((lives[0].bytes, lives[0].start, lives[0].end), (4096, 0, 2));
/// # Ok::<(), millpond_engine::log::LogError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Life {
    /// The number of the event that began the life, counted from 0.
    pub start: usize,
    /// The number of the event that ended the life. If no event ended it, this is the number of all events.
    pub end: usize,
    /// The address of the block or the range.
    pub address: u64,
    /// The size in bytes. For a block, it is the requested size.
    pub bytes: u64,
    /// The call stack of the event that began the life.
    pub stack: Option<Id>,
}

impl Recording {
    /// Returns the lives of all blocks, in the order in which they began. An event ends at most one block.
    pub fn block_lives(&self) -> Vec<Life> {
        let mut lives: Vec<Life> = Vec::new();
        let mut live: HashMap<u64, usize> = HashMap::new();
        for (at, event) in self.events().enumerate() {
            let ended = match event.kind {
                // If the address is still live, the source lost the block's free.
                EventKind::Allocate => {
                    lives.push(life(event, at, self.len()));
                    live.insert(event.address, lives.len() - 1)
                }
                EventKind::Free => live.remove(&event.address),
                _ => None,
            };
            if let Some(number) = ended {
                lives[number].end = at;
            }
        }
        lives
    }

    /// Returns the lives of the memory ranges that the allocator had reserved from the driver, in the order
    /// in which they began. If the allocator returns a part of a range to the driver, the range ends, and a
    /// new range begins for the rest. The result is empty if the source has no segments.
    pub fn segment_lives(&self) -> Vec<Life> {
        let mut lives: Vec<Life> = Vec::new();
        let mut live: BTreeMap<u64, usize> = BTreeMap::new();
        for (at, event) in self.events().enumerate() {
            match event.kind {
                EventKind::SegmentAllocate | EventKind::SegmentMap => {
                    lives.push(life(event, at, self.len()));
                    if let Some(lost) = live.insert(event.address, lives.len() - 1) {
                        lives[lost].end = at;
                    }
                }
                EventKind::SegmentFree | EventKind::SegmentUnmap => {
                    cut(&mut lives, &mut live, at, event);
                }
                _ => {}
            }
        }
        let len = self.len();
        lives.iter_mut().for_each(|life| life.end = life.end.min(len));
        lives
    }
}

fn life(event: &Event, start: usize, end: usize) -> Life {
    Life { start, end, address: event.address, bytes: event.bytes, stack: event.stack }
}

/// Ends the ranges that an event returns to the driver, at least in part. The remaining parts become new
/// ranges.
fn cut(lives: &mut Vec<Life>, live: &mut BTreeMap<u64, usize>, at: usize, event: &Event) {
    let (from, to) = (event.address, event.address.saturating_add(event.bytes));
    while let Some((&start, &number)) = live.range(..to).next_back() {
        let whole = lives[number];
        let end = start.saturating_add(whole.bytes);
        if end <= from {
            return;
        }
        live.remove(&start);
        lives[number].end = at;
        let mut keep = |address: u64, bytes: u64| {
            lives.push(Life { start: at, end: usize::MAX, address, bytes, ..whole });
            live.insert(address, lives.len() - 1);
        };
        if end > to {
            keep(to, end - to);
        }
        if start < from {
            keep(start, from - start);
            return;
        }
    }
}
