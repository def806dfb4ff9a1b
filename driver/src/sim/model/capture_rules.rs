//! The effect of each driver call during graph captures, as data. The rules were measured call by call on an
//! H200 (driver 580.159.04, CUDA 13.0). docs/lab/gpu.md has the table, and `driver/tests/it/captures.rs`
//! compares it with these rules. Comments mark the rules that were not measured.

use millpond_core::DriverError;
use millpond_core::driver::CaptureMode;

/// The effect of a call during graph captures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) scope: Scope,
    /// The outcome if the call's stream captures.
    pub(crate) on_capturing: Outcome,
    /// The outcome if the call's stream is the legacy default stream and a blocking stream captures.
    pub(crate) on_legacy: Outcome,
}

/// The captures that a call affects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// None.
    Safe,
    /// The captures that forbid the call to the thread; see [`forbids`].
    Unsafe,
    /// All captures, in any mode.
    Context,
}

/// The effect of a call on a stream, if a capture concerns that stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// No effect: the scope decides.
    Nothing,
    /// The call becomes a part of the graph, in any scope.
    Captured,
    /// The call is refused with this code.
    Refused(i32),
    /// The call is refused with this code, and the capture is invalid from then on.
    Ends(i32),
}

const SAFE: Rule = Rule { scope: Scope::Safe, on_capturing: Outcome::Nothing, on_legacy: Outcome::Nothing };
const UNSAFE: Rule = Rule { scope: Scope::Unsafe, ..SAFE };
const CONTEXT: Rule = Rule { scope: Scope::Context, ..SAFE };
const IMPLICIT: Outcome = Outcome::Ends(DriverError::STREAM_CAPTURE_IMPLICIT);
/// Work on a stream, and event records.
const SUBMITS: Rule = Rule { on_capturing: Outcome::Captured, on_legacy: IMPLICIT, ..SAFE };
/// Queries of a stream.
const ASKS: Rule = Rule {
    scope: Scope::Unsafe,
    on_capturing: Outcome::Ends(DriverError::STREAM_CAPTURE_UNSUPPORTED),
    on_legacy: IMPLICIT,
};
/// Stream-ordered memory.
const ORDERED_MEMORY: Rule = Rule { scope: Scope::Unsafe, ..SUBMITS };
/// Queries of whether a stream captures.
const LOOKS: Rule = Rule { on_legacy: Outcome::Refused(DriverError::STREAM_CAPTURE_IMPLICIT), ..SAFE };

/// The rule of each call, by name.
pub(crate) const RULES: &[(&str, Rule)] = &[
    ("cuDriverGetVersion", SAFE),
    ("cuDeviceGetAttribute", SAFE),
    ("cuThreadExchangeStreamCaptureMode", SAFE),
    ("cuMemGetInfo", SAFE),
    ("malloc", SAFE),      // not a CUDA call
    ("host memory", SAFE), // not a CUDA call
    ("cuCtxSynchronize", CONTEXT),
    ("cuMemAlloc", UNSAFE),
    ("cuMemAllocManaged", UNSAFE),
    ("cuMemFree", UNSAFE),
    ("cuMemGetAddressRange", SAFE),
    ("cuPointerGetAttribute", SAFE),
    ("cuMemPrefetchAsync", SUBMITS), // not measured: as other work
    ("cuMemAdvise", UNSAFE),         // not measured
    ("cuMemHostAlloc", UNSAFE),
    ("cuMemFreeHost", UNSAFE),
    ("cuMemHostRegister", UNSAFE),       // not measured
    ("cuMemHostUnregister", UNSAFE),     // not measured
    ("cuMemHostGetDevicePointer", SAFE), // not measured: as other queries of pointers
    ("cuMemAllocAsync", ORDERED_MEMORY),
    ("cuMemAllocFromPoolAsync", ORDERED_MEMORY),
    ("cuMemFreeAsync", ORDERED_MEMORY),
    ("cuMemPoolCreate", UNSAFE),
    ("cuMemPoolDestroy", UNSAFE),
    ("cuDeviceGetDefaultMemPool", SAFE), // not measured: as other queries of devices
    ("cuDeviceGetMemPool", SAFE),        // the same
    ("cuDeviceSetMemPool", UNSAFE),      // not measured, like all other pool calls below
    ("cuMemGetDefaultMemPool", SAFE),
    ("cuMemGetMemPool", SAFE),
    ("cuMemSetMemPool", UNSAFE),
    ("cuMemPoolSetAccess", UNSAFE),
    ("cuMemPoolGetAccess", UNSAFE),
    ("cuMemPoolExportToShareableHandle", UNSAFE),
    ("cuMemPoolImportFromShareableHandle", UNSAFE),
    ("cuMemPoolExportPointer", UNSAFE),
    ("cuMemPoolImportPointer", UNSAFE),
    ("cuMemPoolTrimTo", UNSAFE),
    ("cuMemPoolGetAttribute", UNSAFE),
    ("cuMemPoolSetAttribute", UNSAFE),        // not measured
    ("cuDeviceGetGraphMemAttribute", UNSAFE), // not measured: as the calls on pools
    ("cuDeviceSetGraphMemAttribute", UNSAFE), // the same
    ("cuDeviceGraphMemTrim", UNSAFE),         // the same
    ("cuMemGetAllocationGranularity", SAFE),
    ("cuMemAddressReserve", SAFE),
    ("cuMemAddressFree", SAFE),
    ("cuMemCreate", SAFE),
    ("cuMemRelease", SAFE),
    ("cuMemMap", SAFE),
    ("cuMemUnmap", SAFE),
    ("cuMemSetAccess", SAFE),
    ("cuMemExportToShareableHandle", SAFE), // not measured: as other calls on physical memory
    ("cuMemImportFromShareableHandle", SAFE), // the same
    ("cuStreamCreateWithPriority", SAFE),
    ("cuStreamDestroy", SAFE),
    ("cuStreamGetId", SAFE),
    ("cuStreamSynchronize", ASKS),
    ("cuStreamQuery", ASKS),
    ("cuStreamWaitEvent", SUBMITS),
    ("cuStreamIsCapturing", LOOKS),
    ("cuStreamGetCaptureInfo", LOOKS),
    ("cuEventCreate", SAFE),
    ("cuEventDestroy", SAFE),
    ("cuEventRecord", SUBMITS),
    ("cuEventQuery", UNSAFE),
    ("cuEventSynchronize", UNSAFE),
    ("cuMemcpyHtoDAsync", SUBMITS),
    ("cuMemcpyDtoHAsync", SUBMITS),
    ("cuMemcpyDtoDAsync", SUBMITS),
    ("cuMemcpyPeerAsync", SUBMITS), // not measured: as other copies
    ("cuMemsetD8Async", SUBMITS),
    ("cuIpcGetMemHandle", SAFE),
    ("cuIpcOpenMemHandle", UNSAFE),  // not measured
    ("cuIpcCloseMemHandle", UNSAFE), // not measured
];

/// The code of a call that a capture forbids, and of a call that affects the whole context.
pub(crate) const FORBIDDEN: i32 = DriverError::STREAM_CAPTURE_UNSUPPORTED;
/// The code for querying an event that was recorded in a capture; the query ends the capture.
pub(crate) const ABOUT_CAPTURED_EVENT: i32 = DriverError::CAPTURED_EVENT;
/// The code for a capturing stream's wait on an event from outside; the wait ends the capture.
pub(crate) const WAIT_FROM_OUTSIDE: i32 = DriverError::STREAM_CAPTURE_ISOLATION;

/// The rule of the call with this name. A call without a rule counts as unsafe; a test checks that every call
/// has one.
pub(crate) fn rule(name: &str) -> Rule {
    RULES.iter().find(|(known, _)| *known == name).map_or(UNSAFE, |(_, rule)| *rule)
}

/// Whether a capture in the mode `capture` forbids unsafe calls to a thread in the mode `thread`. `is_own`:
/// the thread began the capture.
pub(crate) const fn forbids(capture: CaptureMode, thread: CaptureMode, is_own: bool) -> bool {
    use CaptureMode::{Global, Relaxed, ThreadLocal};
    match (capture, thread) {
        (Relaxed, _) | (_, Relaxed) => false,
        (Global | ThreadLocal, Global | ThreadLocal) if is_own => true,
        (Global, Global) => true,
        (Global | ThreadLocal, Global | ThreadLocal) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name under which the simulated device answers has exactly one rule.
    #[test]
    fn every_call_has_a_rule() {
        let source = include_str!("../driver_impl.rs");
        let names = source.split('"').skip(1).step_by(2).filter(|text| text.starts_with("cu"));
        let mut named = 0;
        for name in names {
            assert_eq!(RULES.iter().filter(|(known, _)| *known == name).count(), 1, "{name}");
            named += 1;
        }
        assert!(named >= RULES.len(), "{named} names, {} rules", RULES.len());
    }
}
