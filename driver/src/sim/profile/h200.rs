//! The profile in `driver/profiles/h200.toml`, as Rust. The test `sim_profile` writes it
//! (MILLPOND_WRITE=1).

use super::{Costs, EventRecordCosts, PlainCosts, Profile, SetAccessCosts, SizeCosts, UnmapCosts};
use crate::CallKind;

type Points = &'static [(u64, u64)];

const MEM_ALLOC: Points = &[
    (2097152, 41857), (4194304, 38286), (8388608, 39924),
    (16777216, 42148), (33554432, 48654), (67108864, 53569),
    (134217728, 57337), (268435456, 66837), (536870912, 95404),
    (1073741824, 133465), (2147483648, 165479),
];
const MEM_FREE: Points = &[
    (2097152, 30983), (4194304, 34727), (8388608, 37318),
    (16777216, 42814), (33554432, 49281), (67108864, 62596),
    (134217728, 85468), (268435456, 129119), (536870912, 241797),
    (1073741824, 434178), (2147483648, 799071),
];
const MEM_ALLOC_MANAGED: Points = &[
    (65536, 2573), (1048576, 5054), (2097152, 7563),
    (16777216, 7826), (67108864, 9190), (268435456, 9342),
];
const MEM_FREE_MANAGED: Points = &[
    (65536, 4897), (1048576, 6215), (2097152, 7870),
    (16777216, 8032), (67108864, 8522), (268435456, 12807),
];
const MEM_HOST_ALLOC: Points = &[
    (65536, 60434), (1048576, 407275), (16777216, 6697163),
    (67108864, 26901314),
];
const MEM_FREE_HOST: Points = &[
    (65536, 21348), (1048576, 124670), (16777216, 1561621),
    (67108864, 6385917),
];
const MEM_CREATE: Points = &[
    (2097152, 11720), (4194304, 10692), (8388608, 11543),
    (16777216, 11832), (33554432, 11489), (67108864, 13739),
    (134217728, 18807), (268435456, 20433), (534773760, 24048),
];
const MEM_RELEASE: Points = &[
    (2097152, 12118), (4194304, 12576), (8388608, 14500),
    (16777216, 18219), (33554432, 22392), (67108864, 32635),
    (134217728, 83507), (268435456, 137306), (534773760, 199978),
];
const MEM_SET_ACCESS: Points = &[
    (2097152, 25591), (4194304, 23174), (8388608, 24618),
    (16777216, 23841), (33554432, 24570), (67108864, 26532),
    (134217728, 30502), (268435456, 33299), (534773760, 27296),
];
const MEM_UNMAP: Points = &[
    (2097152, 18095), (4194304, 17197), (8388608, 17728),
    (16777216, 20435), (33554432, 17411), (67108864, 18010),
    (134217728, 20920), (268435456, 21910), (534773760, 16077),
];
const CALLS: &[(CallKind, u64)] = &[
    (CallKind::MemAllocAsync, 428),
    (CallKind::MemFreeAsync, 599),
    (CallKind::MemPool, 152),
    (CallKind::MemPoolTrim, 157),
    (CallKind::MemAddressReserve, 2612),
    (CallKind::MemAddressFree, 2524),
    (CallKind::MemMap, 2436),
    (CallKind::MemPrefetch, 16842),
    (CallKind::MemAdvise, 1866),
    (CallKind::MemGetInfo, 5237),
    (CallKind::PointerQuery, 851),
    (CallKind::MemHostRegister, 69810),
    (CallKind::StreamCreate, 13654),
    (CallKind::StreamDestroy, 3251),
    (CallKind::StreamGetId, 180),
    (CallKind::StreamSynchronize, 398),
    (CallKind::StreamQuery, 357),
    (CallKind::StreamWaitEvent, 291),
    (CallKind::StreamIsCapturing, 284),
    (CallKind::EventCreate, 1016),
    (CallKind::EventDestroy, 227),
    (CallKind::EventRecord, 749),
    (CallKind::EventQuery, 521),
    (CallKind::EventSynchronize, 342),
    (CallKind::Synchronize, 955),
    (CallKind::CaptureMode, 43),
    (CallKind::Copy, 6626),
    (CallKind::Fill, 5320),
    (CallKind::Other, 47),
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
            event_record: EventRecordCosts { legacy_stream_extra_ns: 247 },
            mem_alloc: Some(PlainCosts { in_page_ns: 2142, by_bytes_ns: MEM_ALLOC.into() }),
            mem_free: Some(PlainCosts { in_page_ns: 2011, by_bytes_ns: MEM_FREE.into() }),
            mem_alloc_managed: Some(SizeCosts { by_bytes_ns: MEM_ALLOC_MANAGED.into() }),
            mem_free_managed: Some(SizeCosts { by_bytes_ns: MEM_FREE_MANAGED.into() }),
            mem_host_alloc: Some(SizeCosts { by_bytes_ns: MEM_HOST_ALLOC.into() }),
            mem_free_host: Some(SizeCosts { by_bytes_ns: MEM_FREE_HOST.into() }),
            mem_create: Some(SizeCosts { by_bytes_ns: MEM_CREATE.into() }),
            mem_release: Some(SizeCosts { by_bytes_ns: MEM_RELEASE.into() }),
            mem_set_access: Some(SetAccessCosts {
                call_ns: 5640,
                mapping_by_bytes_ns: MEM_SET_ACCESS.into(),
                second_mapping_extra_ns: 0,
                new_512_mib_extra_ns: 21624,
            }),
            mem_unmap: Some(UnmapCosts { call_ns: 2365, mapping_by_bytes_ns: MEM_UNMAP.into() }),
        },
    )
}
