//! Tests that the stacks which the plug-in chooses or recommends give a legacy IPC handle. Also tests the
//! advice in the errors of the other stacks.

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{DriverHandle, ErrorKind};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_plugin::{ManagerRegistry, MemoryManager, MillpondMemoryManager};

const MIB: u64 = 1 << 20;

fn layers() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied())
}

fn registry(text: Option<&str>) -> ManagerRegistry {
    let text = text.map(str::to_owned);
    ManagerRegistry::new(Box::new(move |_| text.clone()), Box::new(millpond_driver::open), layers())
}

fn shares(manager: &dyn MemoryManager) -> bool {
    let memory = manager.memalloc(MIB).unwrap();
    manager.get_ipc_handle(&memory).is_ok()
}

#[test]
fn issue_9_the_default_and_every_stack_that_the_plug_in_names_give_an_ipc_handle() {
    use millpond_core::Driver;

    let device = SimDevice::new(SimConfig::h200());
    assert!(shares(&*registry(None).get(device.device()).unwrap()), "the default");
    // The stack that the error about a wrong stack recommends.
    let error = registry(Some("nonsense")).get(device.device()).unwrap_err().to_string();
    let advised = error.split('`').nth(1).unwrap();
    assert!(shares(&*registry(Some(advised)).get(device.device()).unwrap()), "{advised}");
    // The stacks that the documentation names.
    for text in [
        include_str!("../../src/lib.rs"),
        include_str!("../../examples/numba/README.md"),
        include_str!("../../examples/numba/lib.rs"),
    ] {
        let lines = text.lines().filter(|line| {
            line.contains("MILLPOND_MEMORY_MANAGER=")
                || line.contains("DEFAULT_STACK:")
                || line.contains(".parse()?")
        });
        let mut named = 0;
        for line in lines {
            let from = line.find("cuda+").unwrap_or_else(|| panic!("{line}"));
            let end = line[from..].find(['`', '"', ' ', '|']).map_or(line.len(), |at| from + at);
            let stack = &line[from..end];
            assert!(shares(&*registry(Some(stack)).get(device.device()).unwrap()), "{stack}");
            named += 1;
        }
        assert!(named > 0);
    }
}

#[test]
fn issue_9_a_stack_that_gives_none_says_what_does() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    for text in ["cuda+pool", "cuda+pool:share=fd", "managed", "managed+pool"] {
        let stack = text.parse::<StackSpec>().unwrap().build(&layers(), &driver).unwrap();
        let manager = MillpondMemoryManager::new(stack);
        let memory = manager.memalloc(MIB).unwrap();
        let error = manager.get_ipc_handle(&memory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let said = error.to_string();
        assert!(said.contains(&format!("`{text}`")), "{said}");
        let advised = said.split_whitespace().find(|word| word.starts_with("cuda+")).unwrap();
        let stack = advised.parse::<StackSpec>().unwrap().build(&layers(), &driver).unwrap();
        assert!(shares(&MillpondMemoryManager::new(stack)), "{advised}");
    }
}
