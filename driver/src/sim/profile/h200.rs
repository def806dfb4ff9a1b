//! The profile in `driver/profiles/h200.toml`, as Rust: MILLPOND_WRITE=1 in the test `sim_profile` writes it.

use super::{Costs, EventRecordCosts, PlainCosts, Profile, SetAccessCosts, SizeCosts, UnmapCosts};
use crate::CallKind;

type Points = &'static [(u64, u64)];

const MEM_ALLOC: Points = &[
    (2097152, 45900), (4194304, 43800), (8388608, 45400),
    (16777216, 47500), (33554432, 50600), (67108864, 52200),
    (134217728, 60100), (268435456, 71100), (536870912, 94400),
    (1073741824, 91900), (2147483648, 119900),
];
const MEM_FREE: Points = &[
    (2097152, 37700), (4194304, 37700), (8388608, 40000),
    (16777216, 45000), (33554432, 53000), (67108864, 67400),
    (134217728, 95400), (268435456, 137300), (536870912, 231700),
    (1073741824, 231600), (2147483648, 427400),
];
const MEM_ALLOC_MANAGED: Points = &[
    (65536, 2896), (1048576, 6169), (2097152, 14915),
    (16777216, 15596), (67108864, 16548), (268435456, 18821),
];
const MEM_FREE_MANAGED: Points = &[
    (65536, 5803), (1048576, 6772), (2097152, 15398),
    (16777216, 15632), (67108864, 16042), (268435456, 15987),
];
const MEM_HOST_ALLOC: Points = &[
    (65536, 67850), (1048576, 613486), (16777216, 9315875),
    (67108864, 36203105),
];
const MEM_FREE_HOST: Points = &[
    (65536, 25971), (1048576, 135354), (16777216, 2328060),
    (67108864, 8796232),
];
const MEM_CREATE: Points = &[
    (2097152, 8600), (67108864, 9000), (268435456, 18500),
];
const MEM_RELEASE: Points = &[
    (2097152, 7700), (33554432, 13000), (67108864, 36000),
    (536870912, 154000),
];
const MEM_SET_ACCESS: Points = &[
    (2097152, 23300),
];
const MEM_UNMAP: Points = &[
    (2097152, 11600),
];
const CALLS: &[(CallKind, u64)] = &[
    (CallKind::MemAllocAsync, 274),
    (CallKind::MemFreeAsync, 274),
    (CallKind::MemPool, 40),
    (CallKind::MemPoolTrim, 66),
    (CallKind::MemAddressReserve, 8097),
    (CallKind::MemAddressFree, 7976),
    (CallKind::MemMap, 500),
    (CallKind::MemPrefetch, 20700),
    (CallKind::MemAdvise, 2670),
    (CallKind::MemGetInfo, 3274),
    (CallKind::PointerQuery, 1250),
    (CallKind::MemHostRegister, 79920),
    (CallKind::StreamCreate, 17077),
    (CallKind::StreamDestroy, 3000),
    (CallKind::StreamGetId, 33),
    (CallKind::StreamSynchronize, 218),
    (CallKind::StreamQuery, 162),
    (CallKind::StreamWaitEvent, 152),
    (CallKind::StreamIsCapturing, 31),
    (CallKind::EventCreate, 76),
    (CallKind::EventDestroy, 76),
    (CallKind::EventRecord, 160),
    (CallKind::EventQuery, 142),
    (CallKind::EventSynchronize, 450),
    (CallKind::Synchronize, 854),
    (CallKind::CaptureMode, 8),
    (CallKind::Copy, 7900),
    (CallKind::Fill, 5080),
    (CallKind::Other, 68),
];

pub(super) fn profile() -> Profile {
    Profile::measured(
        "simulated H200",
        149250113536,
        132,
        (9, 0),
        "NVIDIA H200, driver 580.159, CUDA 13.0, 2026-11-22",
        Costs {
            calls_ns: CALLS.iter().copied().collect(),
            event_record: EventRecordCosts { legacy_stream_extra_ns: 103 },
            mem_alloc: Some(PlainCosts { in_page_ns: 675, by_bytes_ns: MEM_ALLOC.into() }),
            mem_free: Some(PlainCosts { in_page_ns: 675, by_bytes_ns: MEM_FREE.into() }),
            mem_alloc_managed: Some(SizeCosts { by_bytes_ns: MEM_ALLOC_MANAGED.into() }),
            mem_free_managed: Some(SizeCosts { by_bytes_ns: MEM_FREE_MANAGED.into() }),
            mem_host_alloc: Some(SizeCosts { by_bytes_ns: MEM_HOST_ALLOC.into() }),
            mem_free_host: Some(SizeCosts { by_bytes_ns: MEM_FREE_HOST.into() }),
            mem_create: Some(SizeCosts { by_bytes_ns: MEM_CREATE.into() }),
            mem_release: Some(SizeCosts { by_bytes_ns: MEM_RELEASE.into() }),
            mem_set_access: Some(SetAccessCosts {
                call_ns: 0,
                mapping_by_bytes_ns: MEM_SET_ACCESS.into(),
                second_mapping_extra_ns: 0,
                new_512_mib_extra_ns: 13000,
            }),
            mem_unmap: Some(UnmapCosts { call_ns: 2300, mapping_by_bytes_ns: MEM_UNMAP.into() }),
        },
    )
}
