//! The operations of one pass: the log's operations, and a kernel for each allocation.

use millpond_core::Layout;
use millpond_engine::Result;
use millpond_engine::log::StreamKey;
use millpond_engine::program::{Op, OpKind, Program};

use super::kernels::{Durations, Kernels};

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// The requested size of the block in bytes, for allocations and for frees.
    pub(super) bytes: u64,
    /// The slot that holds the block between its allocation and its free.
    pub(super) slot: u32,
    /// The number of the stream: an index into [`Plan::streams`].
    pub(super) stream: u32,
    /// The duration of the kernel after an allocation, in nanoseconds; 0 for a free.
    pub(super) kernel_ns: u32,
    /// The binary logarithm of the alignment.
    pub(super) alignment_log2: u8,
    /// Whether the block is freed on the stream that allocated it, or is never freed.
    pub(super) stays: bool,
}

impl Step {
    pub(super) const fn allocates(&self) -> bool {
        self.kernel_ns > 0
    }

    pub(super) fn layout(&self) -> Layout {
        // All values are powers of two, so the error never occurs.
        Layout::with_alignment(self.bytes, 1 << self.alignment_log2).unwrap_or(Layout::new(self.bytes))
    }
}

/// All operations of a pass.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    steps: Vec<Step>,
    streams: Vec<StreamKey>,
    slots: usize,
    peak_live_bytes: u64,
    /// The sum of the kernels' durations on each stream.
    stream_ns: Vec<u64>,
}

impl Plan {
    /// Returns the plan of the first `first` operations of the log, or of all operations.
    ///
    /// # Errors
    /// The temporary file of the program cannot be read.
    pub(super) fn new(program: &Program, first: Option<u64>, of: Kernels, seed: u64) -> Result<Self> {
        let mut plan = Self {
            steps: Vec::new(),
            streams: vec![StreamKey::Legacy; program.summary().streams],
            slots: program.slots() as usize,
            peak_live_bytes: 0,
            stream_ns: vec![0; program.summary().streams],
        };
        for lane in program.lanes() {
            plan.streams[lane.stream as usize] = lane.key;
        }
        let mut durations = Durations::new(of, seed);
        let mut left = first.unwrap_or(u64::MAX);
        for index in 0..program.block_count() {
            for op in program.block(index)?.iter() {
                if left == 0 {
                    break;
                }
                left -= u64::from(plan.add(op, program, &mut durations));
            }
        }
        plan.look_over();
        Ok(plan)
    }

    /// Adds the operation. Returns whether the operation is part of the plan.
    fn add(&mut self, op: &Op, program: &Program, durations: &mut Durations) -> bool {
        let kernel_ns = match op.kind {
            OpKind::Allocate => durations.draw(),
            OpKind::Free => 0,
            _ => return false,
        };
        let Op { bytes, slot, alignment_log2, .. } = *op;
        let stream = program.lanes()[op.lane as usize].stream;
        self.stream_ns[stream as usize] += u64::from(kernel_ns);
        self.steps.push(Step { bytes, slot, stream, kernel_ns, alignment_log2, stays: true });
        true
    }

    /// Finds the peak of the live bytes, and the blocks that are freed on another stream.
    fn look_over(&mut self) {
        let mut allocations = vec![0; self.slots];
        let mut live = 0;
        for index in 0..self.steps.len() {
            let step = self.steps[index];
            if step.allocates() {
                allocations[step.slot as usize] = index;
                live += step.bytes;
                self.peak_live_bytes = self.peak_live_bytes.max(live);
            } else {
                let of = allocations[step.slot as usize];
                let stays = self.steps[of].stream == step.stream;
                (self.steps[of].stays, self.steps[index].stays) = (stays, stays);
                live -= step.bytes;
            }
        }
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the streams, as the log names them.
    pub(super) fn streams(&self) -> &[StreamKey] {
        &self.streams
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }

    pub(super) fn busiest_stream_ns(&self) -> u64 {
        self.stream_ns.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn all_streams_ns(&self) -> u64 {
        self.stream_ns.iter().sum()
    }

    /// Returns a digest of the plan: FNV-1a, over 32 bits at a time. For each allocation, the digest covers
    /// the size, the stream and the kernel. For each free, it covers the number of the allocation, and the
    /// stream. The plans of the programs in `benches/peers` have the same digest.
    #[cfg(test)]
    pub(super) fn digest(&self) -> u64 {
        let (mut numbers, mut allocated) = (vec![0_u32; self.slots], 0);
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |number: u32| hash = (hash ^ u64::from(number)).wrapping_mul(0x100_0000_01b3);
        for step in &self.steps {
            let number = &mut numbers[step.slot as usize];
            if step.allocates() {
                *number = allocated;
                allocated += 1;
                [step.bytes as u32, (step.bytes >> 32) as u32, step.stream, step.kernel_ns]
                    .into_iter()
                    .for_each(&mut add);
            } else {
                [*number, step.stream].into_iter().for_each(&mut add);
            }
        }
        hash
    }
}
