//! Random calls, and the calls of logs.

use std::fmt;
use std::path::Path;

use millpond_core::format_bytes;
use millpond_engine::log::LogReader;
use millpond_engine::program::{Limits, Op, OpKind, Program};
use millpond_snapshot::import::{self, Options};
use millpond_testkit::Rng;

/// The streams without the legacy stream. The streams of a log are numbered modulo this.
pub(super) const STREAMS: usize = 16;

/// A call of an allocator.
#[derive(Clone, Copy)]
pub(super) enum Call {
    Allocate {
        slot: u32,
        bytes: u64,
        stream: usize,
    },
    /// Frees a block on a stream, or on the stream of its allocation.
    Free {
        slot: u32,
        stream: Option<usize>,
    },
    Trim,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate { slot, bytes, stream } => {
                write!(f, "block {slot} = {bytes} bytes ({}) on stream {stream}", format_bytes(*bytes))
            }
            Self::Free { slot, stream: None } => write!(f, "free block {slot}"),
            Self::Free { slot, stream: Some(stream) } => write!(f, "free block {slot} on stream {stream}"),
            Self::Trim => write!(f, "empty the cache"),
        }
    }
}

/// The calls of a log.
pub(super) struct OfLog {
    pub(super) calls: Vec<Call>,
    pub(super) peak_live_bytes: u64,
}

/// Reads a log, or imports a file of another format.
pub(super) fn of_log(path: &Path) -> Result<OfLog, String> {
    let failed = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
    let is_log = path.to_string_lossy().contains(".csv");
    let program = if is_log {
        let reader = LogReader::open(path).map_err(|error| failed(&error))?;
        Program::read(reader, Limits::default())
    } else {
        let recording = import::open(path, &Options::default()).map_err(|error| failed(&error))?;
        recording.program(Limits::default())
    };
    let program = program.map_err(|error| failed(&error))?;
    let mut calls = Vec::new();
    for block in 0..program.block_count() {
        let ops = program.block(block).map_err(|error| failed(&error))?;
        calls.extend(ops.iter().filter_map(|op| of_op(&program, op)));
    }
    Ok(OfLog { calls, peak_live_bytes: program.summary().peak_live_bytes })
}

fn of_op(program: &Program, op: &Op) -> Option<Call> {
    let stream = program.lanes()[op.lane as usize].stream as usize % STREAMS + 1;
    match op.kind {
        OpKind::Allocate => Some(Call::Allocate { slot: op.slot, bytes: op.bytes, stream }),
        OpKind::Free => Some(Call::Free { slot: op.slot, stream: Some(stream) }),
        _ => None,
    }
}

/// Makes random calls for a device of this size. Programs differ in their sizes, and in how full they keep
/// the device.
pub(super) fn random(rng: &mut Rng, calls: u64, device_bytes: u64) -> Vec<Call> {
    let streams = rng.below(4) + 1;
    let classes: Vec<u64> = (0..rng.below(3) + 1).map(|_| rng.below(7)).collect();
    let target = device_bytes / 10 * (rng.below(12) + 1);
    let (strangers, trims) = (rng.below(3) * 10, rng.below(3));
    let mut live: Vec<(u32, u64)> = Vec::new();
    let mut bytes_live = 0;
    let mut made = Vec::new();
    for slot in 0..calls as u32 {
        if rng.below(100) < trims {
            made.push(Call::Trim);
        }
        let stream = rng.below(streams) as usize;
        let is_free = bytes_live > target || rng.below(100) < 45;
        if is_free && !live.is_empty() {
            let (slot, bytes) = live.swap_remove(rng.below(live.len() as u64) as usize);
            bytes_live -= bytes;
            let stream = (rng.below(100) < strangers).then_some(stream);
            made.push(Call::Free { slot, stream });
        } else {
            let class = classes[rng.below(classes.len() as u64) as usize];
            let bytes = size(rng, class, device_bytes);
            live.push((slot, bytes));
            bytes_live += bytes;
            made.push(Call::Allocate { slot, bytes, stream });
        }
    }
    made
}

/// A size of a class. Class 6 has the sizes where the allocator's rules change.
fn size(rng: &mut Rng, class: u64, device_bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    match class {
        0 => rng.below(4096) + 1,
        1 => rng.below(MIB) + 1,
        2 => MIB + rng.below(9 * MIB),
        3 => 10 * MIB + rng.below(20 * MIB),
        4 => rng.below(device_bytes / 8) + 1,
        5 => rng.below(8) * (MIB / 2) + 512,
        _ => {
            let edges = [512, 4096, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 21 * MIB, 32 * MIB, 64 * MIB];
            let edge = edges[rng.below(edges.len() as u64) as usize];
            edge + [0, 1, 512][rng.below(3) as usize] - [0, 1, 511][rng.below(3) as usize]
        }
    }
}
