//! Shows the process to `millpond-replay top`, if no stack serves it: one resource for each device, whose
//! blocks are those that the program has from the driver.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, Error, ErrorKind,
    Holder, LayerMemory, Layout, MemoryInfo, ReportsMemory, ResourceStatistics, Result, StreamRef, Traits,
    debug_as_text, watch,
};
use millpond_driver::cuda::CudaDriver;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::process::{Serving, say};
use crate::stacks::Stack;

/// The statistics of a device, and the call stack and the bytes of each of the program's blocks there.
pub(crate) type Memory = (ResourceStatistics, Vec<(Option<Arc<Stack>>, u64)>);

/// The memory that the program has from the driver of one device.
struct Watched {
    driver: DriverHandle,
    number: c_int,
    /// Returns the memory of a device now.
    ask: fn(c_int) -> Option<Memory>,
}

/// The resources that are shown; `None` for a device whose driver cannot be asked.
static SHOWN: Mutex<Option<FxHashMap<c_int, Option<AnyResource>>>> = Mutex::new(None);

/// Shows a device from now on. `ask` returns its memory at any time.
pub(crate) fn show(device: c_int, ask: fn(c_int) -> Option<Memory>) {
    if SHOWN.lock().as_ref().is_some_and(|shown| shown.contains_key(&device)) {
        return;
    }
    let _serving = Serving::enter();
    // This makes no context: the program alone says how long its contexts live.
    let opened = match u32::try_from(device).map(CudaDriver::find) {
        Ok(Ok(driver)) => Some(driver as DriverHandle),
        Ok(Err(error)) => {
            say(&format!("device {device}: {error}; `top` does not show the device"));
            None
        }
        Err(_) => None,
    };
    let resource = opened.map(|driver| Watched { driver, number: device, ask }.into_any());
    // Another thread may have been faster.
    let shown = SHOWN.lock().get_or_insert_default().entry(device).or_insert(resource).clone();
    if let Some(resource) = shown {
        watch::add(&resource);
    }
}

/// Counts a block that the program has got.
pub(crate) fn add(statistics: &mut ResourceStatistics, bytes: u64) {
    statistics.is_counted_above = true;
    statistics.allocations += 1;
    statistics.blocks_in_use += 1;
    statistics.bytes_in_use = statistics.bytes_in_use.saturating_add(bytes);
    hold(statistics);
}

/// Counts a block that the program has freed.
pub(crate) fn remove(statistics: &mut ResourceStatistics, bytes: u64) {
    statistics.deallocations += 1;
    statistics.blocks_in_use = statistics.blocks_in_use.saturating_sub(1);
    statistics.bytes_in_use = statistics.bytes_in_use.saturating_sub(bytes);
    hold(statistics);
}

/// The driver rounds requests up, but does not tell by how much.
fn hold(statistics: &mut ResourceStatistics) {
    let bytes = statistics.bytes_in_use;
    (statistics.bytes_requested, statistics.bytes_reserved) = (bytes, bytes);
    statistics.peak_bytes_in_use = statistics.peak_bytes_in_use.max(bytes);
    statistics.peak_bytes_reserved = statistics.peak_bytes_in_use;
}

/// Groups blocks by the library that asked for them and by call stack, largest group first.
fn holders(blocks: Vec<(Option<Arc<Stack>>, u64)>) -> Vec<Holder> {
    let mut groups: BTreeMap<(String, String), Holder> = BTreeMap::new();
    for (stack, bytes) in blocks {
        let name = stack.map(|stack| (stack.asker.clone(), text(&stack))).unwrap_or_default();
        let holder = groups.entry(name).or_default();
        holder.blocks += 1;
        holder.bytes = holder.bytes.saturating_add(bytes);
    }
    let named = groups.into_iter().map(|((tag, backtrace), mut holder)| {
        holder.tag = Some(tag).filter(|tag| !tag.is_empty());
        holder.backtrace = Some(backtrace).filter(|text| !text.is_empty());
        holder
    });
    let mut holders: Vec<Holder> = named.collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders
}

/// Writes a call stack like a backtrace of the standard library.
fn text(stack: &Stack) -> String {
    let mut text = String::new();
    for (number, frame) in stack.frames.iter().enumerate() {
        let _ = writeln!(text, "{number:4}: {}", frame.function);
        if !frame.file.is_empty() {
            let _ = writeln!(text, "             at {}:{}:0", frame.file, frame.line);
        }
    }
    text
}

impl ReportsMemory for Watched {
    fn layer_memory(&self) -> LayerMemory {
        let (statistics, blocks) = (self.ask)(self.number).unwrap_or_default();
        let mut memory = LayerMemory::default();
        memory.statistics = Some(statistics);
        memory.holders = holders(blocks);
        memory
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("driver")
    }
}

debug_as_text!(Watched);

// SAFETY: this resource allocates nothing, so it has no duties.
unsafe impl DeviceMemoryResource for Watched {
    fn allocate(&self, _: Layout, _: StreamRef) -> Result<DevicePtr> {
        Err(Error::new(ErrorKind::Unsupported, "this resource only shows the program's memory"))
    }

    unsafe fn deallocate(&self, _: DevicePtr, _: Layout, _: StreamRef) {}

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(self.driver.mem_get_info()?)
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        std::ptr::addr_eq(self, other)
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        (self.ask)(self.number).map(|(statistics, _)| statistics)
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn ReportsMemory>(|it| it);
    }
}
