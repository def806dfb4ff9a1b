//! The model and the allocator, which serve the same calls.

use std::collections::HashMap;
use std::fmt;

use millpond_core::driver::StreamFlags;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef};
use millpond_driver::DeviceSpec;
use millpond_snapshot::peers;

use super::calls::{Call, STREAMS};

/// One of the two, on a device of its own.
struct Side {
    resource: AnyResource,
    streams: Vec<StreamRef>,
    live: HashMap<u32, (DevicePtr, u64, usize)>,
}

impl Side {
    fn new(stack: &str, device: &str) -> Result<Self, String> {
        let failed = |error: millpond_core::Error| format!("{stack}: {error}");
        let driver: DriverHandle =
            device.parse::<DeviceSpec>().and_then(|spec| spec.open_new()).map_err(failed)?;
        let table = LayerTable::new(peers::LAYERS.iter().copied());
        let resource =
            stack.parse::<StackSpec>().and_then(|spec| spec.build(&table, &driver)).map_err(failed)?;
        let made = (0..STREAMS).map(|_| driver.stream_create(StreamFlags::NON_BLOCKING));
        let streams = std::iter::once(Ok(StreamRef::LEGACY)).chain(made).collect::<Result<_, _>>();
        let streams = streams.map_err(|error| failed(error.into()))?;
        let mut side = Self { resource, streams, live: HashMap::new() };
        // The allocator sorts blocks by their streams, and both sides make their streams in this order.
        for stream in 0..=STREAMS {
            let (outcome, _) = side.call(&Call::Allocate { slot: stream as u32, bytes: 1, stream });
            if outcome != "served" {
                return Err(outcome);
            }
        }
        side.clear();
        Ok(side)
    }

    /// Makes a call. Returns the outcome, and the reserved bytes after it.
    fn call(&mut self, call: &Call) -> (String, u64) {
        let outcome = match *call {
            Call::Allocate { slot, bytes, stream } => {
                match self.resource.allocate_bytes(bytes, self.streams[stream]) {
                    Ok(ptr) => {
                        self.live.insert(slot, (ptr, bytes, stream));
                        "served".to_owned()
                    }
                    Err(error) if error.is_out_of_memory() => "out of memory".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
            Call::Free { slot, stream } => {
                if let Some((ptr, bytes, own)) = self.live.remove(&slot) {
                    let stream = self.streams[stream.unwrap_or(own)];
                    // SAFETY: the block was in the map of live blocks, and has this size.
                    unsafe { self.resource.deallocate_bytes(ptr, bytes, stream) };
                }
                "freed".to_owned()
            }
            Call::Trim => {
                self.resource.trim(0).map_or_else(|error| error.to_string(), |_| "trimmed".to_owned())
            }
        };
        (outcome, self.resource.statistics().map_or(0, |statistics| statistics.bytes_reserved))
    }

    /// Frees all blocks and all segments.
    fn clear(&mut self) {
        let mut slots: Vec<u32> = self.live.keys().copied().collect();
        slots.sort_unstable();
        for slot in slots {
            self.call(&Call::Free { slot, stream: None });
        }
        self.call(&Call::Trim);
    }
}

/// The first call after which the two differ.
pub(super) struct Difference {
    pub(super) at: usize,
    call: Call,
    outcomes: [(String, u64); 2],
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [(model, reserved), (original, reserved_there)] = &self.outcomes;
        write!(
            f,
            "call {}, {}: the model {model} with {reserved} bytes reserved, PyTorch {original} with \
             {reserved_there}",
            self.at, self.call
        )
    }
}

/// The model, and PyTorch's allocator.
pub(super) struct Pair {
    stacks: [String; 2],
    device: String,
    sides: [Side; 2],
    pub(super) device_bytes: u64,
    /// The calls that were compared, the refused requests, and how often the reserved bytes grew.
    pub(super) calls: u64,
    pub(super) refused: u64,
    pub(super) grown: u64,
}

impl Pair {
    pub(super) fn new(settings: &str, device: &str, folder: Option<&str>) -> Result<Self, String> {
        let folder = folder.map(|folder| format!("folder={folder}"));
        let text = |name: &str, params: &[&str]| {
            let params: Vec<&str> = params.iter().copied().filter(|param| !param.is_empty()).collect();
            format!("{name}{}{}", if params.is_empty() { "" } else { ":" }, params.join(","))
        };
        let original = text("pytorch", &[settings, folder.as_deref().unwrap_or_default()]);
        Self::of([text("torch", &[settings, "ties=age"]), original], device.to_owned())
    }

    fn of(stacks: [String; 2], device: String) -> Result<Self, String> {
        let sides = [Side::new(&stacks[0], &device)?, Side::new(&stacks[1], &device)?];
        let info = sides[0].resource.driver().mem_get_info().map_err(|error| error.to_string())?;
        Ok(Self { stacks, device, sides, device_bytes: info.total, calls: 0, refused: 0, grown: 0 })
    }

    /// Returns a new pair of the same kind.
    pub(super) fn again(&self) -> Result<Self, String> {
        Self::of(self.stacks.clone(), self.device.clone())
    }

    /// Makes the calls, and frees all memory.
    pub(super) fn run(&mut self, calls: &[Call]) -> Result<(), Difference> {
        let mut result = Ok(());
        let mut reserved = 0;
        for (at, call) in calls.iter().enumerate() {
            let outcomes = self.sides.each_mut().map(|side| side.call(call));
            self.calls += 1;
            self.refused += u64::from(outcomes[1].0 == "out of memory");
            self.grown += u64::from(outcomes[1].1 > reserved);
            reserved = outcomes[1].1;
            if outcomes[0] != outcomes[1] {
                result = Err(Difference { at, call: *call, outcomes });
                break;
            }
        }
        self.sides.iter_mut().for_each(Side::clear);
        result
    }
}
