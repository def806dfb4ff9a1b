//! Budgets of `gate`.

#![no_main]

use libfuzzer_sys::fuzz_target;

use millpond_snapshot::gate::Budget;

fuzz_target!(|text: &str| {
    let _ = text.parse::<Budget>();
});
