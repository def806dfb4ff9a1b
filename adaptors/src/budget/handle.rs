//! A handle to a budget, for programs.

use std::fmt;
use std::sync::Arc;

use millpond_core::DeviceId;

use super::account::BudgetNode;
use super::names;

/// A handle to a budget. See [the module](super).
#[derive(Clone)]
pub struct Budget(pub(super) Arc<BudgetNode>);

impl Budget {
    /// Returns all live budgets of the process with their devices, ordered by device and name.
    pub fn all() -> Vec<(DeviceId, Self)> {
        names::all().into_iter().map(|(device, node)| (device, Self(node))).collect()
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.0.settings.name
    }

    /// Returns the budget above; `None` for the root of a tree.
    pub fn parent(&self) -> Option<Self> {
        self.0.parent.clone().map(Self)
    }

    /// Returns the limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit
    }

    /// Returns the guaranteed bytes.
    pub fn guaranteed_bytes(&self) -> u64 {
        self.0.guaranteed
    }

    /// Returns the live bytes of this budget and of the budgets below. The size of each request is rounded
    /// up, as in [`LimitingResourceAdaptor`](crate::LimitingResourceAdaptor).
    pub fn used_bytes(&self) -> u64 {
        self.0.used_and_room().0
    }

    /// Sets a function that frees memory of this budget, or of the budgets below, when another budget calls
    /// back its guarantee. The argument is the size of the other budget's request in bytes. A request calls
    /// the function once at most. The function replaces an earlier one.
    ///
    /// The function runs on the thread of the other budget's request, and no lock is held. Several threads
    /// may run it at the same time. It should return soon: the request waits for it, even beyond its own
    /// longest wait. A request that the function makes asks no other budget, and does not wait. A
    /// `trim` goes down to the nearest budget only. If the function panics, the panic is reported through
    /// `tracing`.
    pub fn on_call_back(&self, function: impl Fn(u64) + Send + Sync + 'static) {
        let earlier = self.0.set_on_call_back(Some(Arc::new(function)));
        drop(earlier);
    }

    /// Removes the function that [`on_call_back`](Self::on_call_back) set.
    pub fn forget_call_back(&self) {
        let earlier = self.0.set_on_call_back(None);
        drop(earlier);
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({})", self.0.settings)
    }
}
