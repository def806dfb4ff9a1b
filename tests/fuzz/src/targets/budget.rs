//! Budgets of `gate`.

use millpond_snapshot::gate::Budget;

pub(super) fn run(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let _ = text.parse::<Budget>();
}
