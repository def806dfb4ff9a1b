//! The lines of a results file, combined.

use serde::Deserialize;
use serde_json::Value;

/// One workload on one allocator, measured by any program. Times are in nanoseconds.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) workload: String,
    pub(crate) stack: String,
    pub(crate) threads: u64,
    pub(crate) streams: u64,
    pub(crate) live: u64,
    pub(crate) freed_percent: u64,
    pub(crate) bytes: u64,
    pub(crate) ns_per_step: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    pub(crate) steps_per_second: Option<f64>,
    pub(crate) ns_per_fill: Option<f64>,
    pub(crate) reserved_bytes: Option<f64>,
    /// The reason why there are no figures.
    pub(crate) reason: Option<String>,
}

impl Case {
    /// Returns bytes taken from the driver over live bytes, each at its peak; one block is too little for
    /// that.
    pub(crate) fn taken_over_live(&self) -> Option<f64> {
        self.reserved_bytes.filter(|_| self.live > 1).map(|taken| taken / self.bytes as f64)
    }

    pub(crate) fn million_steps(&self) -> Option<f64> {
        self.steps_per_second.map(|steps| steps / 1e6)
    }
}

/// One log on one allocator.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    pub(crate) log: String,
    pub(crate) stack: String,
    pub(crate) first_ns: Option<f64>,
    pub(crate) best_ns: Option<f64>,
    /// After one pass.
    pub(crate) taken_over_live: Option<f64>,
    /// After the last pass: the maximum over all passes.
    pub(crate) taken_over_live_last: Option<f64>,
    /// Driver calls in the best pass.
    pub(crate) calls: Option<u64>,
}

/// One log with work in flight on one allocator: the first pass and the last.
#[derive(Clone, Debug)]
pub(crate) struct Busy {
    /// The log, the kernels, the host, and the capacity if not all of the device was available.
    pub(crate) row: String,
    pub(crate) stack: String,
    pub(crate) first_ns: Option<f64>,
    pub(crate) last_ns: Option<f64>,
    pub(crate) taken_bytes: Option<f64>,
    pub(crate) stream_waits: Option<f64>,
    pub(crate) host_waits: Option<f64>,
    /// Failed allocations in all passes, if they are counted.
    pub(crate) failures: Option<f64>,
}

/// The column for the least memory that needs no wait between streams.
const LEAST: &str = "least without waits";

/// All measurements, in the order of the lines.
#[derive(Default, Debug)]
pub(crate) struct Data {
    pub(crate) about: Vec<String>,
    pub(crate) cases: Vec<Case>,
    pub(crate) replays: Vec<Replay>,
    pub(crate) busy: Vec<Busy>,
}

impl Data {
    /// Adds the lines of a file. A truncated line is left out, because its program was stopped.
    pub(crate) fn read(&mut self, text: &str) -> Result<(), serde_json::Error> {
        for line in text.lines() {
            let Ok(value) = serde_json::from_str::<Value>(line) else {
                self.about.push("a line was cut off and is left out".to_owned());
                continue;
            };
            if value["machine"].is_string() {
                self.about(&value);
            } else if value["results"].is_array() {
                for list in ["results", "not_run"] {
                    self.cases.extend(serde_json::from_value::<Vec<Case>>(value[list].clone())?);
                }
            } else if value["cases"].is_array() {
                self.busy_report(&value);
            } else if value["workload"] == "busy" {
                let row = busy_row(&value, &value, &value, value["log"].as_str().unwrap_or_default());
                let is_limited = value["capacity_bytes"].is_number();
                self.busy.push(busy(row, value["stack"].as_str().unwrap_or_default(), &value, is_limited));
            } else if value["stacks"].is_array() {
                self.comparison(&value);
            } else if value["workload"] == "replay" {
                let text = |key: &str| value[key].as_str().unwrap_or_default();
                self.replays.push(replay(text("log"), text("stack"), &value));
            } else {
                self.cases.push(serde_json::from_value(value)?);
            }
        }
        Ok(())
    }

    fn about(&mut self, value: &Value) {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let (date, machine, versions) = (text("date"), text("machine"), text("versions"));
        self.about.push(format!("{date}: `{}`, {machine}; {versions}", text("command")));
    }

    /// Reads millpond's report about a log with work in flight.
    fn busy_report(&mut self, value: &Value) {
        let (log, is_limited) = (log_name(value), value["capacity_bytes"].is_number());
        for case in value["cases"].as_array().into_iter().flatten() {
            let row = busy_row(value, case, &case["kernels"], log);
            for stack in case["stacks"].as_array().into_iter().flatten() {
                let spec = stack["spec"].as_str().unwrap_or_default();
                self.busy.push(busy(row.clone(), spec, stack, is_limited));
            }
            let least = case["least_bytes_without_waits"].as_f64();
            self.busy.push(Busy { taken_bytes: least, ..busy(row, LEAST, &Value::Null, false) });
        }
    }

    /// Reads millpond's report about a log. Of several runs, the last counts.
    fn comparison(&mut self, value: &Value) {
        let log = log_name(value);
        for stack in value["stacks"].as_array().into_iter().flatten() {
            let spec = stack["spec"].as_str().unwrap_or_default();
            self.replays.retain(|replay| (replay.log.as_str(), replay.stack.as_str()) != (log, spec));
            self.replays.push(replay(log, spec, stack));
        }
    }
}

/// Returns the log's file name, without folder and ending.
fn log_name(value: &Value) -> &str {
    let file = value["log"]["file"].as_str().unwrap_or_default();
    let name = file.rsplit('/').next().unwrap_or_default();
    name.split('.').next().unwrap_or_default()
}

fn busy_row(run: &Value, case: &Value, kernels: &Value, log: &str) -> String {
    let us = |key: &str| kernels[key].as_u64().unwrap_or_default() / 1000;
    let host = case["host"].as_str().unwrap_or_default();
    let capacity = run["capacity_bytes"].as_u64().map(|bytes| format!(", of {} MiB", bytes >> 20));
    let capacity = capacity.unwrap_or_default();
    format!("{log}, {}..{} µs, {host}{capacity}", us("shortest_ns"), us("longest_ns"))
}

/// Returns the passes of one allocator; empty if it failed.
fn busy(row: String, stack: &str, value: &Value, is_limited: bool) -> Busy {
    let passes = value["passes"].as_array().map_or(&[][..], Vec::as_slice);
    let last = |key: &str| passes.last().and_then(|pass| pass[key].as_f64());
    Busy {
        row,
        stack: stack.to_owned(),
        first_ns: passes.first().and_then(|pass| pass["end_ns"].as_f64()),
        last_ns: last("end_ns"),
        taken_bytes: last("peak_taken_bytes").filter(|_| stack != "none"),
        stream_waits: last("stream_waits"),
        host_waits: last("host_waits"),
        failures: (is_limited && !passes.is_empty() && stack != "none")
            .then(|| passes.iter().filter_map(|pass| pass["failures"].as_f64()).sum()),
    }
}

/// Reads the report of millpond or a peer about a log.
fn replay(log: &str, stack: &str, value: &Value) -> Replay {
    let figure = |key: &str| value[key].as_f64();
    let passes = value["passes"].as_array().map_or(&[][..], Vec::as_slice);
    let taken = passes.iter().filter_map(|pass| pass["peak_taken_bytes"].as_f64());
    let live = figure("peak_live_bytes").filter(|live| *live > 0.0);
    Replay {
        log: log.to_owned(),
        stack: stack.to_owned(),
        first_ns: figure("ns_per_op_first"),
        best_ns: figure("ns_per_op_best"),
        taken_over_live: figure("reserved_over_live_first"),
        taken_over_live_last: taken.reduce(f64::max).zip(live).map(|(taken, live)| taken / live),
        calls: value["driver"]["calls_best_pass"].as_u64(),
    }
}

/// Returns the distinct keys of the items, in the order of their first occurrence.
pub(crate) fn distinct<T, K: PartialEq>(items: &[T], key: impl Fn(&T) -> K) -> Vec<K> {
    let mut keys = Vec::new();
    for key in items.iter().map(key) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}
