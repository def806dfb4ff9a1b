//! One host thread of the soak, with its own streams.

use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond::driver::cuda::CudaDriver;
use millpond::driver::{Event, EventFlags, StreamFlags};
use millpond::{AnyResource, Driver, Layout, Result, StreamRef};
use millpond_testkit::Rng;

use super::kernels::{BATCH, Block, Kernels};

/// About how many blocks a worker holds.
const TYPICAL_BLOCKS: u64 = 256;
/// Sizes go from 1 byte to two to this power, evenly on a logarithmic scale.
const LARGEST_LOG2: u64 = 22;
/// The percentage of frees whose check lags behind while the host goes on and reuses the block.
const LAGGING_PERCENT: u64 = 4;
/// How long it lags, in clock cycles: up to about 0.1 ms.
const LAG_CYCLES: u64 = 200_000;

/// Whether workers trim the resource now and then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trims {
    Yes,
    No,
}

/// Blocks that one stream used last, or that it uses next.
type Batch = Vec<Block>;

/// The state that all workers of a soak share.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    pub(crate) driver: &'a CudaDriver,
    pub(crate) resource: &'a AnyResource,
    pub(crate) trims: Trims,
    pub(crate) kernels: &'a Kernels,
    /// Blocks on their way from one worker to another, with an event after their last use.
    pub(crate) handed_over: Mutex<Vec<(Batch, Event)>>,
}

impl Shared<'_> {
    fn handed_over(&self) -> MutexGuard<'_, Vec<(Batch, Event)>> {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Worker<'a> {
    shared: &'a Shared<'a>,
    rng: Rng,
    event: Event,
    /// The streams, each with the blocks whose uses so far all come before its next work.
    streams: Vec<(StreamRef, Vec<Block>)>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>, streams: usize, seed: u64) -> Result<Self> {
        let new_stream = |_| Ok((shared.driver.stream_create(StreamFlags::NON_BLOCKING)?, Vec::new()));
        Ok(Self {
            shared,
            rng: Rng::new(seed),
            event: shared.driver.event_create(EventFlags::default())?,
            streams: (0..streams).map(new_stream).collect::<Result<_>>()?,
        })
    }

    /// Runs at least `operations` random operations, and then frees everything. Returns their number: each
    /// block counts that was allocated, freed, used elsewhere or passed on, and each other step.
    pub(crate) fn run(mut self, operations: u64) -> Result<u64> {
        let mut done = 0;
        while done < operations {
            done += self.step()?.max(1) as u64;
        }
        self.finish()?;
        Ok(done)
    }

    /// Returns the number of blocks in this step.
    fn step(&mut self) -> Result<usize> {
        let count = 1 << self.rng.below(u64::from(BATCH.ilog2()) + 1);
        match self.rng.below(10_000) {
            0 if self.shared.trims == Trims::Yes => self.shared.resource.trim(0).map(|_freed| 0),
            0..10 => self.renew_a_stream(),
            10..300 => self.hand_over(count),
            300..600 => self.take_over(),
            600..1500 => self.use_elsewhere(count),
            _ if self.rng.below(2 * TYPICAL_BLOCKS) >= self.blocks_held() => self.allocate(count),
            _ => self.free(count),
        }
    }

    /// Four of five launches write one block. A stream that waits for one block of a batch might also wait
    /// for another one, and so hide that the resource forgot to.
    fn allocate(&mut self, count: usize) -> Result<usize> {
        let count = if self.rng.percent(80) { 1 } else { count };
        let index = self.random_stream();
        let stream = self.streams[index].0;
        let mut batch = Batch::with_capacity(count);
        for _ in 0..count {
            let layout = Layout::new(random_bytes(&mut self.rng));
            let ptr = self.shared.resource.allocate(layout, stream)?;
            batch.push(Block { ptr, layout, tag: self.rng.next_u64() as u32 });
        }
        // SAFETY: the blocks were just allocated for use on this stream.
        unsafe { self.shared.kernels.write_tags(&batch, stream) }?;
        self.streams[index].1.append(&mut batch);
        Ok(count)
    }

    /// Frees blocks; in a quarter of the cases, on a stream other than their last.
    fn free(&mut self, count: usize) -> Result<usize> {
        let (batch, home) = self.remove_blocks(count);
        let index = if self.rng.percent(25) { self.random_stream() } else { home };
        self.order_after(index, home)?;
        if self.rng.percent(LAGGING_PERCENT) {
            self.shared.kernels.spin(self.rng.below(LAG_CYCLES), self.streams[index].0)?;
        }
        self.check_and_free(&batch, self.streams[index].0)
    }

    fn check_and_free(&self, batch: &[Block], stream: StreamRef) -> Result<usize> {
        if !batch.is_empty() {
            // SAFETY: the blocks are live, and the stream is ordered after all their uses.
            unsafe { self.shared.kernels.check_tags(batch, stream) }?;
        }
        for block in batch {
            // SAFETY: the block is freed once, with its layout, on a stream that is ordered after all its
            // uses.
            unsafe { self.shared.resource.deallocate(block.ptr, block.layout, stream) };
        }
        Ok(batch.len())
    }

    /// Another stream checks blocks and writes new tags. From then on, the blocks belong to that stream.
    fn use_elsewhere(&mut self, count: usize) -> Result<usize> {
        let (mut batch, home) = self.remove_blocks(count);
        if batch.is_empty() {
            return Ok(0);
        }
        let index = self.random_stream();
        self.order_after(index, home)?;
        let stream = self.streams[index].0;
        // SAFETY: the blocks are live, and the stream is ordered after all their uses.
        unsafe { self.shared.kernels.check_tags(&batch, stream) }?;
        for block in &mut batch {
            block.tag = self.rng.next_u64() as u32;
        }
        // SAFETY: as above.
        unsafe { self.shared.kernels.write_tags(&batch, stream) }?;
        let used = batch.len();
        self.streams[index].1.append(&mut batch);
        Ok(used)
    }

    /// Offers blocks to all workers, with an event. The worker that takes them makes its stream wait for the
    /// event.
    fn hand_over(&mut self, count: usize) -> Result<usize> {
        let (batch, home) = self.remove_blocks(count);
        let handed_over = batch.len();
        if handed_over > 0 {
            let event = self.shared.driver.event_create(EventFlags::default())?;
            self.shared.driver.event_record(event, self.streams[home].0)?;
            self.shared.handed_over().push((batch, event));
        }
        Ok(handed_over)
    }

    fn take_over(&mut self) -> Result<usize> {
        let Some((mut batch, event)) = self.shared.handed_over().pop() else { return Ok(0) };
        let index = self.random_stream();
        self.shared.driver.stream_wait_event(self.streams[index].0, event)?;
        // SAFETY: the event is our own now and not used again; CUDA keeps the data that the wait needs.
        unsafe { self.shared.driver.event_destroy(event) }?;
        let taken = batch.len();
        self.streams[index].1.append(&mut batch);
        Ok(taken)
    }

    /// Destroys a stream on which blocks were freed. Its blocks belong to a new stream then.
    fn renew_a_stream(&mut self) -> Result<usize> {
        let index = self.random_stream();
        let driver = self.shared.driver;
        let (old, new) = (self.streams[index].0, driver.stream_create(StreamFlags::NON_BLOCKING)?);
        driver.event_record(self.event, old)?;
        driver.stream_wait_event(new, self.event)?;
        self.streams[index].0 = new;
        // SAFETY: no further call of this worker names the old stream, and no other worker knows it.
        unsafe { driver.stream_destroy(old) }?;
        Ok(0)
    }

    fn finish(mut self) -> Result<()> {
        while !self.shared.handed_over().is_empty() {
            self.take_over()?;
        }
        for (stream, blocks) in &self.streams {
            for batch in blocks.chunks(BATCH) {
                self.check_and_free(batch, *stream)?;
            }
        }
        for (stream, _freed) in &self.streams {
            self.shared.driver.stream_synchronize(*stream)?;
            // SAFETY: no further call names the stream.
            unsafe { self.shared.driver.stream_destroy(*stream) }?;
        }
        // SAFETY: no further call names the event.
        Ok(unsafe { self.shared.driver.event_destroy(self.event) }?)
    }

    /// Makes later work of one stream wait for earlier work of another.
    fn order_after(&self, later: usize, earlier: usize) -> Result<()> {
        if later != earlier {
            self.shared.driver.event_record(self.event, self.streams[earlier].0)?;
            self.shared.driver.stream_wait_event(self.streams[later].0, self.event)?;
        }
        Ok(())
    }

    fn random_stream(&mut self) -> usize {
        self.rng.below(self.streams.len() as u64) as usize
    }

    fn blocks_held(&self) -> u64 {
        self.streams.iter().map(|(_stream, blocks)| blocks.len() as u64).sum()
    }

    /// Takes up to `count` random blocks of a random stream. Returns them and the stream's index.
    fn remove_blocks(&mut self, count: usize) -> (Batch, usize) {
        let home = self.random_stream();
        let blocks = &mut self.streams[home].1;
        let count = count.min(blocks.len());
        let batch = (0..count).map(|_| blocks.swap_remove(self.rng.below(blocks.len() as u64) as usize));
        (batch.collect(), home)
    }
}

/// Returns a size from 1 byte to 4 MiB, evenly on a logarithmic scale.
fn random_bytes(rng: &mut Rng) -> u64 {
    let low = 1 << rng.below(LARGEST_LOG2);
    rng.between(low, 2 * low)
}

#[test]
fn sizes_reach_both_ends() {
    let mut rng = Rng::new(1);
    let sizes: Vec<u64> = (0..10_000).map(|_| random_bytes(&mut rng)).collect();
    assert_eq!(sizes.iter().min(), Some(&1));
    let largest = sizes.iter().max().copied().unwrap_or_default();
    assert!((4_000_000..=4 << 20).contains(&largest), "{largest}");
}
