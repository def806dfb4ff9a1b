//! Writes the memory of stacks in PyTorch's format of snapshots.
//!
//! The keys are those that `torch.cuda.memory._snapshot()` returns, and that PyTorch's viewer and
//! `millpond-replay` read. A pool's memory belongs to no stream, so segments name stream 0. The blocks' own
//! streams are in the events.

use std::collections::BTreeMap;

use millpond_core::{
    BlockState, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, Error, ErrorKind, MemoryBlock,
    MemoryMap, MemorySegment, Result, find_trait,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Recording;
use super::coverage::covered;
use super::frames::{Frame, frames_of_text};
use super::pickle::{Memo, Pickle};
use super::recorder::{Action, Live, RecordedEvent, Recorder};

/// The largest segment that PyTorch would call small, in bytes.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Devices that CUDA does not number have an index below this.
const OTHER_DEVICES: u32 = 128;

/// A snapshot of the memory of several stacks, by device.
#[derive(Debug, Default)]
pub struct Snapshot {
    devices: BTreeMap<u32, Part>,
    /// The texts of the stacks.
    stacks: Vec<String>,
}

#[derive(Debug)]
struct Part {
    id: DeviceId,
    map: MemoryMap,
}

/// Returns a snapshot of a stack's memory. The snapshot is a pickle in the format of
/// `torch.cuda.memory._dump_snapshot`. Write it to a file, and open the file with PyTorch's viewer or with
/// `millpond-replay explain`.
///
/// The snapshot lists the segments and blocks that the stack has now. If the stack has the adaptor
/// [`recording`](super::RecordingLayer), the snapshot also contains the last events with their call stacks.
///
/// ```
/// use millpond_adaptors::{RecordingLayer, memory_snapshot};
/// use millpond_core::{DeviceMemoryResourceExt, LayerResultExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, PoolLayer};
///
/// let stack = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()))
///     .layer(PoolLayer::new())
///     .layer(RecordingLayer::new())?;
/// let block = stack.allocate_bytes(1000, StreamRef::LEGACY)?;
/// let pickle = memory_snapshot(&stack)?;
/// assert_eq!(pickle[..2], [0x80, 2]); // protocol 2, which every reader knows
/// # std::fs::write(std::env::temp_dir().join("millpond-doc-snapshot.pickle"), pickle)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) if no layer of the stack records blocks. Pools and the adaptors
/// `tracking` and `recording` record them.
pub fn memory_snapshot<R: DeviceMemoryResource>(resource: &R) -> Result<Vec<u8>> {
    let recorder = find_trait::<dyn Recording>(resource).map(Recording::recorder);
    memory_snapshot_with(resource, recorder.map(|recorder| &**recorder))
}

/// Returns a snapshot of a stack's memory, like [`memory_snapshot`]. The events come from a recorder outside
/// of the stack.
///
/// # Errors
/// The errors of [`memory_snapshot`].
pub fn memory_snapshot_with<R: DeviceMemoryResource>(
    resource: &R,
    recorder: Option<&Recorder>,
) -> Result<Vec<u8>> {
    let map = resource.memory_map().ok_or_else(|| {
        let why = "no layer of this stack knows the live blocks; use a pool, or add `tracking` or \
                   `recording`";
        Error::new(ErrorKind::Unsupported, why).in_stack(resource)
    })?;
    let mut snapshot = Snapshot::new();
    snapshot.add(resource.device(), &resource.to_string(), map);
    Ok(snapshot.to_pickle(recorder))
}

impl Snapshot {
    /// Creates a snapshot that contains no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the memory of one stack on a device. `stack` is the name of the stack.
    pub fn add(&mut self, device: DeviceId, stack: &str, map: MemoryMap) {
        let index = if device.is_cuda() { device.ordinal() } else { device.ordinal() % OTHER_DEVICES };
        let part =
            self.devices.entry(index).or_insert_with(|| Part { id: device, map: MemoryMap::default() });
        part.map = std::mem::take(&mut part.map).beside(map);
        if !self.stacks.iter().any(|known| known == stack) {
            self.stacks.push(stack.to_owned());
        }
    }

    /// Returns the snapshot as a pickle. If there is a recorder, the pickle contains its events.
    pub fn to_pickle(&self, recorder: Option<&Recorder>) -> Vec<u8> {
        let events = recorder.map(|recorder| recorder.events().0).unwrap_or_default();
        let mut writer = Writer {
            pickle: Pickle::new(),
            recorder,
            stacks: FxHashMap::default(),
            frames: FxHashMap::default(),
        };
        writer.snapshot(self, &events);
        writer.pickle.finish()
    }
}

/// A list of frames that was written: captured by a recorder, or as the text of a backtrace.
#[derive(PartialEq, Eq, Hash)]
enum StackKey {
    Captured(u64),
    Text(String),
}

struct Writer<'a> {
    pickle: Pickle,
    recorder: Option<&'a Recorder>,
    stacks: FxHashMap<StackKey, Memo>,
    frames: FxHashMap<Frame, Memo>,
}

impl Writer<'_> {
    fn snapshot(&mut self, snapshot: &Snapshot, events: &[RecordedEvent]) {
        self.pickle.dict_begin();
        self.pickle.key("segments").list_begin();
        for (index, part) in &snapshot.devices {
            let live = self.recorder.map(|it| it.live(part.id)).unwrap_or_default();
            for segment in &part.map.segments {
                self.segment(*index, segment, &live);
                self.pickle.item();
            }
        }
        self.pickle.list_end();
        self.pickle.key("device_traces").list_begin();
        for index in 0..=snapshot.devices.keys().next_back().copied().unwrap_or(0) {
            self.pickle.list_begin();
            if let Some(part) = snapshot.devices.get(&index) {
                self.trace(part, events);
            }
            self.pickle.list_end();
            self.pickle.item();
        }
        self.pickle.list_end();
        self.settings(snapshot);
        self.pickle.key("external_annotations").list_begin();
        self.pickle.list_end();
        self.pickle.dict_end();
    }

    fn segment(&mut self, device: u32, segment: &MemorySegment, live: &FxHashMap<u64, Live>) {
        let sum = |of: fn(&MemoryBlock) -> u64| segment.blocks.iter().map(of).sum::<u64>();
        let is_waiting = |block: &MemoryBlock| {
            let is_requested = || live.get(&block.address).is_some_and(|live| live.is_waiting);
            block.state == BlockState::Waiting || (block.state == BlockState::Active && is_requested())
        };
        let waiting: u64 = segment.blocks.iter().filter(|it| is_waiting(it)).map(|it| it.bytes).sum();
        let active = sum(|it| if it.state == BlockState::Free { 0 } else { it.bytes });
        let scope = segment.blocks.iter().find_map(|block| block.scope).unwrap_or(0);
        let pickle = &mut self.pickle;
        pickle.dict_begin();
        pickle.key("device").int(device.into());
        pickle.key("address").int(segment.address);
        pickle.key("total_size").int(segment.bytes);
        pickle.key("allocated_size").int(active - waiting);
        pickle.key("active_size").int(active);
        pickle.key("requested_size").int(sum(|it| it.requested_bytes));
        pickle.key("stream").int(0);
        let is_small = segment.bytes <= SMALL_SEGMENT;
        pickle.key("segment_type").text(if is_small { "small" } else { "large" });
        pickle.key("segment_pool_id").pair(0, scope);
        pickle.key("is_expandable").bool(segment.is_mapped);
        pickle.key("frames");
        self.stack(StackKey::Captured(0));
        self.pickle.key("blocks").list_begin();
        for block in &segment.blocks {
            let is_live = block.state != BlockState::Free;
            let pickle = &mut self.pickle;
            pickle.dict_begin();
            pickle.key("address").int(block.address);
            pickle.key("size").int(block.bytes);
            pickle.key("requested_size").int(block.requested_bytes);
            pickle.key("state").text(match block.state {
                BlockState::Free => "inactive",
                _ if is_waiting(block) => "active_pending_free",
                _ => "active_allocated",
            });
            pickle.key("frames");
            let captured = live.get(&block.address).filter(|_| is_live).map_or(0, |live| live.stack);
            self.stack(match (captured, &block.backtrace) {
                (0, Some(text)) => StackKey::Text(text.clone()),
                (captured, _) => StackKey::Captured(captured),
            });
            self.pickle.dict_end();
            self.pickle.item();
        }
        self.pickle.list_end();
        self.pickle.dict_end();
    }

    fn trace(&mut self, part: &Part, events: &[RecordedEvent]) {
        let pools: FxHashSet<u64> = part.map.pools.iter().copied().collect();
        let is_here = |event: &&RecordedEvent| {
            event.device == part.id && (event.pool == 0 || pools.contains(&event.pool))
        };
        let events: Vec<RecordedEvent> = events.iter().filter(is_here).copied().collect();
        for event in covered(&events, &part.map) {
            let pickle = &mut self.pickle;
            pickle.dict_begin();
            pickle.key("action").text(event.action.name());
            let is_failure = event.action == Action::OutOfMemory;
            pickle.key(if is_failure { "device_free" } else { "addr" }).int(event.address);
            pickle.key("size").int(event.bytes);
            pickle.key("stream").int(event.stream);
            pickle.key("time_us").int(event.time_us);
            if event.stack != 0 {
                self.pickle.key("frames");
                self.stack(StackKey::Captured(event.stack));
            }
            self.pickle.dict_end();
            self.pickle.item();
        }
    }

    /// Writes the list of a stack's frames. A stack and a frame are written once.
    fn stack(&mut self, key: StackKey) {
        if let Some(memo) = self.stacks.get(&key) {
            return self.pickle.again(*memo);
        }
        let frames = match &key {
            StackKey::Captured(stack) => self.recorder.map(|it| it.frames(*stack)).unwrap_or_default(),
            StackKey::Text(text) => frames_of_text(text),
        };
        self.pickle.list_begin();
        for frame in frames {
            match self.frames.get(&frame) {
                Some(memo) => self.pickle.again(*memo),
                None => {
                    self.pickle.dict_begin();
                    self.pickle.key("name").text(&frame.name);
                    self.pickle.key("filename").text(&frame.file);
                    self.pickle.key("line").int(frame.line);
                    self.pickle.dict_end();
                    let memo = self.pickle.remember();
                    self.frames.insert(frame, memo);
                }
            }
            self.pickle.item();
        }
        self.pickle.list_end();
        let memo = self.pickle.remember();
        self.stacks.insert(key, memo);
    }

    /// Writes the settings of PyTorch's allocator that say something about a pool, and the stacks.
    fn settings(&mut self, snapshot: &Snapshot) {
        let mut segments = snapshot.devices.values().flat_map(|part| &part.map.segments);
        let is_mapped = segments.any(|segment| segment.is_mapped);
        let pickle = &mut self.pickle;
        pickle.key("allocator_settings").dict_begin();
        pickle.key("PYTORCH_CUDA_ALLOC_CONF").text("");
        pickle.key("max_split_size").minus_one();
        pickle.key("garbage_collection_threshold").float(0.0);
        pickle.key("expandable_segments").bool(is_mapped);
        pickle.key("pinned_num_register_threads").int(1);
        pickle.key("release_lock_on_cudamalloc").bool(true);
        pickle.key("pinned_use_cuda_host_register").bool(false);
        pickle.key("roundup_power2_divisions").dict_begin();
        pickle.dict_end();
        pickle.key("millpond").text(&snapshot.stacks.join(" "));
        pickle.dict_end();
    }
}
