//! One host thread of the soak, with its own streams.

use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond::driver::cuda::CudaDriver;
use millpond::driver::{Event, EventFlags, StreamFlags};
use millpond::{AnyResource, Driver, Layout, Result, StreamRef};
use millpond_testkit::Rng;

use super::kernels::{Block, Kernels};

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

/// The state that all workers of a soak share.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    pub(crate) driver: &'a CudaDriver,
    pub(crate) resource: &'a AnyResource,
    pub(crate) trims: Trims,
    pub(crate) kernels: &'a Kernels,
    /// Blocks on their way from one worker to another, each with an event after its last use.
    pub(crate) handed_over: Mutex<Vec<(Block, Event)>>,
}

impl Shared<'_> {
    fn handed_over(&self) -> MutexGuard<'_, Vec<(Block, Event)>> {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Worker<'a> {
    shared: &'a Shared<'a>,
    rng: Rng,
    streams: Vec<StreamRef>,
    event: Event,
    /// The blocks, each with the index of a stream that comes after all its uses so far.
    blocks: Vec<(Block, usize)>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>, streams: usize, seed: u64) -> Result<Self> {
        let new_stream = |_| Ok(shared.driver.stream_create(StreamFlags::NON_BLOCKING)?);
        Ok(Self {
            shared,
            rng: Rng::new(seed),
            streams: (0..streams).map(new_stream).collect::<Result<_>>()?,
            event: shared.driver.event_create(EventFlags::default())?,
            blocks: Vec::new(),
        })
    }

    /// Runs `operations` random operations, and then frees everything.
    pub(crate) fn run(mut self, operations: u64) -> Result<()> {
        for _ in 0..operations {
            self.step()?;
        }
        self.finish()
    }

    fn step(&mut self) -> Result<()> {
        match self.rng.below(10_000) {
            0 if self.shared.trims == Trims::Yes => self.shared.resource.trim(0).map(drop),
            0..10 => self.renew_a_stream(),
            10..300 => self.hand_over(),
            300..600 => self.take_over(),
            600..1500 => self.use_elsewhere(),
            _ if self.rng.below(2 * TYPICAL_BLOCKS) >= self.blocks.len() as u64 => self.allocate(),
            _ => self.free(),
        }
    }

    fn allocate(&mut self) -> Result<()> {
        let bytes = random_bytes(&mut self.rng);
        let index = self.random_stream();
        let stream = self.streams[index];
        let layout = Layout::new(bytes);
        let ptr = self.shared.resource.allocate(layout, stream)?;
        let block = Block { ptr, layout, tag: self.rng.next_u64() as u32 };
        // SAFETY: the block was just allocated for use on this stream.
        unsafe { self.shared.kernels.write_tag(&block, stream) }?;
        self.blocks.push((block, index));
        Ok(())
    }

    /// Frees a block; in a quarter of the cases, on a stream other than its last.
    fn free(&mut self) -> Result<()> {
        let Some((block, home)) = self.remove_block() else { return Ok(()) };
        let index = if self.rng.percent(25) { self.random_stream() } else { home };
        self.order_after(index, home)?;
        if self.rng.percent(LAGGING_PERCENT) {
            self.shared.kernels.spin(self.rng.below(LAG_CYCLES), self.streams[index])?;
        }
        self.check_and_free(&block, self.streams[index])
    }

    fn check_and_free(&self, block: &Block, stream: StreamRef) -> Result<()> {
        // SAFETY: the block is live, and the stream is ordered after all its uses.
        unsafe { self.shared.kernels.check_tag(block, stream) }?;
        // SAFETY: the block is freed once, with its layout, on a stream that is ordered after all its uses.
        unsafe { self.shared.resource.deallocate(block.ptr, block.layout, stream) };
        Ok(())
    }

    /// Another stream checks the block and writes a new tag. From then on, the block belongs to that stream.
    fn use_elsewhere(&mut self) -> Result<()> {
        let Some((mut block, home)) = self.remove_block() else { return Ok(()) };
        let index = self.random_stream();
        self.order_after(index, home)?;
        let stream = self.streams[index];
        // SAFETY: the block is live, and the stream is ordered after all its uses.
        unsafe { self.shared.kernels.check_tag(&block, stream) }?;
        block.tag = self.rng.next_u64() as u32;
        // SAFETY: as above.
        unsafe { self.shared.kernels.write_tag(&block, stream) }?;
        self.blocks.push((block, index));
        Ok(())
    }

    /// Offers a block to all workers, with an event. The worker that takes it makes its stream wait for the
    /// event.
    fn hand_over(&mut self) -> Result<()> {
        let Some((block, home)) = self.remove_block() else { return Ok(()) };
        let event = self.shared.driver.event_create(EventFlags::default())?;
        self.shared.driver.event_record(event, self.streams[home])?;
        self.shared.handed_over().push((block, event));
        Ok(())
    }

    fn take_over(&mut self) -> Result<()> {
        let Some((block, event)) = self.shared.handed_over().pop() else { return Ok(()) };
        let index = self.random_stream();
        self.shared.driver.stream_wait_event(self.streams[index], event)?;
        // SAFETY: the event is our own now and not used again; CUDA keeps the data that the wait needs.
        unsafe { self.shared.driver.event_destroy(event) }?;
        self.blocks.push((block, index));
        Ok(())
    }

    /// Destroys a stream on which blocks were freed. The worker's blocks on it move to a new stream.
    fn renew_a_stream(&mut self) -> Result<()> {
        let index = self.random_stream();
        let driver = self.shared.driver;
        let (old, new) = (self.streams[index], driver.stream_create(StreamFlags::NON_BLOCKING)?);
        driver.event_record(self.event, old)?;
        driver.stream_wait_event(new, self.event)?;
        self.streams[index] = new;
        // SAFETY: no further call of this worker names the old stream, and no other worker knows it.
        Ok(unsafe { driver.stream_destroy(old) }?)
    }

    fn finish(mut self) -> Result<()> {
        while !self.shared.handed_over().is_empty() {
            self.take_over()?;
        }
        for (block, home) in std::mem::take(&mut self.blocks) {
            self.check_and_free(&block, self.streams[home])?;
        }
        for stream in &self.streams {
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
            self.shared.driver.event_record(self.event, self.streams[earlier])?;
            self.shared.driver.stream_wait_event(self.streams[later], self.event)?;
        }
        Ok(())
    }

    fn random_stream(&mut self) -> usize {
        self.rng.below(self.streams.len() as u64) as usize
    }

    fn remove_block(&mut self) -> Option<(Block, usize)> {
        let index = self.rng.below(self.blocks.len() as u64) as usize;
        (!self.blocks.is_empty()).then(|| self.blocks.swap_remove(index))
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
