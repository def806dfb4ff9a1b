//! Memory of the host machine.

use millpond_core::driver::MemoryInfo;
use sysinfo::{MemoryRefreshKind, System};

/// Returns the available and total bytes, within the limits of the process's control group.
pub(super) fn memory_info() -> MemoryInfo {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let (free, total) = (system.available_memory(), system.total_memory());
    let limits = system.cgroup_limits().map(|limits| (limits.free_memory, limits.total_memory));
    let (most_free, most) = limits.unwrap_or((free, total));
    MemoryInfo { free: free.min(most_free), total: total.min(most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_memory() {
        let MemoryInfo { free, total } = memory_info();
        assert!(0 < free && free <= total, "{free} of {total}");
    }
}
