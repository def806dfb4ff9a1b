//! Tests that an out-of-memory report reaches the caller through any layers above the pool.
//! (`resources/src/pool/oom_advice/tests.rs` tests that it is true.)

use std::sync::Arc;

use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::driver::{CaptureMode, Driver, StreamFlags};
use millpond::plugin::{MemoryManager, MillpondMemoryManager};
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, Error, LiveBlock, OutOfMemoryReport,
    Remedy, RemedyAction, StreamRef,
};

const MIB: u64 = 1 << 20;
const S: StreamRef = StreamRef::LEGACY;

fn device(capacity: u64) -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(capacity))
}

fn stack(text: &str, device: &Arc<SimDevice>) -> AnyResource {
    let driver: DriverHandle = Arc::clone(device) as _;
    text.parse::<StackSpec>().unwrap().build(&millpond::layers(), &driver).unwrap()
}

fn report(error: &Error) -> &OutOfMemoryReport {
    error.out_of_memory_report().unwrap_or_else(|| panic!("no report: {error}"))
}

/// Returns the error of a request for 12 MiB from a stack that holds 16 MiB and may hold 20 MiB.
fn refusal(text: &str) -> Error {
    let stack = stack(text, &device(64 * MIB));
    let block = stack.allocate_bytes(16 * MIB, S).unwrap();
    let error = stack.allocate_bytes(12 * MIB, S).unwrap_err();
    give(&stack, block, 16 * MIB);
    error
}

fn give(stack: &AnyResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the block came from this stack with this size and is freed once; nothing uses it.
    unsafe { stack.deallocate_bytes(ptr, bytes, S) };
}

fn blocks(report: &OutOfMemoryReport) -> Vec<LiveBlock> {
    let named = report.remedies.iter().find_map(|remedy| match &remedy.action {
        RemedyAction::FreeBlocks { blocks, .. } => Some(blocks.clone()),
        _ => None,
    });
    named.unwrap_or_else(|| panic!("no block is named: {report}"))
}

#[test]
fn adaptors_pass_a_report_on_as_it_is() {
    let bare = refusal("cuda+pool:max=20MiB");
    assert_eq!(report(&bare).remedies[0], Remedy::raise_maximum(8 * MIB, true));
    let adaptors = ["statistics", "tracking", "thread_safe", "limiting:limit=60MiB", "statistics+tracking"];
    for adaptors in adaptors {
        let error = refusal(&format!("cuda+pool:max=20MiB+{adaptors}"));
        // Tracking adds the holders of the memory, and changes nothing else.
        let mut as_below = report(&error).clone();
        let holders = std::mem::take(&mut as_below.holders);
        assert_eq!(&as_below, report(&bare), "{adaptors}");
        assert_eq!(holders.is_empty(), !adaptors.contains("tracking"), "{adaptors}");
        let text: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
        let text = text.into_iter().filter(|line| !line.contains("allocated without a tag"));
        let bare_text = bare.to_string().replace(&bare_device(&bare), &bare_device(&error));
        assert_eq!(text.collect::<Vec<_>>().join("\n"), bare_text, "{adaptors}");
    }
    let log = std::env::temp_dir().join(format!("millpond-out-of-memory-{}.csv", std::process::id()));
    let error = refusal(&format!("cuda+pool:max=20MiB+logging:file={}", log.display()));
    assert_eq!(report(&error), report(&bare));
    std::fs::remove_file(log).unwrap();
}

fn bare_device(error: &Error) -> String {
    error.device().expect("a device").to_string()
}

#[test]
fn a_plugged_in_manager_passes_a_report_on() {
    let device = device(64 * MIB);
    let manager = MillpondMemoryManager::new(stack("cuda+pool:max=20MiB+statistics", &device));
    let memory = manager.memalloc(16 * MIB).unwrap();
    let error = manager.memalloc(12 * MIB).unwrap_err();
    assert_eq!(report(&error).remedies[0], Remedy::raise_maximum(8 * MIB, true));
    let address = memory.device_pointer().address();
    assert_eq!(blocks(report(&error)), [LiveBlock { address, bytes: 16 * MIB }]);
    drop(memory);
    assert!(manager.memalloc(12 * MIB).is_ok());
}

#[test]
fn a_report_is_data_and_an_error_is_one_pointer() {
    let error = refusal("cuda+pool:max=20MiB");
    let data = serde_json::to_value(report(&error)).unwrap();
    assert_eq!(data["remedies"][0]["action"], "raise_maximum");
    assert_eq!(data["remedies"][0]["bytes"], 8 * MIB);
    assert_eq!(&serde_json::from_value::<OutOfMemoryReport>(data).unwrap(), report(&error));
    assert_eq!(size_of::<Error>(), size_of::<usize>());
}

/// The driver manages the blocks of `cuda_async`, so the resource does not know the free ones.
#[test]
fn a_free_block_that_is_not_known_is_no_number() {
    let device = device(64 * MIB);
    let stack = stack("cuda_async:max=8MiB", &device);
    let block = stack.allocate_bytes(8 * MIB, S).unwrap();
    let error = stack.allocate_bytes(MIB, S).unwrap_err();
    assert!(error.to_string().contains("8MiB in use in 1 block, 0B free; the maximum"), "{error}");
    let mut said = report(&error).clone();
    assert!(serde_json::to_value(&said).unwrap()["largest_free_block"].is_null(), "{said}");
    said.live_bytes = MIB;
    assert!(said.to_string().contains("7MiB free, largest free block unknown; the maximum"), "{said}");
    give(&stack, block, 8 * MIB);
}

#[test]
fn the_text_is_short_and_says_what_to_do() {
    let error = refusal("cuda+pool:max=20MiB");
    let expected = format!(
        "out of memory for 12MiB on stream 0 of {} in `cuda+pool:max=20MiB`: 8MiB more is needed
  any of these would have helped:
  - raise the maximum by 8MiB
  - free this block: {} (16MiB)
  the resource holds 16MiB: 16MiB in use in 1 block, 0B free, largest free block 0B; the maximum is 20MiB; \
         the device has 48MiB free of 64MiB
  [{}] #: in use, +: partly, .: free",
        bare_device(&error),
        DevicePtr::new(blocks(report(&error))[0].address),
        "#".repeat(80),
    );
    assert_eq!(error.to_string(), expected);
}

/// Another pool releases its free memory automatically. To this pool, the live blocks there are held by
/// others.
#[test]
fn another_pool_gives_what_it_can() {
    for pages in ["on", "off"] {
        let device = device(64 * MIB);
        let [one, other] = [(); 2].map(|()| stack(&format!("cuda+pool:pages={pages}"), &device));
        let block = other.allocate_bytes(40 * MIB, S).unwrap();
        let error = one.allocate_bytes(30 * MIB, S).unwrap_err();
        let elsewhere = Remedy::free_device_memory(6 * MIB, 40 * MIB, true);
        assert_eq!(report(&error).remedies, [elsewhere], "{error}");
        assert!(error.to_string().contains("free 6MiB of the 40MiB of device memory"), "{error}");
        give(&other, block, 40 * MIB);
        assert!(one.allocate_bytes(30 * MIB, S).is_ok(), "pages={pages}");
    }
}

/// `cuda` does not count its blocks, so the memory in use may be the program's own.
#[test]
fn a_base_resource_does_not_say_that_others_hold_its_own_blocks() {
    for text in ["cuda", "cuda+binning"] {
        let device = device(64 * MIB);
        let one = stack(text, &device);
        let block = one.allocate_bytes(40 * MIB, S).unwrap();
        let error = one.allocate_bytes(30 * MIB, S).unwrap_err();
        assert_eq!(report(&error).remedies, [Remedy::free_used_memory(6 * MIB, 40 * MIB)], "{error}");
        let advice = "free 6MiB of the 40MiB of device memory in use, by this program or by others";
        assert!(error.to_string().contains(advice), "{error}");
        give(&one, block, 40 * MIB);
        assert!(one.allocate_bytes(30 * MIB, S).is_ok(), "{text}");
    }
}

#[test]
fn any_block_of_one_size_will_do() {
    let device = device(4 * MIB);
    let stack = stack("cuda+fixed_size:block_size=1MiB", &device);
    let held: Vec<DevicePtr> = std::iter::from_fn(|| stack.allocate_bytes(MIB, S).ok()).collect();
    let error = stack.allocate_bytes(MIB, S).unwrap_err();
    let named = blocks(report(&error));
    assert_eq!(named.len(), 1);
    assert!(held.contains(&DevicePtr::new(named[0].address)));
    give(&stack, DevicePtr::new(named[0].address), named[0].bytes);
    assert!(stack.allocate_bytes(MIB, S).is_ok());
}

#[test]
fn blocks_over_a_pool_take_over_what_the_pool_advises() {
    let device = device(64 * MIB);
    let stack = stack("cuda+pool:max=8MiB,pages=off+fixed_size:block_size=4MiB", &device);
    let _held = [(); 2].map(|()| stack.allocate_bytes(4 * MIB, S).unwrap());
    let error = stack.allocate_bytes(4 * MIB, S).unwrap_err();
    let said = report(&error);
    assert!(said.remedies.contains(&Remedy::raise_maximum(4 * MIB, true)), "{said}");
    assert_eq!(blocks(said).len(), 1, "of the blocks above, not of the pool's");
    let below = said.upstream.as_ref().expect("the pool said something");
    assert_eq!((below.held_bytes, below.maximum_bytes), (8 * MIB, Some(8 * MIB)));
    assert!(error.to_string().contains("the resource below, which refused a request for 4MiB"), "{error}");
}

/// Bins hold the pool's regions, which no caller has. The report names the callers' blocks in these regions.
#[test]
fn what_bins_hold_is_named_by_what_callers_have() {
    let device = device(32 * MIB);
    let stack = stack("cuda+pool+binning:bins=1MiB", &device);
    let small: Vec<DevicePtr> = std::iter::from_fn(|| stack.allocate_bytes(MIB, S).ok()).collect();
    assert!(small.len() > 16);
    let error = stack.allocate_bytes(16 * MIB, S).unwrap_err();
    let named = blocks(report(&error));
    assert!(named.len() >= 16, "{error}");
    for LiveBlock { address, bytes } in &named {
        assert!(*bytes == MIB && small.contains(&DevicePtr::new(*address)), "{error}");
        give(&stack, DevicePtr::new(*address), *bytes);
    }
    assert!(stack.allocate_bytes(16 * MIB, S).is_ok());
}

/// During a capture, bins wait for no stream, so they keep regions without live blocks. The caller has no
/// block to free, and outside of the capture the bins release the regions automatically.
#[test]
fn regions_that_bins_keep_during_a_capture_are_reclaimed_after_it() {
    let device = device(64 * MIB);
    let stack = stack("cuda+pool:pages=off,initial=32MiB,max=32MiB+binning:bins=1MiB", &device);
    let small: Vec<DevicePtr> = std::iter::from_fn(|| stack.allocate_bytes(MIB, S).ok()).collect();
    small.iter().for_each(|block| give(&stack, *block, MIB));
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    device.begin_capture(stream, CaptureMode::Global).unwrap();
    let error = stack.allocate_bytes(24 * MIB, stream).unwrap_err();
    let actions: Vec<&RemedyAction> = report(&error).remedies.iter().map(|remedy| &remedy.action).collect();
    let is_empty = |action: &&RemedyAction| matches!(action, RemedyAction::FreeBlocks { number: 0, .. });
    assert!(!actions.iter().any(is_empty), "{error}");
    let is_merge = |action: &&RemedyAction| matches!(action, RemedyAction::MergeStreams { .. });
    assert!(actions.iter().any(is_merge), "{error}");
    device.end_capture(stream).unwrap();
    assert!(stack.allocate_bytes(24 * MIB, stream).is_ok(), "as the error says");
}

/// Tests that an error of any layer names the device: too large a request, and one that no address space has.
#[test]
fn every_error_names_the_device() {
    for subject in crate::subjects::all() {
        let device = device(256 * MIB);
        let Ok(stack) = subject.build(&(Arc::clone(&device) as DriverHandle)) else { continue };
        for bytes in [512 * MIB, 1 << 50, u64::MAX - 100, u64::MAX] {
            let Err(error) = stack.allocate_bytes(bytes, S) else { continue };
            let named = (error.device(), error.stream(), error.requested_bytes());
            let expected = (Some(device.device()), Some(S), Some(bytes));
            assert_eq!(named, expected, "{}: {error}", subject.name());
        }
    }
}
