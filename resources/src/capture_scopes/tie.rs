//! Ties scopes to their model: a real scope repeats runs of the model, and must believe the same.
//!
//! `scripts/proof/traces.py` makes the runs in `traces.txt`, from the formulas that are proved.

use std::collections::HashMap;
use std::sync::Arc;

use millpond_core::driver::{CaptureMode, Driver, StreamFlags};
use millpond_core::{DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};

use super::memory::Side;
use super::scope::{CaptureScopes, Scope, ScopedStream};
use super::{CaptureScope, CaptureScopesMemoryResource};
use crate::CudaMemoryResource;

/// The number of streams outside of captures.
const HOMES: usize = 2;
/// The blocks. Each fills a span, and no request for one fits in a smaller one.
const BYTES: [u64; 3] = [2 << 20, 4 << 20, 8 << 20];

struct Rig {
    device: Arc<SimDevice>,
    layer: CaptureScopesMemoryResource<CudaMemoryResource>,
    owner: CaptureScope,
    scope: Arc<Scope>,
    streams: Vec<StreamRef>,
    blocks: Vec<DevicePtr>,
    open: HashMap<usize, ScopedStream>,
    /// The number of the model's side, for each capture.
    captures: HashMap<u64, usize>,
}

impl Rig {
    fn new() -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let layer = CaptureScopesMemoryResource::new(CudaMemoryResource::new(device.clone()));
        let owner = layer.new_scope();
        let scope = Arc::clone(&layer.0.scopes.lock()[&owner.id()]);
        let new_stream = |_| device.stream_create(StreamFlags::NON_BLOCKING).expect("the device is there");
        let streams: Vec<_> = (0..HOMES).map(new_stream).collect();
        let (open, captures) = (HashMap::new(), HashMap::new());
        let mut rig = Self { device, layer, owner, scope, streams, blocks: Vec::new(), open, captures };
        rig.blocks = (0..BYTES.len()).map(|block| rig.take(block, 0)).collect();
        (0..BYTES.len()).for_each(|block| rig.free(block, 0));
        rig.layer.0.wait_and_collect(&rig.scope);
        rig
    }

    fn take(&self, block: usize, side: usize) -> DevicePtr {
        let taken = self.layer.0.allocate_in(&self.scope, Layout::new(BYTES[block]), self.stream(side));
        taken.expect("the scope has it").expect("the scope goes on")
    }

    fn free(&self, block: usize, side: usize) {
        let (ptr, layout) = (self.blocks[block], Layout::new(BYTES[block]));
        self.layer.0.take_back(&self.scope, ptr, layout, self.stream(side), &"the tie");
    }

    fn stream(&self, side: usize) -> StreamRef {
        self.streams[side % HOMES]
    }

    fn call(&mut self, call: &str) {
        let words: Vec<&str> = call.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        match words[0] {
            "take" => assert_eq!(self.take(number(1), number(2)), self.blocks[number(1)], "another block"),
            "free" => self.free(number(1), number(2)),
            // Work changes no belief.
            "use" | "order" => {}
            "open" => {
                let opened = self.owner.begin(self.stream(number(1))).expect("it is not open");
                self.open.insert(number(1), opened);
            }
            "close" => drop(self.open.remove(&number(1)).expect("it is open")),
            "capture" => {
                let stream = self.stream(number(1));
                self.device.begin_capture(stream, CaptureMode::Relaxed).expect("no capture");
                let capture = self.device.stream_capture_id(stream).expect("numbers").expect("a capture");
                self.captures.insert(capture, number(1));
            }
            "stop" => self.device.end_capture(self.stream(number(1))).expect("a capture"),
            "query" => {
                self.device.advance(1_000_000_000);
                self.layer.0.collect(&self.scope);
            }
            "device" => self.layer.0.wait_and_collect(&self.scope),
            other => panic!("unknown call {other}"),
        }
    }

    fn beliefs(&self) -> String {
        let memory = self.scope.memory.lock();
        let name = |id, side| match side {
            Side::Captured(number) => self.captures[&number].to_string(),
            Side::Ordinary => {
                self.streams.iter().position(|stream| stream.id() == id).expect("known").to_string()
            }
        };
        let all = self.blocks.iter().map(|block| memory.belief(*block, name));
        all.collect::<Vec<_>>().join(" ")
    }
}

/// Returns the number of calls.
///
/// # Errors
/// The first call after which the scope and the model differ.
fn repeat<'a>(traces: impl Iterator<Item = &'a str>) -> Result<usize, String> {
    let (mut rig, mut done, mut count) = (Rig::new(), Vec::new(), 0);
    for line in traces {
        let Some((call, believed)) = line.split_once(" | ") else {
            (rig, done) = (Rig::new(), Vec::new());
            continue;
        };
        done.push(call);
        count += 1;
        rig.call(call);
        let found = rig.beliefs();
        if found != believed {
            return Err(format!("model {believed}\nscope {found}\nafter {done:?}"));
        }
    }
    Ok(count)
}

#[test]
fn a_scope_believes_what_the_model_believes() {
    let mut parts = include_str!("traces.txt").split("mistake ").skip(1);
    let count = repeat(parts.next().expect("runs without a mistake").lines().skip(1));
    assert_eq!(count.unwrap_or_else(|why| panic!("{why}")), 1200);
    let mut mistakes = 0;
    for part in parts {
        let mut lines = part.lines();
        let mistake = lines.next().expect("a name");
        assert!(repeat(lines).is_err(), "{mistake} shows in no call");
        mistakes += 1;
    }
    assert_eq!(mistakes, 6);
}
