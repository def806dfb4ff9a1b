//! Compares the calls that pools make with the same calls in rows.
//!
//! Even in cold rows, the driver's tables are in the caches, and addresses were used before. On an H200, a
//! `cuMemMap` took 1.4 µs in rows, and 2 to 7 µs in the first passes of six logs. So the rows give the shape
//! of a cost: how it depends on the size, or on the number of mappings. An artificial log gives the scale of
//! the cost.
//!
//! The host of that device changed between two states every few seconds. In the slow state, all driver calls
//! took 1.4 times as long. The profile describes the fast state, so the fastest round counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use millpond_core::DriverHandle;
use millpond_core::stack::LayerTable;
use millpond_driver::CallKind;
use millpond_engine::Result;
use millpond_engine::log::LogReader;
use millpond_engine::program::{Limits, Program};

use super::Calibration;
use super::check::{Check, Pass, STACKS};
use crate::bench::plan::Random;

/// How many times each pool replays the log on the device. For each kind of call, the fastest time counts.
const ROUNDS: usize = 15;

/// If either device makes fewer calls of a kind than this number, the costs of the kind stay unchanged.
const LEAST_CALLS: u64 = 8;

/// Pairs of calls: a call that frees memory, and the call that allocates this memory. A free is rare in a
/// first pass, so it gets the factor of the allocating call.
const TWINS: [(CallKind, CallKind); 3] = [
    (CallKind::MemFree, CallKind::MemAlloc),
    (CallKind::MemRelease, CallKind::MemCreate),
    (CallKind::MemUnmap, CallKind::MemSetAccess),
];

/// The number of rows in the artificial log.
const ROWS: usize = 12_000;

/// The most live bytes of the artificial log, unless half of the usable bytes is less.
const MOST_LIVE_BYTES: u64 = 2 << 30;

/// The number of calls and their nanoseconds, by kind.
type Totals = BTreeMap<CallKind, (u64, u64)>;

/// Scales the costs of each kind of call. The factor is the time of these calls in pools on the device,
/// divided by their time on a device that is simulated with the current costs.
pub(super) fn scale(calibration: &mut Calibration, device: &DriverHandle, budget: u64) -> Result<()> {
    let program = made_up_log(MOST_LIVE_BYTES.min(budget / 2))?;
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    let profile = calibration.profile.clone();
    let check = Check { device, profile: &profile, stacks: &[], runs: 1, table: &table };
    let both = |pass: &dyn Fn(&Check<'_>, &str) -> Result<Pass>| {
        let mut totals = Totals::new();
        for stack in STACKS {
            for (kind, calls, ns) in pass(&check, stack)?.by_kind {
                let total = totals.entry(kind).or_default();
                *total = (total.0 + calls, total.1 + ns);
            }
        }
        Ok(totals)
    };
    let simulated = both(&|check, stack| check.simulated(&program, &stack.parse()?))?;
    let rounds = (0..ROUNDS).map(|_| both(&|check, stack| check.on_device(&program, &stack.parse()?)));
    let rounds = rounds.collect::<Result<Vec<_>>>()?;
    let mut costs = profile.costs().clone();
    for (kind, factor) in factors(&simulated, &rounds) {
        costs.scale(kind, factor);
        calibration.note_factor(kind, factor);
    }
    calibration.profile = profile.with_costs(costs);
    Ok(())
}

/// Returns for each kind the time of a call in its fastest round, divided by its time on the simulated
/// device.
fn factors(simulated: &Totals, rounds: &[Totals]) -> BTreeMap<CallKind, f64> {
    // Pools may make more calls on one device than on the other. But this does not make a single call cost
    // more.
    let each = |(calls, ns): &(u64, u64)| (*calls >= LEAST_CALLS).then(|| *ns as f64 / *calls as f64);
    let factor = |(kind, simulated): (&CallKind, &(u64, u64))| {
        let simulated = each(simulated).filter(|ns| *ns > 0.0)?;
        let measured = rounds.iter().filter_map(|round| round.get(kind)).filter_map(each);
        Some((*kind, measured.min_by(f64::total_cmp)? / simulated))
    };
    let mut factors: BTreeMap<CallKind, f64> = simulated.iter().filter_map(factor).collect();
    for (gives, takes) in TWINS {
        if let Some(factor) = factors.get(&takes).copied() {
            factors.entry(gives).or_insert(factor);
        }
    }
    factors
}

/// Returns a log of four streams, with blocks from 256 B to below 160 MiB. As in training steps, the live
/// bytes change between a third of `most_live` and all of it. Which block is freed is random.
fn made_up_log(most_live: u64) -> Result<Program> {
    let mut random = Random::new(9, 0);
    let mut rows = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    let mut live: Vec<(u64, u64, u64)> = Vec::new();
    let (mut live_bytes, mut most, mut address) = (0, most_live, 0);
    for _ in 0..ROWS {
        if live_bytes < most {
            let (least, doublings) = match random.below(20) {
                0..12 => (8, 12), // 256 B to 1 MiB
                12..19 => (20, 5),
                _ => (25, 3),
            };
            let bytes = (1 << (least + random.below(doublings))) + 256 * random.below(1 << (least - 8));
            let stream = 16 * (1 + random.below(4));
            address += bytes.next_multiple_of(256);
            live_bytes += bytes;
            live.push((address, bytes, stream));
            _ = writeln!(rows, "1,00:00:00.000000,allocate,{address:#x},{bytes},{stream:#x}");
        } else {
            most = most_live / 3;
        }
        if live_bytes >= most && !live.is_empty() {
            let (address, bytes, stream) = live.swap_remove(random.below(live.len() as u64) as usize);
            live_bytes -= bytes;
            _ = writeln!(rows, "1,00:00:00.000000,free,{address:#x},{bytes},{stream:#x}");
        } else {
            most = most_live;
        }
    }
    let reader = LogReader::from_reader("made up", rows.as_bytes())?;
    Program::read(reader, Limits::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_swings_below_its_limit() {
        let summary = made_up_log(1 << 30).unwrap().summary().clone();
        assert_eq!((summary.skipped_rows, summary.streams), (0, 4));
        let most = u128::from(summary.peak_live_bytes);
        assert!((1 << 29..(1 << 30) + (256 << 20)).contains(&most), "{most}");
    }

    #[test]
    fn a_kind_is_scaled_by_its_fastest_round() {
        let totals = |calls, ns| {
            let few = (LEAST_CALLS - 1, 10);
            Totals::from([(CallKind::MemAlloc, (calls, ns)), (CallKind::EventRecord, few)])
        };
        let rounds = [300, 900, 400].map(|ns| totals(10, ns));
        let tripled = BTreeMap::from([(CallKind::MemAlloc, 3.0), (CallKind::MemFree, 3.0)]);
        assert_eq!(factors(&totals(10, 100), &rounds), tripled);
        // Twice as many calls on the device, each with the same cost.
        assert_eq!(factors(&totals(20, 200), &rounds), tripled);
        assert_eq!(factors(&totals(LEAST_CALLS - 1, 100), &rounds), BTreeMap::new());
    }
}
