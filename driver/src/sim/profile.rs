use crate::CallKind;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What a device holds, and what its driver calls cost.
///
/// The costs are medians in nanoseconds from one NVIDIA H200 (driver 580.159, CUDA 13.0), about 21 ns of
/// timer in each. Where only a pair was measured (allocate and free, create and destroy), each call costs
/// half of it; between two measured sizes the cost is interpolated on a straight line, beyond the last it
/// goes on along the same line. Calls that nobody measured cost nothing: see [`call_ns`](Self::call_ns).
///
/// Virtual memory management was measured from C++, by `benches/vmm`; docs/PAGES.md has the table.
///
/// How long work runs on the device is a plain model, not a measurement: a kernel takes 2 µs and 1 ns for
/// each 4 KiB that it touches, a copy or fill 1 µs and 1 ns for each 1 KiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    name: String,
    capacity: u64,
    measured: bool,
    multiprocessors: i64,
    compute_capability: (i64, i64),
}

impl Profile {
    /// An H200. The capacity is what its CUDA driver reports, in whole GiB.
    pub fn h200() -> Self {
        Self {
            name: "simulated H200".to_owned(),
            capacity: 139 * GIB,
            measured: true,
            multiprocessors: 132,
            compute_capability: (9, 0),
        }
    }

    /// An A100 with 80 GB. Nobody measured its costs: those of the H200 stand in, and the name says so.
    pub fn a100() -> Self {
        Self {
            name: "simulated A100 (call costs not measured: an H200's)".to_owned(),
            capacity: 79 * GIB,
            measured: false,
            multiprocessors: 108,
            compute_capability: (8, 0),
        }
    }

    /// An H200 with another capacity in bytes.
    pub fn with_capacity(bytes: u64) -> Self {
        Self {
            name: format!("simulated H200 with {}", millpond_core::format_bytes(bytes)),
            capacity: bytes,
            ..Self::h200()
        }
    }

    /// The device's name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The capacity in bytes.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether the costs were measured on this kind of device.
    pub const fn is_measured(&self) -> bool {
        self.measured
    }

    pub(super) const fn multiprocessors(&self) -> i64 {
        self.multiprocessors
    }

    pub(super) const fn compute_capability(&self) -> (i64, i64) {
        self.compute_capability
    }

    /// What a call of this kind costs in nanoseconds, without what goes by size or by the number of handles;
    /// `None` if nobody measured it, and it counts as nothing.
    pub const fn call_ns(&self, kind: CallKind) -> Option<u64> {
        Some(match kind {
            CallKind::MemAlloc | CallKind::MemFree | CallKind::MemRelease => 0, // all of it goes by size
            CallKind::MemUnmap | CallKind::MemSetAccess => 0,                   // by the number of handles
            CallKind::MemHostAlloc | CallKind::MemFreeHost => 264_000,          // 528 µs a pair, of 1 MiB
            CallKind::MemAllocAsync | CallKind::MemFreeAsync => 274,            // 520 to 575 a pair
            CallKind::MemCreate => 6_300,                                       // 2 to 32 MiB alike
            CallKind::MemMap => 500,
            CallKind::MemAddressReserve => 10_000, // 8.6 to 15 µs in the first pass of six logs
            CallKind::MemGetInfo => 3_274,
            CallKind::EventCreate | CallKind::EventDestroy => 76, // 153 a pair
            CallKind::EventRecord => 160,
            CallKind::EventQuery => 142, // 131 to 154
            CallKind::StreamWaitEvent => 152,
            CallKind::StreamQuery => 162,
            CallKind::StreamGetId => 33,
            CallKind::StreamIsCapturing => 31,
            _ => return None,
        })
    }

    /// What recording an event on the legacy default stream costs more than on others.
    pub(super) const fn legacy_record_extra_ns(&self) -> u64 {
        263 - 160
    }

    pub(super) fn mem_alloc_ns(&self, bytes: u64) -> u64 {
        interpolate(&[(MIB, 675), (64 * MIB, 33_000), (4 * GIB, 167_000)], bytes)
    }

    pub(super) fn mem_free_ns(&self, bytes: u64) -> u64 {
        interpolate(&[(MIB, 675), (64 * MIB, 43_000), (4 * GIB, 1_043_000)], bytes)
    }

    /// 7.7 µs for 2 MiB, 13 for 32 MiB. The two larger ones were measured through Python bindings only.
    pub(super) fn mem_release_ns(&self, bytes: u64) -> u64 {
        interpolate(&[(2 * MIB, 7_700), (32 * MIB, 13_000), (64 * MIB, 36_000), (512 * MIB, 154_000)], bytes)
    }

    /// Of one call, for so many mappings that are their handle's only one, and so many besides another. One
    /// costs 18.5 or 19.9 µs; further ones in the same call 16.3.
    pub(super) const fn mem_set_access_ns(&self, only: u64, besides: u64) -> u64 {
        let first = if besides > 0 { 19_900 } else { 18_500 };
        in_one_call(only + besides, first, 16_300)
    }

    /// Of one call, for so many mappings. One costs 13.9 µs, further ones 11.6.
    pub(super) const fn mem_unmap_ns(&self, mappings: u64) -> u64 {
        in_one_call(mappings, 13_900, 11_600)
    }

    pub(super) const fn kernel_ns(&self, bytes: u64) -> u64 {
        2_000 + bytes / (4 * KIB)
    }

    pub(super) const fn copy_ns(&self, bytes: u64) -> u64 {
        1_000 + bytes / KIB
    }
}

/// What a call costs that does the same for several mappings.
const fn in_one_call(mappings: u64, first: u64, further: u64) -> u64 {
    match mappings {
        0 => 0,
        n => first + (n - 1) * further,
    }
}

/// On the straight lines between the points (bytes, nanoseconds), of which there are two or more.
fn interpolate(points: &[(u64, u64)], bytes: u64) -> u64 {
    if bytes <= points[0].0 {
        return points[0].1;
    }
    let last = points.len() - 2;
    let from = points[1..].iter().position(|&(size, _)| bytes <= size).unwrap_or(last);
    let ((x0, y0), (x1, y1)) = (points[from], points[from + 1]);
    let rise = u128::from(bytes - x0) * u128::from(y1 - y0) / u128::from(x1 - x0);
    y0.saturating_add(u64::try_from(rise).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_that_were_measured() {
        let h200 = Profile::h200();
        assert_eq!(h200.mem_alloc_ns(256) + h200.mem_free_ns(256), 1350);
        assert_eq!((h200.mem_alloc_ns(64 * MIB), h200.mem_free_ns(64 * MIB)), (33_000, 43_000));
        assert_eq!((h200.mem_alloc_ns(4 * GIB), h200.mem_free_ns(4 * GIB)), (167_000, 1_043_000));
        assert_eq!((h200.mem_release_ns(2 * MIB), h200.mem_release_ns(512 * MIB)), (7_700, 154_000));
        let access =
            [(0, 0), (1, 0), (0, 1), (2, 0)].map(|(only, besides)| h200.mem_set_access_ns(only, besides));
        assert_eq!(access, [0, 18_500, 19_900, 34_800]);
        assert_eq!([0, 1, 2].map(|mappings| h200.mem_unmap_ns(mappings)), [0, 13_900, 25_500]);
        let create = h200.call_ns(CallKind::MemCreate).zip(h200.call_ns(CallKind::MemMap));
        assert_eq!(create, Some((6_300, 500)));
        assert_eq!(h200.call_ns(CallKind::MemGetInfo), Some(3274));
        assert_eq!(h200.call_ns(CallKind::Copy), None);
    }

    #[test]
    fn costs_between_lie_between_and_beyond_go_on() {
        let line = [(10, 100), (20, 200), (30, 400)];
        assert_eq!(
            [0, 10, 15, 20, 25, 30, 40].map(|x| interpolate(&line, x)),
            [100, 100, 150, 200, 300, 400, 600]
        );
        assert!(interpolate(&line, u64::MAX) > 1 << 60);
    }

    #[test]
    fn a_profile_that_nobody_measured_says_so() {
        assert!(Profile::h200().is_measured());
        assert!(!Profile::a100().is_measured());
        assert!(Profile::a100().name().contains("not measured"));
        assert_eq!(Profile::with_capacity(123).capacity(), 123);
    }
}
