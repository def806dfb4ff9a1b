//! Freed blocks of a scope that no stream gets until the work of other streams is done.

use millpond_core::StreamId;

use crate::block_map::ChunkId;
use crate::driver_calls::NamedStream;

/// A reason why a parked block waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// The work of the stream outside of captures. When the scope closes for the stream, it records an event
    /// behind that work.
    Close(NamedStream),
    /// The event with this number.
    Fence(u64),
    /// All work of the device.
    Device,
}

/// A parked block.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) chunk: ChunkId,
    waits: Vec<Wait>,
    /// The stream and the capture that freed the block, while that capture may go on.
    pub(super) capture: Option<(StreamId, u64)>,
    number: u64,
}

/// The parked blocks of a scope.
#[derive(Debug, Default)]
pub(super) struct Parking {
    blocks: Vec<Parked>,
    /// The number of blocks parked so far, which numbers the next block.
    count: u64,
    fences: u64,
}

impl Parking {
    pub(super) fn park(&mut self, chunk: ChunkId, waits: Vec<Wait>, capture: Option<(StreamId, u64)>) {
        self.blocks.push(Parked { chunk, waits, capture, number: self.count });
        self.count += 1;
    }

    /// Returns the number of the next parked block.
    pub(super) fn next(&self) -> u64 {
        self.count
    }

    /// Returns the number of a new event.
    pub(super) fn new_fence(&mut self) -> u64 {
        self.fences += 1;
        self.fences
    }

    /// Returns the streams that still need an event recorded behind their work.
    pub(super) fn unrecorded(&self) -> Vec<NamedStream> {
        let mut streams: Vec<NamedStream> = Vec::new();
        for wait in self.blocks.iter().flat_map(|block| &block.waits) {
            if let Wait::Close(named) = wait
                && streams.iter().all(|known| known.id != named.id)
            {
                streams.push(*named);
            }
        }
        streams
    }

    /// Notes the event recorded on a stream, for the blocks parked `before`. Without an event they wait for
    /// the device.
    pub(super) fn note_record(&mut self, stream: StreamId, fence: Option<u64>, before: u64) {
        for block in self.blocks.iter_mut().filter(|block| block.number < before) {
            for wait in &mut block.waits {
                if matches!(wait, Wait::Close(named) if named.id == stream) {
                    *wait = fence.map_or(Wait::Device, Wait::Fence);
                }
            }
        }
    }

    /// Notes that the device has reached an event.
    pub(super) fn note_reached(&mut self, fence: u64) {
        let is_it = |wait: &Wait| matches!(wait, Wait::Fence(number) if *number == fence);
        self.blocks.iter_mut().for_each(|block| block.waits.retain(|wait| !is_it(wait)));
    }

    /// Notes a wait for the device that began when the blocks `before` were parked.
    pub(super) fn note_device(&mut self, before: u64) {
        let covered = self.blocks.iter_mut().filter(|block| block.number < before);
        covered.for_each(|block| block.waits.clear());
    }

    /// Notes that no capture of the scope goes on.
    pub(super) fn note_captures_ended(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.capture = None);
    }

    /// Removes the blocks that no longer wait.
    pub(super) fn take_ready(&mut self) -> Vec<Parked> {
        self.blocks.extract_if(.., |block| block.waits.is_empty()).collect()
    }

    /// Returns the parked blocks, with what each waits for.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (&Parked, &[Wait])> {
        self.blocks.iter().map(|block| (block, &*block.waits))
    }

    /// Removes all blocks.
    pub(super) fn take_all(&mut self) -> Vec<Parked> {
        std::mem::take(&mut self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scope that ends gets back the blocks that still wait, too.
    #[test]
    fn all_blocks_are_taken_whether_they_wait_or_not() {
        let mut parking = Parking::default();
        for (chunk, waits) in [(1, vec![Wait::Device]), (2, vec![Wait::Fence(7)]), (3, vec![])] {
            parking.park(chunk, waits, None);
        }
        let chunks = |blocks: Vec<Parked>| blocks.into_iter().map(|block| block.chunk).collect::<Vec<_>>();
        assert_eq!(chunks(parking.take_ready()), [3]);
        assert_eq!(chunks(parking.take_all()), [1, 2]);
        assert!(parking.take_all().is_empty());
    }
}
