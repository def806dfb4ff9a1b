//! Tests that graphs stay valid if the library makes driver calls during their capture. The test runs each
//! slow path during captures of each mode, on blocking and non-blocking streams, on another thread and on its
//! own.

mod cases;
mod stage;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use cases::{CASES, Case};
use millpond::driver::cuda::CudaDriver;
use millpond::driver::{CaptureMode, StreamFlags};
use millpond::{Driver, StreamRef};
use stage::{Rig, Stage};

/// The capturing thread, and the stream of the library's call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Another thread captures; the request names its own stream.
    OtherThread,
    /// Another thread captures; the request names the legacy default stream.
    OtherThreadLegacy,
    /// The requesting thread captures on another stream.
    OwnThread,
    /// The request names the capturing stream.
    OwnStream,
}

const PLACES: [Place; 4] = [Place::OtherThread, Place::OtherThreadLegacy, Place::OwnThread, Place::OwnStream];
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

#[derive(Clone, Copy, Debug)]
struct Capture {
    mode: CaptureMode,
    is_blocking: bool,
    place: Place,
}

fn captures() -> impl Iterator<Item = Capture> {
    MODES.into_iter().flat_map(|mode| {
        [false, true].into_iter().flat_map(move |is_blocking| {
            PLACES.into_iter().map(move |place| Capture { mode, is_blocking, place })
        })
    })
}

/// Plays one case during one capture. If something ended the capture, returns it as an error.
fn play(case: &Case, rig: &Rig, capture: Capture, has_guard: bool) -> Result<(), String> {
    let Capture { mode, is_blocking, place } = capture;
    let flags = if is_blocking { StreamFlags::BLOCKING } else { StreamFlags::NON_BLOCKING };
    let kind = Stage::new(rig.clone(), None);
    let capturing = kind.counter.stream_create(flags).expect("a stream");
    let stream = match place {
        Place::OtherThread | Place::OwnThread => None,
        Place::OtherThreadLegacy => Some(StreamRef::LEGACY),
        Place::OwnStream => Some(capturing),
    };
    let stage = Stage::new(rig.clone(), stream);
    let (act, call) = (case.prepare)(&stage);
    if !has_guard {
        stage.hooks.keep_capture_modes();
    }
    let before = call.map_or(0, |call| stage.calls(call));
    rig.begin(capturing, mode).expect("nothing is captured yet");
    let outcome = match place {
        Place::OwnThread | Place::OwnStream => catch_unwind(AssertUnwindSafe(act)),
        _ => std::thread::scope(|scope| scope.spawn(act).join()),
    };
    let end = rig.end(capturing).map_err(|error| format!("{}, {capture:?}: {error}", case.name));
    // A request for a stream that cannot wait for others may be refused, with advice.
    let is_captured = place == Place::OwnStream || (place == Place::OtherThreadLegacy && is_blocking);
    if has_guard {
        match &outcome.unwrap_or_else(|panic| resume_unwind(panic)) {
            Ok(()) => {
                let made = call.is_none_or(|call| is_captured || stage.calls(call) > before);
                assert!(made, "{}, {capture:?}: {call:?} was not made", case.name);
            }
            Err(error) => {
                assert!(is_captured && error.is_out_of_memory(), "{}, {capture:?}: {error}", case.name);
                let is_advised = error.to_string().contains(case.advice);
                assert!(is_advised, "{}, {capture:?}: {error}", case.name);
            }
        }
        stage.assert_order_was_kept();
    }
    drop(stage);
    kind.destroy(capturing);
    end
}

#[test]
fn issue_9_every_slow_path_leaves_captures_alone() {
    let mut ended = Vec::new();
    for case in CASES {
        ended.extend(captures().filter_map(|capture| play(case, &Rig::sim(), capture, true).err()));
    }
    assert_eq!(ended, [""; 0]);
}

/// The canary: if the thread's capture mode is not exchanged, the same calls end another thread's global
/// capture, and also their own thread's.
#[test]
fn without_the_guard_slow_paths_end_captures() {
    let mut different = Vec::new();
    for case in CASES {
        let ends = |mode, place| {
            play(case, &Rig::sim(), Capture { mode, is_blocking: false, place }, false).is_err()
        };
        let ended = [
            ends(CaptureMode::Global, Place::OtherThread),
            ends(CaptureMode::ThreadLocal, Place::OwnThread),
            ends(CaptureMode::ThreadLocal, Place::OtherThread),
        ];
        if ended != [case.is_unsafe, case.is_unsafe, false] {
            different.push((case.name, ended));
        }
    }
    assert_eq!(different, []);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn every_slow_path_leaves_a_gpus_captures_alone() {
    let driver = CudaDriver::open(0).expect("a CUDA GPU");
    assert!(driver.frees_wait(), "a free does not wait here: blocks of streams that are gone come late");
    let rig = Rig::Cuda(driver);
    let mut ended = Vec::new();
    for case in CASES {
        ended.extend(captures().filter_map(|capture| play(case, &rig, capture, true).err()));
    }
    assert_eq!(ended, [""; 0]);
}
