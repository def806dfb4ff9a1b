//! PyTorch's native caching allocator as a layer: `torch`.

pub(crate) mod memory;
pub(crate) mod model;
pub(crate) mod settings;

use std::collections::VecDeque;

use millpond_core::driver::{DriverResult, Event, EventFlags};
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{AnyResource, ByteSize, Driver, DriverHandle, Result, StreamRef};

use super::resource::{Model, Peer};
use crate::recording::DEFAULT_POOL;
use memory::{DriverMemory, Taken};
use model::{Memory, Request, Torch};
use settings::Settings;

/// Builds `torch` from text.
pub(super) const ENTRY: LayerEntry = LayerEntry {
    name: "torch",
    about: "a model of PyTorch's native caching allocator, for comparison",
    params: Settings::PARAMS,
    kind: LayerKind::ReadBase(|params| {
        let (settings, limit) = Settings::read(params, Settings::PARAMS)?;
        Ok(Box::new(move |driver, _| build(&settings, limit, driver)))
    }),
};

fn build(settings: &Settings, limit: Option<ByteSize>, driver: &DriverHandle) -> Result<AnyResource> {
    let mut settings = settings.clone();
    if let Some(limit) = limit {
        settings.limit = limit.resolve(&**driver)?;
    }
    Ok(Peer::erased(driver, settings.to_string(), Allocator::new(settings)))
}

/// The allocator, its memory from the driver, and the blocks that wait for other streams.
#[derive(Debug)]
struct Allocator {
    torch: Torch,
    taken: Taken,
    /// Blocks that were freed on another stream, each with the event after its last use.
    held: VecDeque<(u64, u64, Event)>,
    events: Vec<Event>,
}

impl Allocator {
    fn new(settings: Settings) -> Self {
        Self {
            torch: Torch::new(settings),
            taken: Taken::default(),
            held: VecDeque::new(),
            events: Vec::new(),
        }
    }

    /// Completes the frees of blocks whose streams have passed their events. The blocks of a stream complete
    /// in order.
    fn process_events(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let mut waiting: Vec<u64> = Vec::new();
        for _ in 0..self.held.len() {
            let Some((address, stream, event)) = self.held.pop_front() else { break };
            if waiting.contains(&stream) || !driver.event_query(event)? {
                waiting.push(stream);
                self.held.push_back((address, stream, event));
            } else {
                self.torch.free(address);
                self.events.push(event);
            }
        }
        Ok(())
    }

    /// Runs an action with the driver's memory.
    fn with_memory<T>(
        &mut self,
        driver: &dyn Driver,
        body: impl FnOnce(&mut Torch, &mut DriverMemory<'_>) -> T,
    ) -> DriverResult<T> {
        let Self { torch, taken, held, events } = self;
        let mut failure = None;
        let mut wait = || {
            let mut completed = Vec::new();
            for (address, _, event) in held.drain(..) {
                if let Err(error) = driver.event_synchronize(event) {
                    failure.get_or_insert(error);
                }
                completed.push(address);
                events.push(event);
            }
            completed
        };
        let mut memory = DriverMemory { driver, taken, wait: &mut wait, error: None };
        let done = body(torch, &mut memory);
        match memory.error.or(failure) {
            Some(error) => Err(error),
            None => Ok(done),
        }
    }
}

impl Model for Allocator {
    fn allocate(&mut self, driver: &dyn Driver, bytes: u64, stream: StreamRef) -> DriverResult<Option<u64>> {
        self.process_events(driver)?;
        let request = Request { bytes, stream: stream.id().get(), pool: DEFAULT_POOL };
        self.with_memory(driver, |torch, memory| torch.allocate(memory, request))
    }

    fn free(
        &mut self,
        driver: &dyn Driver,
        address: u64,
        _bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let stream_id = stream.id().get();
        if self.torch.stream_of(address) == Some(stream_id) {
            self.torch.free(address);
            return Ok(());
        }
        // Another stream used the block. In PyTorch, the program announces this with `record_stream`.
        let event = match self.events.pop() {
            Some(event) => event,
            None => driver.event_create(EventFlags::default())?,
        };
        driver.event_record(event, stream)?;
        self.torch.hold(address);
        self.held.push_back((address, stream_id, event));
        Ok(())
    }

    fn trim(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        self.with_memory(driver, |torch, memory| torch.empty_cache(memory))
    }

    fn reserved_bytes(&self) -> u64 {
        self.torch.reserved_bytes()
    }

    fn free_blocks(&self) -> (u64, u64) {
        self.torch.free_blocks()
    }

    fn release_all(&mut self, driver: &dyn Driver) {
        let released = self.with_memory(driver, |_, memory| {
            memory.wait();
            memory.release_all();
        });
        if let Err(error) = released {
            tracing::error!(target: "millpond::replay", %error, "a model could not return memory to the \
                driver");
        }
        for event in self.events.drain(..) {
            // SAFETY: the event is ours, and is not used again.
            let _ = unsafe { driver.event_destroy(event) };
        }
    }
}
