//! Tests that `{:?}` of every resource is a line: its type, and the text of its stack.

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{DeviceMemoryResourceExt, DriverHandle, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};

#[test]
fn a_resource_is_printed_as_a_line() {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied());
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    let values = [
        ("fallback", ":to=(cuda+pool)".to_owned()),
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
        // A base stands first, and a layer on something.
        let texts = [layer.clone(), format!("cuda+pool+{layer}"), format!("cuda+pool+{layer}+statistics")];
        for text in texts {
            let Ok(stack) = text.parse::<StackSpec>().unwrap().build(&table, &driver) else { continue };
            let held: Vec<_> =
                (0..100).map(|_| stack.allocate_bytes(1000, StreamRef::LEGACY).unwrap()).collect();
            let line = format!("{stack:?}");
            let (text, bytes) = (stack.to_string(), line.len());
            // `thread_safe` names its upstream only while no thread is in it.
            let is_named = line.contains(&text) || entry.name == "thread_safe";
            assert!(is_named && bytes < text.len() + 100 && !line.contains('\n'), "{line}");
            printed += 1;
            for ptr in held {
                // SAFETY: the block came from the stack with this size, once; nothing uses it.
                unsafe { stack.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
            }
        }
    }
    assert!(printed > table.entries().len(), "{printed}");
}
