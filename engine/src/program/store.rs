//! Stores operations in memory or in a temporary file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Op;

/// The number of operations in a block of operations (1.5 MiB). Operations are written and read in such
/// blocks.
pub(super) const BLOCK_OPS: usize = 64 << 10;

/// The operations of a program. They are in memory, or in an unnamed file that is deleted when the process
/// ends.
#[derive(Debug)]
pub(super) enum OpStore {
    Memory(Vec<Arc<[Op]>>),
    File { file: Mutex<File>, ops: u64 },
}

impl OpStore {
    pub(super) fn is_spooled(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    pub(super) fn block_count(&self) -> usize {
        match self {
            Self::Memory(blocks) => blocks.len(),
            Self::File { ops, .. } => ops.div_ceil(BLOCK_OPS as u64) as usize,
        }
    }

    pub(super) fn block(&self, index: usize) -> io::Result<Arc<[Op]>> {
        let (file, ops) = match self {
            Self::Memory(blocks) => return Ok(blocks[index].clone()),
            Self::File { file, ops } => (file, *ops),
        };
        let first = index as u64 * BLOCK_OPS as u64;
        assert!(first < ops, "block {index} is behind the end");
        let count = (ops - first).min(BLOCK_OPS as u64) as usize;
        let mut packed = vec![0; count * Op::PACKED_BYTES];
        {
            let mut file = file.lock(); // several replays may read at once
            file.seek(SeekFrom::Start(first * Op::PACKED_BYTES as u64))?;
            file.read_exact(&mut packed)?;
        }
        Ok(packed.as_chunks().0.iter().map(Op::unpack).collect())
    }
}

/// Fills an [`OpStore`]. Moves the operations to a file when they become too large for memory.
#[derive(Debug)]
pub(super) struct OpWriter {
    store: OpStore,
    last: Vec<Op>,
    blocks_in_memory: usize,
}

impl OpWriter {
    pub(super) fn new(ops_in_memory: usize) -> Self {
        let blocks_in_memory = ops_in_memory / BLOCK_OPS;
        Self { store: OpStore::Memory(Vec::new()), last: Vec::new(), blocks_in_memory }
    }

    #[inline]
    pub(super) fn push(&mut self, op: Op) -> io::Result<()> {
        self.last.push(op);
        if self.last.len() < BLOCK_OPS { Ok(()) } else { self.end_block() }
    }

    pub(super) fn finish(mut self) -> io::Result<OpStore> {
        if !self.last.is_empty() {
            self.end_block()?;
        }
        Ok(self.store)
    }

    fn end_block(&mut self) -> io::Result<()> {
        if let OpStore::Memory(blocks) = &mut self.store {
            if blocks.len() < self.blocks_in_memory {
                blocks.push(Arc::from(self.last.as_slice()));
                self.last.clear();
                return Ok(());
            }
            let blocks = std::mem::take(blocks);
            self.store = OpStore::File { file: Mutex::new(tempfile::tempfile()?), ops: 0 };
            for block in blocks {
                self.append(&block)?;
            }
        }
        let last = std::mem::take(&mut self.last);
        self.append(&last)?;
        self.last = last;
        self.last.clear();
        Ok(())
    }

    fn append(&mut self, block: &[Op]) -> io::Result<()> {
        if let OpStore::File { file, ops } = &mut self.store {
            let packed: Vec<u8> = block.iter().flat_map(Op::pack).collect();
            file.get_mut().write_all(&packed)?;
            *ops += block.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::OpKind;
    use super::*;

    fn op(number: u32) -> Op {
        Op { bytes: 1, slot: number, lane: 0, line: number, kind: OpKind::Free, alignment_log2: 8, ticket: 0 }
    }

    #[test]
    fn what_goes_in_comes_out_in_memory_and_from_a_file() {
        for count in [0, 1, BLOCK_OPS, BLOCK_OPS + 1, 3 * BLOCK_OPS + 77] {
            for limit in [0, 2 * BLOCK_OPS, usize::MAX] {
                let mut writer = OpWriter::new(limit);
                (0..count).for_each(|number| writer.push(op(number as u32)).unwrap());
                let store = writer.finish().unwrap();
                let back: Vec<Op> =
                    (0..store.block_count()).flat_map(|block| store.block(block).unwrap().to_vec()).collect();
                assert_eq!(back, (0..count).map(|number| op(number as u32)).collect::<Vec<_>>());
                assert_eq!(
                    store.is_spooled(),
                    count.div_ceil(BLOCK_OPS) > limit / BLOCK_OPS,
                    "{count} {limit}"
                );
            }
        }
    }
}
