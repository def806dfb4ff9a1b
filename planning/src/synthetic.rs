//! Artificial programs for tests and measurements of planners. The same seed gives the same program on every
//! machine.

use crate::Block;
use crate::random::Random;

/// Makes the blocks of a training loop. Weights and optimizer states stay live. Each step has activations
/// that live from the forward pass to the backward pass, gradients, and temporary blocks of each layer.
///
/// Sizes are multiples of 512 bytes. They change from step to step with the length of the batch. The result
/// has `blocks` blocks in the order of births, and all of them belong to stream 0.
///
/// ```
/// let blocks = millpond_planning::synthetic::training(10_000, 1);
/// assert_eq!(blocks.len(), 10_000);
/// assert!(blocks.iter().all(|block| block.birth < block.death && block.size > 0));
/// ```
#[must_use]
pub fn training(blocks: usize, seed: u64) -> Vec<Block> {
    let mut program = Program { now: 0, blocks: Vec::with_capacity(blocks), random: Random::new(seed) };
    let layers = 24;
    let widths: Vec<u64> = (0..layers).map(|_| 8 << program.random.below(4)).collect();
    for &width in &widths {
        // A weight, a gradient, and two optimizer states.
        for _ in 0..4 {
            program.allocate(width * width * 512);
        }
    }
    while program.blocks.len() < blocks {
        let length = 16 + program.random.below(112) as u64;
        program.step(&widths, length);
    }
    program.blocks.truncate(blocks);
    let end = program.now + 1;
    for block in &mut program.blocks {
        // Blocks that the loop did not free live until the end.
        block.death = if block.death == 0 { end } else { block.death };
    }
    program.blocks
}

struct Program {
    now: u64,
    blocks: Vec<Block>,
    random: Random,
}

impl Program {
    fn allocate(&mut self, size: u64) -> usize {
        self.blocks.push(Block { birth: self.now, death: 0, size, stream: 0 });
        self.now += 1;
        self.blocks.len() - 1
    }

    fn free(&mut self, index: usize) {
        self.blocks[index].death = self.now;
        self.now += 1;
    }

    fn temporaries(&mut self, size: u64) {
        for _ in 0..2 + self.random.below(4) {
            let part = 512 * (1 + self.random.below((size / 512) as usize) as u64);
            let temporary = self.allocate(part);
            self.free(temporary);
        }
    }

    /// Runs a forward pass, and a backward pass that frees the activations in reverse order.
    fn step(&mut self, widths: &[u64], length: u64) {
        let mut saved = Vec::new();
        for &width in widths {
            let size = width * length * 512;
            let workspace = self.allocate(2 * size);
            saved.push((self.allocate(size), size));
            self.temporaries(size);
            saved.push((self.allocate(size / 2 + 512 - size / 2 % 512), size));
            self.free(workspace);
        }
        let mut gradient: Option<usize> = None;
        for (activation, size) in saved.into_iter().rev() {
            let next = self.allocate(size);
            self.temporaries(size);
            if let Some(last) = gradient.replace(next) {
                self.free(last);
            }
            self.free(activation);
        }
        if let Some(last) = gradient {
            self.free(last);
        }
    }
}
