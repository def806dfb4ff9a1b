//! Tests that `{:?}` of every resource prints one line: its type, and its stack's text.

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef};
use millpond_driver::CountingDriver;
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CallbackMemoryResource, CudaMemoryResource, HostResource, ManagedMemoryResource};

#[test]
fn a_resource_is_printed_as_a_line() {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied());
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    let values = [
        ("fallback", ":to=(cuda+pool)".to_owned()),
        ("budget", ":name=a,limit=1GiB".to_owned()),
        ("limiting", ":limit=1GiB".to_owned()),
        ("logging", format!(":file={}", log.display())),
        ("sam_headroom", ":headroom=1GiB".to_owned()),
        ("arena", ":size=64MiB".to_owned()),
        ("binning", ":bins=64KiB/1MiB(cuda_async)".to_owned()),
    ];
    let mut printed = 0;
    for entry in table.entries() {
        let value = values.iter().find(|(name, _)| *name == entry.name).map_or("", |(_, value)| value);
        let layer = format!("{}{value}", entry.name);
        let driver: DriverHandle = SimDevice::new(SimConfig::h200());
        // A base comes first; a layer needs something below it.
        let texts = [layer.clone(), format!("cuda+pool+{layer}"), format!("cuda+pool+{layer}+statistics")];
        for text in texts {
            let Ok(stack) = text.parse::<StackSpec>().unwrap().build(&table, &driver) else { continue };
            let held: Vec<_> =
                (0..100).map(|_| stack.allocate_bytes(1000, StreamRef::LEGACY).unwrap()).collect();
            let line = format!("{stack:?}");
            let (text, bytes) = (stack.to_string(), line.len());
            assert!(line.contains(&text) && bytes < text.len() + 100 && !line.contains('\n'), "{line}");
            printed += 1;
            for ptr in held {
                // SAFETY: the block came from the stack with this size, once; nothing uses it.
                unsafe { stack.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
            }
        }
    }
    assert!(printed > table.entries().len(), "{printed}");
}

/// Resources that no text builds. The driver counts calls of 80 kinds.
#[test]
fn what_holds_a_resource_or_a_driver_is_printed_as_a_line() {
    let driver = CountingDriver::new(SimDevice::new(SimConfig::h200()));
    // SAFETY: it hands nothing out.
    let callback =
        unsafe { CallbackMemoryResource::new(driver.clone(), |_, _| Ok(DevicePtr::NULL), |_, _, _| {}) };
    let host = HostResource::new(ManagedMemoryResource::new(driver.clone())).unwrap();
    let lines = [format!("{callback:?}"), format!("{host:?}"), format!("{driver:?}")];
    assert_eq!(lines[0], "CallbackMemoryResource(callback)");
    assert_eq!(lines[1], "HostResource(managed)");
    assert!(lines[2].starts_with("CountingDriver { inner: SimDevice"), "{}", lines[2]);
    assert!(lines.iter().all(|line| line.len() < 100), "{lines:?}");
    let any: AnyResource = CudaMemoryResource::new(driver).into_any();
    assert_eq!(format!("{any:?}"), "CudaMemoryResource(cuda)");
}
