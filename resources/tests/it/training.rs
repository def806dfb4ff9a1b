//! Tests the memory of a pool over pages after many steps of a training loop.

use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PoolLayer, PoolMemoryResource};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const LAYERS: usize = 12;
const SMALL_PER_LAYER: usize = 40;

type Block = (DevicePtr, u64);

struct Model {
    pool: PoolMemoryResource<CudaMemoryResource>,
    gradients: Vec<Block>,
}

/// The blocks that a layer's forward pass leaves for the backward pass.
struct Saved {
    norms: [Block; 2],
    attention: [Block; 4],
    feed_forward: [Block; 4],
    rest: Block,
}

impl Model {
    fn new() -> Self {
        let device = SimDevice::new(SimConfig::h200());
        let pool = CudaMemoryResource::new(device).layer(PoolLayer::new()).expect("a pool");
        let model = Self { pool, gradients: Vec::new() };
        // The weights, and two moments each, which are never freed.
        for _ in 0..3 {
            model.take(125);
            (0..LAYERS).for_each(|_| [12, 4, 16, 16].into_iter().for_each(|mib| _ = model.take(mib)));
            model.take(125);
        }
        model
    }

    fn allocate(&self, bytes: u64) -> Block {
        (self.pool.allocate_bytes(bytes, StreamRef::LEGACY).expect("there is room"), bytes)
    }

    fn take(&self, mib: u64) -> Block {
        self.allocate(mib * MIB)
    }

    fn free(&self, blocks: &[Block]) {
        for (ptr, bytes) in blocks {
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { self.pool.deallocate_bytes(*ptr, *bytes, StreamRef::LEGACY) };
        }
    }

    fn take_gradient(&mut self, mib: u64) {
        let gradient = self.take(mib);
        self.gradients.push(gradient);
    }

    fn small_blocks(&self) {
        (0..SMALL_PER_LAYER).for_each(|_| self.free(&[self.allocate(KIB)]));
    }

    /// Frees the layer's input. Returns the blocks that the layer saves, and its output.
    fn forward(&self, input: Block) -> (Saved, Block) {
        self.small_blocks();
        let (six, sixteen, packed) = (self.take(6), self.take(16), self.take(16));
        let heads = self.take(48);
        self.free(&[packed]);
        let split = self.take(48);
        self.free(&[heads]);
        let (mixed, two, projected, sum) = (self.take(16), self.take(2), self.take(16), self.take(32));
        self.free(&[projected]);
        let (residual, eight, normed) = (self.take(32), self.take(8), self.take(16));
        let (wide, active) = (self.take(64), self.take(64));
        self.free(&[wide]);
        let (eight_more, narrow) = (self.take(8), self.take(16));
        self.free(&[residual]);
        let rest = self.take(32);
        self.free(&[narrow]);
        let output = self.take(32);
        self.free(&[input]);
        let attention = [split, mixed, two, sum];
        let feed_forward = [eight, normed, active, eight_more];
        (Saved { norms: [six, sixteen], attention, feed_forward, rest }, output)
    }

    /// Computes the loss, frees the last step's gradients, and takes this step's first gradient.
    fn loss(&mut self, output: Block) {
        let (last, scores, logits) = (self.take(62), self.take(16), self.take(500));
        self.free(&[output]);
        let shifted = self.take(500);
        let exponents = self.take(1000);
        self.free(&[logits]);
        let gradients = std::mem::take(&mut self.gradients);
        self.free(&gradients);
        let of_exponents = self.take(1000);
        self.free(&[exponents]);
        let of_shifted = self.take(500);
        self.free(&[of_exponents]);
        let of_logits = self.take(500);
        self.free(&[of_shifted, shifted, scores]);
        let of_last = self.take(62);
        self.take_gradient(125);
        self.free(&[of_logits, of_last, last]);
    }

    /// Frees the saved blocks and the gradient of the layer's output. Returns the gradient of the layer's
    /// input.
    fn backward(&mut self, saved: Saved, of_output: Block) -> Block {
        self.small_blocks();
        let [split, mixed, two, sum] = saved.attention;
        let [eight, normed, active, eight_more] = saved.feed_forward;
        let (narrow, wide) = (self.take(16), self.take(64));
        self.take_gradient(16);
        self.free(&[self.take(64), narrow, eight_more]);
        let of_wide = self.take(64);
        self.free(&[wide, active]);
        self.take_gradient(16);
        self.free(&[self.take(132), of_wide, normed, eight]);
        let first = self.take(32);
        self.free(&[of_output, saved.rest]);
        let second = self.take(32);
        self.free(&[first]);
        let between = self.take(32);
        self.free(&[second]);
        let (narrow, copy) = (self.take(16), self.take(2));
        self.free(&[self.take(64), two]);
        self.take_gradient(4);
        self.free(&[copy]);
        let heads = [16; 5].map(|mib| self.take(mib));
        self.free(&[self.take(64), heads[0], heads[1], narrow, split, mixed]);
        let packed = self.take(48);
        self.free(&[heads[2]]);
        let turned = self.take(48);
        self.free(&[heads[3], packed, heads[4]]);
        self.free(&[self.take(132)]);
        let (copy, narrow) = (self.take(6), self.take(16));
        self.free(&[turned]);
        self.free(&saved.norms);
        let first = self.take(32);
        self.free(&[narrow]);
        self.take_gradient(12);
        self.free(&[copy]);
        let of_input = self.take(32);
        self.free(&[first, sum, between]);
        of_input
    }

    fn step(&mut self) {
        let (mut saved, mut at) = (Vec::new(), self.take(32));
        for _ in 0..LAYERS {
            let (of_layer, output) = self.forward(at);
            saved.push(of_layer);
            at = output;
        }
        self.loss(at);
        let first = self.take(32);
        let last = saved.into_iter().rev().fold(first, |of_output, saved| self.backward(saved, of_output));
        self.take_gradient(125);
        self.free(&[last]);
    }
}

/// Gradients live from step to step, among blocks that come and go. If they move in each step, the pool must
/// stitch the largest blocks again, and takes memory to save driver calls.
#[test]
fn a_training_loop_takes_little_more_after_a_hundred_steps_than_what_is_live() {
    if cfg!(miri) {
        return; // too many steps
    }
    let mut model = Model::new();
    (0..100).for_each(|_| model.step());
    let statistics = model.pool.statistics().expect("a pool keeps statistics");
    let taken = statistics.peak_bytes_reserved as f64 / statistics.peak_bytes_in_use as f64;
    println!("taken / live {taken:.4}");
    assert!(taken < 1.05, "{taken}");
    model.pool.validate();
}
