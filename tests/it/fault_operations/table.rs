//! All operations, by crate.

use millpond_core::driver::call;
use millpond_testkit::faults::Operation;

use super::support::on_stage;
use super::{containers, memory_pools, plugin, resources};

pub(crate) const CRATES: [(&str, &[Operation]); 4] = [
    ("containers", containers::OPERATIONS),
    ("memory pools", memory_pools::OPERATIONS),
    ("resources and adaptors", resources::OPERATIONS),
    ("plugin and replay", plugin::OPERATIONS),
];

/// Operations with a mistake, which must be found.
pub(crate) const CANARIES: &[Operation] = &[
    Operation::new("canary (a leak on a failing path)", |stage| {
        on_stage(stage, |stage| {
            let driver = stage.driver();
            let block = call(&*driver, |driver| driver.mem_alloc(1000))?;
            call(&*driver, |driver| driver.mem_get_info())?; // forgets the block
            // SAFETY: the block is live, and nothing uses it.
            call(&*driver, |driver| unsafe { driver.mem_free(block) })
        })
    }),
    Operation::new("canary (a panic on a failing path)", |stage| {
        on_stage(stage, |stage| {
            stage.driver().mem_get_info().expect("on purpose");
            Ok(())
        })
    }),
];
