//! Calls of the C interface over simulated devices. The bytes choose the functions and their arguments: valid
//! ones, null pointers, wrong numbers and texts, streams that were destroyed, and blocks that were freed. The
//! calls keep the rules of the interface that no check can replace: handles are live, and host memory exists.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use millpond::DeviceId;
use millpond::driver::sim::{SimDevice, ViolationKind};
use millpond_c::device::*;
use millpond_c::framework::*;
use millpond_c::history::*;
use millpond_c::layers::*;
use millpond_c::manager::*;
use millpond_c::memory_pool::*;
use millpond_c::metrics::*;
use millpond_c::order::*;
use millpond_c::registry::*;
use millpond_c::resource::*;
use millpond_c::snapshot::*;
use millpond_c::status::*;

const STACKS: [&CStr; 16] = [
    c"cuda",
    c"cuda+pool",
    c"cuda+pool:pages=off",
    c"cuda+pool+statistics+tracking",
    c"cuda+pool+limiting:limit=16MiB",
    c"cuda+pool+recording:events=16",
    c"cuda+pool+aligned:alignment=4096",
    c"cuda+pool+fallback:to=(managed)",
    c"cuda+arena:size=8MiB",
    c"cuda+binning",
    c"cuda+fixed_size:block_size=64KiB",
    c"cuda_async",
    c"managed+prefetch",
    c"pinned_host+pool",
    c"cuda+pool+capture_scopes",
    c"cuda+pool+thread_safe",
];

const LAYERS: [&CStr; 8] = [
    c"pool",
    c"statistics",
    c"tracking",
    c"limiting:limit=50%",
    c"binning",
    c"aligned:alignment=512",
    c"cuda",
    c"pool:initial=",
];

/// A handle of a resource.
struct Held {
    resource: *mut Resource,
    device: *mut Device,
    /// Whether only this handle's calls use the memory of its pool.
    is_alone: bool,
}

#[derive(Clone, Copy)]
struct Block {
    of: *mut Resource,
    ptr: *mut c_void,
    bytes: u64,
    alignment: u64,
}

/// The objects of one input.
#[derive(Default)]
struct Program {
    resources: Vec<Held>,
    blocks: Vec<Block>,
    freed: Vec<Block>,
    streams: Vec<*mut c_void>,
    ended: Vec<*mut c_void>,
    pools: Vec<*mut MemoryPool>,
    memories: Vec<*mut Memory>,
    deferrals: Vec<*mut Deferral>,
    mallocs: Vec<*mut c_void>,
    /// A pool of the driver may be out of the device's reach now, though its resources say otherwise.
    has_revoked: bool,
}

/// The device of `millpond_malloc`, of managers and of a default resource, whose tables remember each device.
struct OfMalloc(*mut Device);

// SAFETY: the library's functions may be called on any thread.
unsafe impl Send for OfMalloc {}
// SAFETY: as above.
unsafe impl Sync for OfMalloc {}

static OF_MALLOC: LazyLock<OfMalloc> = LazyLock::new(|| {
    // SAFETY: no other thread of this process reads the environment now.
    unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", "") };
    assert_eq!(millpond_c::debug_log::millpond_set_logging_level(6), Status::Ok);
    OfMalloc(device())
});

fn device() -> *mut Device {
    let mut device = null_mut();
    // SAFETY: the name is a string, and the result is valid for writes.
    assert_eq!(unsafe { millpond_device_open(c"sim:64MiB".as_ptr(), &raw mut device) }, Status::Ok);
    device
}

/// Checks the answer of a call, and returns whether the call succeeded.
fn is_ok(status: Status) -> bool {
    if status == Status::Ok {
        return true;
    }
    // SAFETY: the text belongs to this thread, whose next failing call comes later.
    let message = unsafe { CStr::from_ptr(millpond_error_message()) };
    let message = message.to_str().expect("a message is UTF-8");
    assert!(status != Status::Internal && !message.is_empty(), "{status:?}: {message}");
    false
}

/// Returns a pointer, or null one time in sixteen.
fn or_null<T>(bytes: &mut Unstructured<'_>, pointer: *mut T) -> Result<*mut T> {
    Ok(if bytes.ratio(1, 16)? { null_mut() } else { pointer })
}

/// Frees a text of the library.
fn end_text(text: *mut c_char) {
    // SAFETY: the text is null or from the library, and is not used again.
    unsafe { millpond_string_free(text) };
}

impl Program {
    fn stream(&self, bytes: &mut Unstructured<'_>) -> Result<*mut c_void> {
        let number = usize::from(bytes.arbitrary::<u8>()?);
        Ok(match (number % 8, self.streams.len(), self.ended.len()) {
            (0..=4, live @ 1.., _) => self.streams[number / 8 % live],
            (5, _, ended @ 1..) => self.ended[number / 8 % ended],
            _ => std::ptr::without_provenance_mut(number % 3),
        })
    }

    fn resource(&self, bytes: &mut Unstructured<'_>) -> Result<*mut Resource> {
        let number = usize::from(bytes.arbitrary::<u8>()?);
        Ok(match self.resources.len() {
            0 => null_mut(),
            count if number % 16 != 15 => self.resources[number % count].resource,
            _ => null_mut(),
        })
    }

    /// Keeps a handle that the library returned. Other handles may share its memory.
    fn keep(&mut self, resource: *mut Resource, device: *mut Device, is_alone: bool) {
        if !resource.is_null() {
            self.resources.push(Held { resource, device, is_alone });
        }
    }

    fn device_of(&self, resource: *mut Resource) -> *mut Device {
        let held = self.resources.iter().find(|held| held.resource == resource);
        held.map_or(null_mut(), |held| held.device)
    }

    /// Returns whether the device may use the resource's blocks. A pool of the host's memory may be out of
    /// its reach.
    fn is_reached(&self, resource: *mut Resource) -> bool {
        let [mut by_device, mut by_host] = [false; 2];
        // SAFETY: the handle is live, and the results are valid for writes.
        let status =
            unsafe { millpond_resource_accessibility(resource, &raw mut by_device, &raw mut by_host) };
        is_ok(status) && by_device && !self.has_revoked
    }

    fn shares(&mut self, resource: *mut Resource) {
        let held = self.resources.iter_mut().filter(|held| held.resource == resource);
        held.for_each(|held| held.is_alone = false);
    }

    fn free(&mut self, index: usize, stream: *mut c_void) {
        let block = self.blocks.swap_remove(index);
        let device = self.device_of(block.of);
        let Block { of, ptr, bytes, alignment } = block;
        // SAFETY: the handles are live, and the device's work is done.
        unsafe {
            assert!(is_ok(millpond_device_synchronize(device)));
            if is_ok(millpond_deallocate(of, ptr, bytes, alignment, stream)) {
                self.freed.push(block);
            } else {
                // The stream was destroyed, or belongs to another device.
                assert!(is_ok(millpond_deallocate(of, ptr, bytes, alignment, null_mut())));
            }
        }
    }

    fn free_resource(&mut self, index: usize) {
        let resource = self.resources[index].resource;
        while let Some(block) = self.blocks.iter().position(|block| block.of == resource) {
            self.free(block, null_mut());
        }
        let held = self.resources.swap_remove(index);
        self.freed.retain(|block| block.of != held.resource);
        // SAFETY: the handle is live and is not used again.
        unsafe { millpond_resource_free(held.resource) };
    }

    /// Makes a resource.
    fn make(&mut self, device: *mut Device, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (kind, number) = (bytes.arbitrary::<u8>()? % 8, usize::from(bytes.arbitrary::<u8>()?));
        let (below, mut made) = (self.resource(bytes)?, null_mut());
        let (of_below, device) = (self.device_of(below), if kind == 2 { OF_MALLOC.0 } else { device });
        let stack = STACKS[number % STACKS.len()];
        let is_pool = stack.to_bytes().starts_with(b"cuda+pool") || stack == c"cuda+arena:size=8MiB";
        let out = or_null(bytes, &raw mut made)?;
        // SAFETY: the handles are live or null, the texts are strings, and the result is valid for writes.
        unsafe {
            match kind {
                0..=2 => {
                    is_ok(millpond_resource_new(device, stack.as_ptr(), out));
                    self.keep(made, device, is_pool);
                }
                3 => {
                    let length = usize::from(bytes.arbitrary::<u8>()? % 32);
                    let text = bytes.bytes(length.min(bytes.len()))?;
                    let text = CString::new(text).unwrap_or_default();
                    // A file could be anywhere, and a wait could be long.
                    let words: [&[u8]; 3] = [b"file", b"dump", b"timeout"];
                    let has = |word: &&[u8]| text.as_bytes().windows(word.len()).any(|part| part == *word);
                    if !words.iter().any(has) {
                        is_ok(millpond_resource_new(device, text.as_ptr(), out));
                        self.keep(made, device, false);
                    }
                }
                4 | 5 => {
                    let layer = LAYERS[number % LAYERS.len()].as_ptr();
                    is_ok(millpond_resource_layer(below, layer, out));
                    self.shares(below);
                    self.keep(made, of_below, false);
                }
                6 => {
                    let sizes = [u64::from(bytes.arbitrary::<u16>()?), u64::from(bytes.arbitrary::<u32>()?)];
                    let bins = [self.resource(bytes)?.cast_const(), null()];
                    let sizes_or_null = if number == 0 { null() } else { sizes.as_ptr() };
                    let count = number % 3;
                    is_ok(millpond_resource_binning(below, sizes_or_null, bins.as_ptr(), count, out));
                    [below, bins[0].cast_mut()].into_iter().for_each(|of| self.shares(of));
                    self.keep(made, of_below, false);
                }
                _ => {
                    let made_of = [millpond_resource_clone, millpond_resource_upstream][number % 2];
                    is_ok(made_of(below, out));
                    self.shares(below);
                    self.keep(made, of_below, false);
                }
            }
        }
        Ok(())
    }

    /// Asks a resource.
    fn ask(&mut self, device: *mut Device, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (kind, resource) = (bytes.arbitrary::<u8>()? % 20, self.resource(bytes)?);
        let (mut text, mut number, mut other, mut percent) = (null_mut(), 0_u64, 0_u64, 0.0);
        let (mut size, mut flags) = (0_usize, [false; 2]);
        let [number_out, other_out] = [or_null(bytes, &raw mut number)?, or_null(bytes, &raw mut other)?];
        let text_out = or_null(bytes, &raw mut text)?;
        let block = self.blocks.first().map_or(null_mut(), |block| block.ptr);
        // SAFETY: the handles are live or null, and the results are null or valid for writes.
        unsafe {
            is_ok(match kind {
                0 => millpond_resource_text(resource, text_out),
                1 => millpond_resource_name(resource, text_out),
                2 => millpond_resource_memory_report(resource, bytes.arbitrary()?, text_out),
                3 => millpond_resource_block_at(resource, block, text_out),
                4 => millpond_tracking_outstanding(resource, number_out, text_out),
                5 => millpond_resource_memory_info(resource, number_out, other_out),
                6 => millpond_limiting_counts(resource, number_out, other_out),
                7 => millpond_resource_accessibility(resource, &raw mut flags[0], &raw mut flags[1]),
                8 => millpond_resource_statistics(resource, &mut Statistics::default()),
                9 => millpond_statistics_push(resource, &mut LevelCounters::default()),
                10 => millpond_statistics_pop(resource, &mut LevelCounters::default()),
                11 => millpond_resource_clear_counters(resource),
                12 => millpond_resource_trim(resource, bytes.arbitrary()?, number_out),
                13 => millpond_device_memory_info(or_null(bytes, device)?, number_out, other_out),
                14 => millpond_logging_flush(resource),
                15 => {
                    let name = CString::new(bytes.bytes(bytes.len().min(8))?).unwrap_or_default();
                    millpond_parse_size(name.as_ptr(), number_out, &raw mut percent)
                }
                16 => millpond_metrics_register(resource, c"stack".as_ptr()),
                17 => millpond_metrics_text(text_out),
                18 => {
                    let mut data = null_mut();
                    let status = millpond_memory_snapshot(resource, &raw mut data, &raw mut size);
                    millpond_bytes_free(data, size);
                    status
                }
                _ => millpond_record_history(
                    usize::from(bytes.arbitrary::<u8>()?),
                    bytes.arbitrary()?,
                    0,
                    true,
                ),
            });
        }
        end_text(text);
        Ok(())
    }

    /// Allocates, frees, and uses memory.
    fn use_memory(&mut self, device: *mut Device, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (kind, number) = (bytes.arbitrary::<u8>()? % 12, usize::from(bytes.arbitrary::<u8>()?));
        let (of, stream, mut ptr) = (self.resource(bytes)?, self.stream(bytes)?, null_mut());
        let (size, live) = (u64::from(bytes.arbitrary::<u16>()?) << (number % 48), self.blocks.len());
        // SAFETY: handles are live or null, results are valid for writes, and copies stay within blocks.
        unsafe {
            match kind {
                0..=3 => {
                    let alignment = [0, 256, 4096, 3][number / 48 % 4];
                    let out = or_null(bytes, &raw mut ptr)?;
                    let status = if kind == 3 {
                        millpond_allocate_sync(of, size, alignment, out)
                    } else {
                        millpond_allocate(of, size, alignment, stream, out)
                    };
                    if is_ok(status) && !ptr.is_null() {
                        self.blocks.push(Block { of, ptr, bytes: size, alignment });
                    }
                }
                4..=6 if live > 0 => self.free(number % live, stream),
                7 if !self.freed.is_empty() => {
                    let Block { of, ptr, bytes, alignment } = self.freed[number % self.freed.len()];
                    let is_alone = self.resources.iter().any(|held| held.resource == of && held.is_alone);
                    if is_alone && self.blocks.iter().all(|block| block.ptr != ptr) {
                        let again = millpond_deallocate(of, ptr, bytes, alignment, null_mut());
                        assert!(!is_ok(again), "a block was freed twice: {ptr:?}, {bytes} bytes");
                    }
                }
                8 if live > 0 => {
                    let (block, wrong) =
                        (self.blocks[number % live], self.blocks[number % live].bytes + size);
                    let is_alone = |held: &Held| held.resource == block.of && held.is_alone;
                    // Other sizes are the same one after rounding.
                    if size > 1 << 22 && self.resources.iter().any(is_alone) {
                        let status =
                            millpond_deallocate(block.of, block.ptr, wrong, block.alignment, null_mut());
                        assert!(!is_ok(status), "a free of {wrong} bytes, not {}", block.bytes);
                    }
                }
                9 | 10 if live > 0 && self.is_reached(self.blocks[number % live].of) => {
                    let block = self.blocks[number % live];
                    let (count, device) = (block.bytes.min(64), self.device_of(block.of));
                    let mut host = [0_u8; 64];
                    // The block may be used on each stream now.
                    assert!(is_ok(millpond_device_synchronize(device)));
                    is_ok(match number / 64 {
                        0 => millpond_fill(device, block.ptr, number as u8, block.bytes, stream),
                        1 => millpond_copy_to_device(device, block.ptr, host.as_ptr().cast(), count, stream),
                        2 => {
                            millpond_copy_to_host(device, host.as_mut_ptr().cast(), block.ptr, count, stream)
                        }
                        _ => millpond_prefetch(device, block.ptr, block.bytes, number % 2 == 0, stream),
                    });
                    is_ok(millpond_device_synchronize(device));
                }
                _ => {
                    let other = self.stream(bytes)?;
                    let mut id = 0;
                    is_ok(millpond_stream_id(device, other, &raw mut id));
                    is_ok(match number % 4 {
                        0 => millpond_stream_wait(device, stream, other),
                        1 => millpond_stream_follow(device, stream, other),
                        2 => millpond_stream_follow_if_alive(device, stream, other, id),
                        _ => millpond_stream_synchronize(device, stream),
                    });
                }
            }
        }
        Ok(())
    }

    /// Makes and ends streams and pools of the driver.
    fn call_streams(&mut self, device: *mut Device, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (kind, number) = (bytes.arbitrary::<u8>()? % 8, usize::from(bytes.arbitrary::<u8>()?));
        let size = u64::from(bytes.arbitrary::<u32>()?);
        // SAFETY: as in the other functions.
        unsafe {
            match kind {
                0 if self.streams.len() < 8 => {
                    let mut made = null_mut();
                    if is_ok(millpond_stream_create(or_null(bytes, device)?, number % 2 == 0, &raw mut made))
                    {
                        self.streams.push(made);
                    }
                }
                1 if !self.streams.is_empty() => {
                    let ended = self.streams.swap_remove(number % self.streams.len());
                    assert!(is_ok(millpond_stream_destroy(device, ended)));
                    self.ended.push(ended);
                }
                2 => {
                    let properties = MemoryPoolProperties {
                        location_type: number as u32 % 5,
                        handle_types: bytes.arbitrary::<u8>()?.into(),
                        is_managed: bytes.arbitrary()?,
                        max_bytes: size,
                        ..MemoryPoolProperties::default()
                    };
                    let properties = if number == 0 { null() } else { &raw const properties };
                    let mut made = null_mut();
                    if is_ok(millpond_memory_pool_new(device, properties, &raw mut made)) {
                        self.pools.push(made);
                    }
                }
                3..=7 if !self.pools.is_empty() => {
                    let (pool, mut value) = (self.pools[number % self.pools.len()], 0_u64);
                    let mut made = null_mut();
                    is_ok(match kind {
                        3 => millpond_memory_pool_get_attribute(pool, size as u32 % 16, &raw mut value),
                        4 => millpond_memory_pool_set_attribute(pool, number as u32 % 16, size),
                        5 => millpond_memory_pool_trim(pool, size, &raw mut value),
                        6 => {
                            let status = millpond_memory_pool_set_access(pool, device, number as u32);
                            self.has_revoked |= status == Status::Ok && number == 0;
                            status
                        }
                        _ => millpond_memory_pool_resource(pool, &raw mut made),
                    });
                    self.keep(made, device, false);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes and ends blocks of managers.
    fn call_manager(&mut self, manager: *mut Manager, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (kind, number) = (bytes.arbitrary::<u8>()? % 6, usize::from(bytes.arbitrary::<u8>()?));
        let (size, stream) = (u64::from(bytes.arbitrary::<u32>()?), self.stream(bytes)?);
        // SAFETY: as in the other functions.
        unsafe {
            match kind {
                0 | 1 => {
                    let (mut address, mut memory) = (0, null_mut());
                    let manager = or_null(bytes, manager)?;
                    let status =
                        millpond_manager_allocate(manager, size, stream, &raw mut address, &raw mut memory);
                    if is_ok(status) {
                        self.memories.push(memory);
                    }
                }
                2 if !self.memories.is_empty() => {
                    let memory = self.memories[number % self.memories.len()];
                    millpond_memory_is_live(memory);
                    is_ok(millpond_manager_record_stream(manager, memory, stream));
                }
                3 if !self.memories.is_empty() => {
                    millpond_memory_free(self.memories.swap_remove(number % self.memories.len()));
                }
                4 if self.deferrals.len() < 4 => {
                    let mut deferral = null_mut();
                    if is_ok(millpond_manager_defer(manager, &raw mut deferral)) {
                        self.deferrals.push(deferral);
                    }
                }
                _ => self.deferrals.pop().into_iter().for_each(|it| millpond_deferral_free(it)),
            }
        }
        Ok(())
    }

    /// Calls `millpond_malloc`, and frees handles.
    fn call_malloc(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (kind, number) = (bytes.arbitrary::<u8>()? % 5, usize::from(bytes.arbitrary::<u8>()?));
        let (size, of_malloc) = (u64::from(bytes.arbitrary::<u32>()?), OF_MALLOC.0);
        // SAFETY: as in the other functions.
        unsafe {
            match kind {
                0 => {
                    let (resource, mut before) = (self.resource(bytes)?, null_mut());
                    if resource.is_null() || self.device_of(resource) == of_malloc {
                        is_ok(millpond_set_per_device_resource(resource, &raw mut before));
                        self.shares(resource);
                        self.keep(before, of_malloc, false);
                    }
                }
                1 => {
                    let ordinal = millpond_device_ordinal(of_malloc);
                    let ordinal = if number % 16 == 15 { size as i32 } else { ordinal };
                    let block = millpond_malloc(size as usize, ordinal, null_mut());
                    if !block.is_null() {
                        self.mallocs.push(block);
                    }
                }
                2 if !self.mallocs.is_empty() => {
                    let (block, mut held) = (self.mallocs.swap_remove(number % self.mallocs.len()), 0);
                    assert!(is_ok(millpond_block_size(block, &raw mut held)));
                    millpond_free(block, held as usize, 0, null_mut());
                    millpond_free(block, held as usize, 0, null_mut());
                    is_ok(millpond_record_stream(block, null_mut()));
                }
                _ if number % 4 == 0 => drop(is_ok(millpond_empty_cache())),
                _ => {
                    let index = number.checked_rem(self.resources.len());
                    index.into_iter().for_each(|index| self.free_resource(index));
                }
            }
        }
        Ok(())
    }

    /// Frees everything. Nothing of the device may be left.
    fn end(mut self, device: *mut Device, manager: *mut Manager) {
        // SAFETY: each handle is live and is not used again.
        unsafe {
            self.deferrals.into_iter().rev().for_each(|it| millpond_deferral_free(it));
            self.memories.into_iter().for_each(|it| millpond_memory_free(it));
            millpond_manager_free(manager);
            self.mallocs.into_iter().for_each(|block| millpond_free(block, 0, 0, null_mut()));
            (self.deferrals, self.memories, self.mallocs) = Default::default();
            while !self.resources.is_empty() {
                self.free_resource(0);
            }
            self.pools.iter().for_each(|pool| millpond_memory_pool_free(*pool));
            assert!(is_ok(millpond_stop_history()));
            assert!(is_ok(millpond_reset_per_device_resource(OF_MALLOC.0)));
            for each in [OF_MALLOC.0, device] {
                assert!(is_ok(millpond_device_synchronize(each)));
                assert!(is_ok(millpond_empty_cache()));
                let id = DeviceId::sim(millpond_device_ordinal(each) as u32);
                let sim = SimDevice::find(id).expect("the device is open");
                // Streams that were destroyed, or belong to another device, are named on purpose.
                let mut found = sim.take_violations();
                found.retain(|found| found.kind != ViolationKind::DeadHandle);
                assert_eq!((sim.live_allocations(), found), (0, vec![]));
            }
            let ordinal = millpond_device_ordinal(device) as u32;
            millpond_device_free(device);
            let mut again = null_mut();
            let found = millpond_device_find(ordinal, true, &raw mut again);
            assert_eq!(found, Status::NoDevice, "something keeps the device");
        }
    }
}

pub(super) fn run(bytes: &[u8]) {
    let mut bytes = Unstructured::new(bytes);
    LazyLock::force(&OF_MALLOC);
    let (device, mut manager) = (device(), null_mut());
    // SAFETY: the handle is live, and the result is valid for writes.
    assert!(is_ok(unsafe { millpond_manager_new(OF_MALLOC.0, &raw mut manager) }));
    let mut program = Program::default();
    for _ in 0..256 {
        if bytes.is_empty() {
            break;
        }
        let ran = match bytes.arbitrary::<u8>().unwrap_or(0) % 8 {
            0 => program.make(device, &mut bytes),
            1 => program.ask(device, &mut bytes),
            2 => program.call_streams(device, &mut bytes),
            3 => program.call_manager(manager, &mut bytes),
            4 => program.call_malloc(&mut bytes),
            _ => program.use_memory(device, &mut bytes),
        };
        if ran.is_err() {
            break;
        }
    }
    program.end(device, manager);
}
