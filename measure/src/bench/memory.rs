//! Checks that this machine has the memory that mimalloc would use.

use std::fs;

use millpond_core::format_bytes;

/// If `bytes` bytes of CPU memory should not be allocated, returns the reason.
///
/// No step writes to the blocks. But an allocator that allocates its memory in huge pages touches it anyway.
pub(super) fn too_little_for(bytes: u64) -> Option<String> {
    let touched = bytes + bytes / 8;
    let available = available()?;
    (touched > available).then(|| {
        let (touched, available) = (format_bytes(touched), format_bytes(available));
        format!("the workload may use {touched} of CPU memory, but only {available} are available")
    })
}

/// Returns how many bytes this process can still allocate; `None` if the system does not report it.
fn available() -> Option<u64> {
    let free = meminfo_available(&read("/proc/meminfo")?)?;
    let groups = [
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ];
    let number = |path| read(path)?.trim().parse::<u64>().ok();
    let left = groups.iter().filter_map(|(limit, used)| Some(number(*limit)?.saturating_sub(number(*used)?)));
    Some(left.fold(free, u64::min))
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24592332 kB\nMemAvailable:   23068672 kB\nBuffers: 1 kB\n";
        assert_eq!(meminfo_available(text), Some(23_068_672 << 10));
        assert_eq!(meminfo_available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_little_fits_and_more_than_any_machine_has_does_not() {
        assert_eq!(too_little_for(256), None);
        let reason = too_little_for(1 << 60).unwrap();
        assert!(reason.contains("are available"), "{reason}");
    }
}
