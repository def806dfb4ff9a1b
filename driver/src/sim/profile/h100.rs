//! The profile in `driver/profiles/h100.toml`, as Rust. The test `sim_profile` writes it
//! (MILLPOND_WRITE=1).

use super::{Costs, EventRecordCosts, PlainCosts, Profile, SetAccessCosts, SizeCosts, UnmapCosts};
use crate::CallKind;

type Points = &'static [(u64, u64)];

const MEM_ALLOC: Points = &[
    (2097152, 34568), (4194304, 35764), (8388608, 36443),
    (16777216, 37980), (33554432, 41162), (67108864, 44772),
    (134217728, 51347), (268435456, 59992), (536870912, 72429),
    (1073741824, 97038), (2147483648, 1533878),
];
const MEM_FREE: Points = &[
    (2097152, 28579), (4194304, 32482), (8388608, 35159),
    (16777216, 40689), (33554432, 50930), (67108864, 65110),
    (134217728, 98242), (268435456, 159576), (536870912, 274365),
    (1073741824, 500729), (2147483648, 938011),
];
const MEM_ALLOC_MANAGED: Points = &[
    (65536, 2515), (1048576, 5612), (2097152, 10122),
    (16777216, 10192), (67108864, 12660), (268435456, 12145),
];
const MEM_FREE_MANAGED: Points = &[
    (65536, 5660), (1048576, 7947), (2097152, 10735),
    (16777216, 11060), (67108864, 11698), (268435456, 13461),
];
const MEM_HOST_ALLOC: Points = &[
    (65536, 77400), (1048576, 546372), (16777216, 5952810),
    (67108864, 20830829),
];
const MEM_FREE_HOST: Points = &[
    (65536, 3946897), (1048576, 180033), (16777216, 1389513),
    (67108864, 5552199),
];
const MEM_CREATE: Points = &[
    (2097152, 10440), (4194304, 9564), (8388608, 9484),
    (16777216, 10623), (33554432, 12986), (67108864, 14418),
    (134217728, 14094), (268435456, 17324), (534773760, 21754),
];
const MEM_RELEASE: Points = &[
    (2097152, 12263), (4194304, 12644), (8388608, 14052),
    (16777216, 16710), (33554432, 23148), (67108864, 33415),
    (134217728, 57234), (268435456, 105249), (534773760, 194574),
];
const MEM_SET_ACCESS: Points = &[
    (2097152, 23850), (4194304, 21574), (8388608, 20996),
    (16777216, 21182), (33554432, 21942), (67108864, 23211),
    (134217728, 24075), (268435456, 25177), (534773760, 26509),
];
const MEM_UNMAP: Points = &[
    (2097152, 16493), (4194304, 15694), (8388608, 15555),
    (16777216, 15642), (33554432, 16092), (67108864, 16302),
    (134217728, 16560), (268435456, 16614), (534773760, 15361),
];
const CALLS: &[(CallKind, u64)] = &[
    (CallKind::MemAllocAsync, 757),
    (CallKind::MemFreeAsync, 960),
    (CallKind::MemPool, 287),
    (CallKind::MemPoolTrim, 291),
    (CallKind::MemAddressReserve, 1805),
    (CallKind::MemAddressFree, 1698),
    (CallKind::MemMap, 2652),
    (CallKind::MemPrefetch, 19219),
    (CallKind::MemAdvise, 2271),
    (CallKind::MemGetInfo, 4899),
    (CallKind::PointerQuery, 956),
    (CallKind::MemHostRegister, 75265),
    (CallKind::StreamCreate, 14440),
    (CallKind::StreamDestroy, 2859),
    (CallKind::StreamGetId, 434),
    (CallKind::StreamSynchronize, 693),
    (CallKind::StreamQuery, 603),
    (CallKind::StreamWaitEvent, 491),
    (CallKind::StreamIsCapturing, 252),
    (CallKind::EventCreate, 731),
    (CallKind::EventDestroy, 392),
    (CallKind::EventRecord, 623),
    (CallKind::EventQuery, 405),
    (CallKind::EventSynchronize, 604),
    (CallKind::Synchronize, 1360),
    (CallKind::CaptureMode, 56),
    (CallKind::Copy, 6572),
    (CallKind::Fill, 5091),
    (CallKind::Other, 76),
];

pub(super) fn profile() -> Profile {
    Profile::measured(
        "simulated H100",
        85017493504,
        132,
        (9, 0),
        "NVIDIA H100 80GB HBM3, driver 580.159, CUDA 13.0, 2026-11-27",
        Costs {
            calls_ns: CALLS.iter().copied().collect(),
            event_record: EventRecordCosts { legacy_stream_extra_ns: 149 },
            mem_alloc: Some(PlainCosts { in_page_ns: 1700, by_bytes_ns: MEM_ALLOC.into() }),
            mem_free: Some(PlainCosts { in_page_ns: 2091, by_bytes_ns: MEM_FREE.into() }),
            mem_alloc_managed: Some(SizeCosts { by_bytes_ns: MEM_ALLOC_MANAGED.into() }),
            mem_free_managed: Some(SizeCosts { by_bytes_ns: MEM_FREE_MANAGED.into() }),
            mem_host_alloc: Some(SizeCosts { by_bytes_ns: MEM_HOST_ALLOC.into() }),
            mem_free_host: Some(SizeCosts { by_bytes_ns: MEM_FREE_HOST.into() }),
            mem_create: Some(SizeCosts { by_bytes_ns: MEM_CREATE.into() }),
            mem_release: Some(SizeCosts { by_bytes_ns: MEM_RELEASE.into() }),
            mem_set_access: Some(SetAccessCosts {
                call_ns: 3778,
                mapping_by_bytes_ns: MEM_SET_ACCESS.into(),
                second_mapping_extra_ns: 253,
                new_512_mib_extra_ns: 16994,
            }),
            mem_unmap: Some(UnmapCosts { call_ns: 1852, mapping_by_bytes_ns: MEM_UNMAP.into() }),
        },
    )
}
