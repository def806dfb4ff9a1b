//! Measures how well the model `torch` predicts what PyTorch did, address by address.
//!
//! The model gets the requests and frees of a recording. If the model asks the driver for a segment, it gets
//! the next recorded segment, provided that this segment has the requested size. So the recording supplies
//! the addresses of segments, and the model predicts everything else. If PyTorch returned segments in the
//! middle of a recorded request, the real driver had refused a segment. In that case, the model's driver also
//! refuses. If the program itself released memory (`empty_cache`), the model releases it at the recorded
//! event.

mod memory;
mod text;

use millpond_engine::log::StreamKey;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::peers::torch::model::{Request, Torch};
use crate::peers::torch::settings::Settings;
use crate::recording::DEFAULT_POOL;
use crate::recording::{Event, EventKind, Recording, Segment};
use memory::{ELSEWHERE, RESERVATION, Recorded, is_given_back};

pub(crate) use text::LACKS_LIMIT;
pub use text::print;

/// Compares the model's choices with the recorded choices. Sizes are in bytes.
///
/// ```
/// use millpond_snapshot::fidelity::Fidelity;
/// use millpond_snapshot::import::{self, Options};
/// let csv = "id,lower,upper,size\na,0,10,4096\n";
/// let recording = import::read("example", csv.as_bytes(), &Options::default())?;
/// // Only a recording of PyTorch has segments to compare with.
/// assert!(Fidelity::of(&recording, None).is_err());
/// # Ok::<(), millpond_engine::log::LogError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Fidelity {
    /// The version of this format.
    pub version: u32,
    /// The name of the file.
    pub file: String,
    /// The model with the settings of the recording, as the text of a stack.
    pub model: String,
    /// Whether a setting is a share of the process's memory limit, and the limit is unknown. The model then
    /// ignores this setting.
    pub lacks_limit: bool,
    /// Whether the trace has all events since the program's first allocation.
    pub is_complete: bool,
    /// The number of allocations in the trace.
    pub allocations: u64,
    /// How many allocations the model placed at the recorded address.
    pub same_address: u64,
    /// How many segments, or mapped ranges of growing segments, PyTorch reserved in the trace.
    pub segments: u64,
    /// How many segments the model reserved for the same request and with the same size as PyTorch.
    pub same_segment: u64,
    /// How many segments or ranges PyTorch returned to the driver in the trace.
    pub given_back: u64,
    /// How many segments the model returned at the same event as PyTorch. If the program released memory, the
    /// segments that were free in the model count as well.
    pub same_given_back: u64,
    /// The number of failed requests in the trace.
    pub failures: u64,
    /// How many of these requests failed in the model, too.
    pub same_failure: u64,
    /// The most bytes of segments at one time, as recorded.
    pub peak_reserved: u64,
    /// The most bytes of segments at one time in the model.
    pub model_peak_reserved: u64,
    /// How close the model's reserved bytes are to the recorded reserved bytes; 1 if they are equal after
    /// each allocation. The value is 1 minus the sum of all differences divided by the sum of the recorded
    /// bytes.
    pub reserved_share: f64,
    /// A description of the first difference between the model and the recording; `None` if they are equal.
    pub first: Option<String>,
}

impl Fidelity {
    /// Compares the model with a recording. `limit` is the limit in bytes that
    /// `set_per_process_memory_fraction` set, if the program called that function. A recording does not
    /// contain this limit.
    ///
    /// # Errors
    /// Returns a sentence that explains why there is nothing to compare, or which setting cannot be read.
    pub fn of(recording: &Recording, limit: Option<u64>) -> Result<Self, String> {
        recording.require_blocks()?;
        let mut settings = Settings::of(recording)?;
        settings.limit = limit.unwrap_or(u64::MAX);
        Self::with(recording, settings)
    }

    /// Returns the share of the allocations that the model placed at the recorded address; 1 if there are no
    /// allocations.
    #[must_use]
    pub fn address_share(&self) -> f64 {
        share(self.same_address, self.allocations)
    }

    /// Returns the share of the segments that the model reserved as recorded; 1 if there are no segments.
    #[must_use]
    pub fn segment_share(&self) -> f64 {
        share(self.same_segment, self.segments)
    }

    fn with(recording: &Recording, settings: Settings) -> Result<Self, String> {
        let has_segments = recording.events().any(|event| is_taken(event.kind));
        if !has_segments {
            return Err("has no segments to compare with: only PyTorch memory snapshots have them".to_owned());
        }
        let is_of_device =
            |event: &Event| event.address.checked_add(event.bytes).is_some_and(|end| end <= ELSEWHERE);
        let is_segment = |kind| is_taken(kind) || is_given_back(kind);
        if let Some(odd) = recording.events().find(|event| is_segment(event.kind) && !is_of_device(event)) {
            let Event { address, bytes, .. } = odd;
            return Err(format!("has a segment of {bytes} bytes at {address:#x}, which no device has"));
        }
        let mut run = Run::new(recording, settings, !recording.begins_late());
        run.start();
        for (number, event) in recording.events().enumerate().filter(|(_, event)| !event.is_before) {
            run.event(number, event);
        }
        run.settle();
        Ok(run.finish())
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

fn is_taken(kind: EventKind) -> bool {
    matches!(kind, EventKind::SegmentAllocate | EventKind::SegmentMap)
}

/// Returns the model's name for a stream.
fn number(stream: StreamKey) -> u64 {
    match stream {
        StreamKey::Legacy => 0,
        StreamKey::PerThread => 2,
        StreamKey::Handle(number) | StreamKey::Number(number) => number,
    }
}

/// The model and the recording, which run in step.
struct Run<'a> {
    recording: &'a Recording,
    torch: Torch,
    memory: Recorded,
    /// The model's address of each block. The key is the recorded address.
    blocks: FxHashMap<u64, u64>,
    /// The bytes that the recorded allocator has reserved.
    reserved: u64,
    differences: f64,
    reserved_sum: f64,
    result: Fidelity,
}

impl<'a> Run<'a> {
    fn new(recording: &'a Recording, settings: Settings, is_complete: bool) -> Self {
        let result = Fidelity {
            version: 1,
            file: recording.file().to_owned(),
            model: settings.to_string(),
            lacks_limit: settings.garbage_collection > 0.0 && settings.limit == u64::MAX,
            is_complete,
            allocations: 0,
            same_address: 0,
            segments: 0,
            same_segment: 0,
            given_back: 0,
            same_given_back: 0,
            failures: 0,
            same_failure: 0,
            peak_reserved: 0,
            model_peak_reserved: 0,
            reserved_share: 1.0,
            first: None,
        };
        let memory = Recorded::new(settings.limit == u64::MAX);
        let (torch, blocks) = (Torch::new(settings), FxHashMap::default());
        let (reserved, differences, reserved_sum) = (0, 0.0, 0.0);
        Self { recording, torch, memory, blocks, reserved, differences, reserved_sum, result }
    }

    /// Builds the blocks that are older than the first event.
    fn start(&mut self) {
        let before = self.recording.events().take_while(|event| event.is_before).count();
        let Some(last) = before.checked_sub(1) else { return };
        let moment = self.recording.moment(last);
        let mut segments = moment.segments().iter().peekable();
        while let Some(&segment) = segments.next() {
            let mut whole = segment;
            let adjoins = |whole: &Segment, next: &Segment| {
                next.is_expandable && next.address == whole.address + whole.bytes && next.lane == whole.lane
            };
            while whole.is_expandable
                && let Some(next) = segments.next_if(|next| adjoins(&whole, next))
            {
                whole.bytes += next.bytes;
            }
            let blocks = moment.blocks_in(&whole);
            let live: Vec<_> =
                blocks.iter().map(|block| (block.address, block.rounded_bytes, block.is_held)).collect();
            let grows_to = whole.is_expandable.then(|| whole.address.saturating_add(RESERVATION));
            let pool = whole.lane.pool.unwrap_or(DEFAULT_POOL);
            let stream = number(whole.lane.stream);
            self.torch.adopt((whole.address, whole.bytes), stream, pool, grows_to, &live);
            self.blocks.extend(live.iter().map(|(address, ..)| (*address, *address)));
            self.reserved = self.reserved.saturating_add(whole.bytes);
        }
        (self.result.peak_reserved, self.result.model_peak_reserved) = (self.reserved, self.reserved);
    }

    fn event(&mut self, number: usize, event: &Event) {
        match event.kind {
            EventKind::SegmentAllocate | EventKind::SegmentMap => {
                self.result.segments += 1;
                self.reserved = self.reserved.saturating_add(event.bytes);
                self.memory.pending.push_back((event.kind, event.address, event.bytes));
            }
            EventKind::SegmentFree | EventKind::SegmentUnmap => {
                self.result.given_back += 1;
                self.reserved = self.reserved.saturating_sub(event.bytes);
                self.memory.pending.push_back((event.kind, event.address, event.bytes));
            }
            EventKind::Allocate => self.allocate(number, event),
            EventKind::AllocateFailure => {
                self.result.failures += 1;
                self.memory.refuses = true;
                let served = self.request(event);
                self.memory.refuses = false;
                match served {
                    // The recorded request failed, so the model drops the block that it placed.
                    Some(address) => drop(self.torch.free(address)),
                    None => self.result.same_failure += 1,
                }
                self.settle();
            }
            EventKind::FreeRequested => {
                if let Some(address) = self.blocks.get(&event.address) {
                    self.torch.hold(*address);
                }
            }
            EventKind::Free => {
                if let Some(address) = self.blocks.remove(&event.address) {
                    self.torch.free(address);
                }
            }
            _ => {}
        }
        self.result.peak_reserved = self.result.peak_reserved.max(self.reserved);
        let model = self.torch.reserved_bytes();
        self.result.model_peak_reserved = self.result.model_peak_reserved.max(model);
    }

    fn allocate(&mut self, number: usize, event: &Event) {
        self.result.allocations += 1;
        let served = self.request(event);
        self.settle();
        if served == Some(event.address) {
            self.result.same_address += 1;
        } else {
            let (bytes, address) = (event.bytes, event.address);
            self.result.first.get_or_insert_with(|| {
                let model = served.map_or("failed".to_owned(), |at| format!("chose {at:#x}"));
                format!("event {}: {bytes} bytes at {address:#x}; the model {model}", number + 1)
            });
        }
        if let Some(address) = served {
            self.blocks.insert(event.address, address);
        }
        let model = self.torch.reserved_bytes();
        self.differences += model.abs_diff(self.reserved) as f64;
        self.reserved_sum += self.reserved as f64;
    }

    /// Lets the model serve a request.
    fn request(&mut self, event: &Event) -> Option<u64> {
        let lane = self.recording.lane(event);
        let pool = lane.pool.unwrap_or(DEFAULT_POOL);
        let request = Request { bytes: event.bytes, stream: number(lane.stream), pool };
        // If a request needs no segment, it returns none to the driver. So the program did it before the
        // request.
        if self.memory.gives_back_next() && self.torch.has_free(request) {
            self.settle();
        }
        self.torch.allocate(&mut self.memory, request)
    }

    /// Returns the recorded segments to the driver that the program, not the model, returned.
    fn settle(&mut self) {
        while let Some((kind, address, _)) = self.memory.pending.pop_front() {
            if !is_taken(kind) && self.torch.release_at(&mut self.memory, address) {
                self.result.same_given_back += 1;
            }
        }
    }

    fn finish(mut self) -> Fidelity {
        self.result.same_segment = self.memory.same_segment;
        self.result.same_given_back += self.memory.same_given_back;
        if self.reserved_sum > 0.0 {
            self.result.reserved_share = 1.0 - self.differences / self.reserved_sum;
        }
        self.result
    }
}

#[cfg(test)]
mod tests;
