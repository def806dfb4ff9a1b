//! Tests the stack of a manager while it is built.

use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use millpond_core::{DriverHandle, ErrorKind};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::CudaMemoryResource;

use super::MillpondMemoryManager;
use crate::MemoryManager;

/// The builder of a stack waits for a thread that asks the manager for memory.
#[test]
fn issue_29_a_thread_that_the_builder_of_a_stack_waits_for_has_an_error() {
    static MANAGER: OnceLock<Weak<MillpondMemoryManager>> = OnceLock::new();
    let build = |driver: &DriverHandle| {
        let manager = MANAGER.get().and_then(Weak::upgrade).unwrap();
        let error = thread::spawn(move || manager.memalloc(1000).unwrap_err()).join().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("another thread builds the memory manager's stack"), "{error}");
        Ok(Arc::new(CudaMemoryResource::new(Arc::clone(driver))) as _)
    };
    let device = SimDevice::new(SimConfig::h200());
    let manager = Arc::new(MillpondMemoryManager::with_builder(Some(device), Arc::new(build)));
    MANAGER.set(Arc::downgrade(&manager)).unwrap();
    manager.memalloc(100).unwrap();
}
