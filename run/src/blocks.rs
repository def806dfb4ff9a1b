//! The live blocks and the mappings of a process.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::serving::Lent;
use crate::stacks::Stack;

/// The first address of blocks that have none: physical memory, and the memory of the driver itself. No
/// device has such addresses.
pub(crate) const NO_ADDRESS: u64 = 1 << 60;

/// A live block of device memory.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The address; for physical memory, a number that no address of a device has.
    pub(crate) address: u64,
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// The device's ordinal.
    pub(crate) device: c_int,
    /// The context that takes the block with it when it is destroyed; 0 for a block of a pool and for
    /// physical memory.
    pub(crate) context: u64,
    /// Whether the program asked for it; the other blocks belong to a stack that serves the program.
    pub(crate) is_of_program: bool,
    /// The block of a stack, if a stack serves it.
    pub(crate) lent: Option<Lent>,
    /// The call stack of the request, if the process is watched.
    pub(crate) stack: Option<Arc<Stack>>,
}

impl Block {
    /// Returns a block of the driver that has no context and that the program did not ask for.
    pub(crate) const fn new(address: u64, bytes: u64, device: c_int) -> Self {
        Self { address, bytes, device, context: 0, is_of_program: false, lent: None, stack: None }
    }
}

/// Physical memory, which lives until it has no handle and no mapping.
#[derive(Debug)]
struct Physical {
    block: Block,
    handles: u64,
    mappings: u64,
}

/// The live blocks of all devices.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// Blocks by `is_of_program` and address. A stack may lend the begin of its own block.
    blocks: BTreeMap<(bool, u64), Block>,
    /// Physical memory by the number in `block.address`.
    physical: FxHashMap<u64, Physical>,
    /// The physical memory of each handle that the process holds.
    handles: FxHashMap<u64, u64>,
    /// The end and the physical memory of each mapping, by its address.
    mappings: BTreeMap<u64, (u64, u64)>,
    /// The bytes of all numbers that blocks without an address have taken.
    taken: u64,
}

impl Blocks {
    pub(crate) fn insert(&mut self, block: Block) {
        self.blocks.insert((block.is_of_program, block.address), block);
    }

    pub(crate) fn remove(&mut self, is_of_program: bool, address: u64) -> Option<Block> {
        self.blocks.remove(&(is_of_program, address))
    }

    /// Returns the block of a stack that the program has at this address.
    pub(crate) fn lent_at(&self, address: u64) -> Option<&Block> {
        let (_, block) = self.blocks.range((true, 0)..=(true, address)).next_back()?;
        (block.lent.is_some() && address - block.address < block.bytes).then_some(block)
    }

    /// Returns an address that no block has, for a block of this size.
    pub(crate) fn place(&mut self, bytes: u64) -> u64 {
        let address = NO_ADDRESS + self.taken;
        self.taken = self.taken.saturating_add(bytes.max(1)) % NO_ADDRESS;
        address
    }

    /// Adds physical memory that has one handle. Returns its block.
    pub(crate) fn create(&mut self, handle: u64, wanted: Block) -> Block {
        let block = Block { address: self.place(wanted.bytes), ..wanted };
        self.handles.insert(handle, block.address);
        self.physical.insert(block.address, Physical { block: block.clone(), handles: 1, mappings: 0 });
        block
    }

    /// Counts another use of a handle.
    pub(crate) fn retain(&mut self, handle: u64) {
        if let Some(physical) = self.handles.get(&handle).and_then(|number| self.physical.get_mut(number)) {
            physical.handles += 1;
        }
    }

    /// Gives one use of a handle back. Returns the block if its memory is free now.
    pub(crate) fn release(&mut self, handle: u64) -> Option<Block> {
        let number = *self.handles.get(&handle)?;
        let physical = self.physical.get_mut(&number)?;
        physical.handles -= 1;
        if physical.handles == 0 {
            self.handles.remove(&handle);
        }
        self.end(number)
    }

    pub(crate) fn map(&mut self, address: u64, bytes: u64, handle: u64) {
        let Some(&number) = self.handles.get(&handle) else { return };
        if let Some(physical) = self.physical.get_mut(&number) {
            physical.mappings += 1;
            self.mappings.insert(address, (address.saturating_add(bytes), number));
        }
    }

    /// Ends the mappings in a range. Returns the blocks whose memory is free now.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Vec<Block> {
        let range = address..address.saturating_add(bytes);
        let ended: Vec<(u64, u64)> =
            self.mappings.range(range).map(|(address, &(_, number))| (*address, number)).collect();
        let mut free = Vec::new();
        for (address, number) in ended {
            self.mappings.remove(&address);
            if let Some(physical) = self.physical.get_mut(&number) {
                physical.mappings -= 1;
            }
            free.extend(self.end(number));
        }
        free
    }

    /// Removes physical memory that has no handle and no mapping.
    fn end(&mut self, number: u64) -> Option<Block> {
        let physical = self.physical.get(&number)?;
        let is_over = physical.handles == 0 && physical.mappings == 0;
        is_over.then(|| self.physical.remove(&number)).flatten().map(|physical| physical.block)
    }

    /// Returns the program's blocks on a device.
    pub(crate) fn of_program(&self, device: c_int) -> impl Iterator<Item = &Block> {
        let physical = self.physical.values().map(|physical| &physical.block);
        let all = self.blocks.values().chain(physical);
        all.filter(move |block| block.is_of_program && block.device == device)
    }

    /// Removes and returns the blocks that a context takes with it.
    pub(crate) fn of_context(&mut self, context: u64) -> Vec<Block> {
        self.taken_with(|block| block.context == context)
    }

    /// Removes and returns the blocks that the contexts of a device take with them.
    pub(crate) fn of_device(&mut self, device: c_int) -> Vec<Block> {
        self.taken_with(|block| block.device == device)
    }

    fn taken_with(&mut self, is_lost: impl Fn(&Block) -> bool) -> Vec<Block> {
        let lost = |block: &Block| block.context != 0 && is_lost(block);
        let gone: Vec<Block> = self.blocks.values().filter(|block| lost(block)).cloned().collect();
        for block in &gone {
            self.blocks.remove(&(block.is_of_program, block.address));
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_memory_lives_until_it_has_no_handle_and_no_mapping() {
        let mut blocks = Blocks::default();
        let block = blocks.create(7, Block::new(0, 100, 0));
        blocks.map(0x1000, 50, 7);
        blocks.map(0x2000, 50, 7);
        assert!(blocks.release(7).is_none(), "mapped");
        // The driver may use the number of a handle again.
        let other = blocks.create(7, Block::new(0, 10, 0));
        assert!(block.address + block.bytes <= other.address);
        assert!(blocks.unmap(0x1000, 50).is_empty(), "mapped elsewhere");
        let free = blocks.unmap(0x1000, 0x2000);
        assert_eq!(free.iter().map(|block| block.bytes).collect::<Vec<_>>(), [100]);
        blocks.retain(7);
        assert!(blocks.release(7).is_none());
        assert_eq!(blocks.release(7).map(|block| block.bytes), Some(10));
        assert!(blocks.release(7).is_none() && blocks.unmap(0, u64::MAX).is_empty());
    }

    #[test]
    fn a_context_takes_its_blocks_with_it_and_no_others() {
        let mut blocks = Blocks::default();
        for (address, device, context) in [(0x100, 0, 1), (0x200, 0, 2), (0x300, 0, 0), (0x400, 1, 3)] {
            blocks.insert(Block { context, ..Block::new(address, 1, device) });
        }
        let gone = |gone: Vec<Block>| gone.iter().map(|block| block.address).collect::<Vec<_>>();
        assert_eq!(gone(blocks.of_context(1)), [0x100]);
        assert_eq!(gone(blocks.of_device(0)), [0x200]);
        assert!(blocks.remove(false, 0x300).is_some() && blocks.remove(false, 0x400).is_some());
    }
}
