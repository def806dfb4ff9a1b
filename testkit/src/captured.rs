//! Seeded programs that capture graphs in scopes. They do other work before, during and after the captures.
//!
//! The simulated device checks the order. When a stream gets a block, all work on the block outside of
//! captures must be done, or ordered before. The program keeps the duties of a caller. It uses and frees a
//! block only on a stream whose work runs after all earlier uses of the block.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::{CaptureMode, Driver, DriverResult, EventFlags, StreamFlags};
use millpond_core::{DevicePtr, StreamRef};
use millpond_driver::sim::{Access, SimDevice};

use crate::Rng;

/// The scopes under test, and the resource that serves them.
pub trait Scopes {
    /// Opens a scope for a stream.
    fn open(&mut self, scope: usize, stream: StreamRef);

    /// Closes a scope for a stream, which captures nothing.
    ///
    /// # Errors
    /// The driver's errors, as for the calls below.
    fn close(&mut self, scope: usize, stream: StreamRef) -> DriverResult<()>;

    /// Hands out a block, from the scope that serves the stream if there is one.
    ///
    /// # Errors
    /// The driver's errors.
    fn allocate(&mut self, bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr>;

    /// Takes a block back in the order of a stream.
    ///
    /// # Errors
    /// The driver's errors.
    fn deallocate(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamRef) -> DriverResult<()>;

    /// Ends a scope that is open on no stream. A new scope then gets its number.
    ///
    /// # Errors
    /// The driver's errors.
    fn end(&mut self, scope: usize) -> DriverResult<()>;
}

/// Counts of the programs' actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// The number of all steps.
    pub operations: u64,
    /// The number of captures that ended.
    pub captures: u64,
    /// The number of blocks that a capture freed but did not allocate.
    pub freed_in_captures: u64,
    /// The number of streams that were forked into captures.
    pub forks: u64,
    /// The number of requests that got memory of an earlier block.
    pub reused: u64,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.captures += other.captures;
        self.freed_in_captures += other.freed_in_captures;
        self.forks += other.forks;
        self.reused += other.reused;
    }
}

/// The broken rule, as text for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Broken {
    /// The seed of the program.
    pub seed: u64,
    /// The rule, in words.
    pub why: String,
    /// The program's steps up to the failure, in order.
    pub done: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, why, done } = self;
        write!(f, "seed {seed}: {why}\nafter\n  {}", done.join("\n  "))
    }
}

const STREAMS: usize = 6;
const SCOPES: usize = 2;
const SIZES: [u64; 2] = [1 << 20, 3 << 20];
const MOST_LIVE: usize = 24;

/// A set of streams, by number.
type Set = u32;

struct Block {
    ptr: DevicePtr,
    bytes: u64,
    /// The streams whose work outside of captures comes after all of the block's uses outside of captures.
    ready: Set,
    /// The last capture that used the block, and the stream.
    captured: Option<(u64, usize)>,
    /// The capture that allocated the block.
    born: Option<u64>,
    scope: Option<usize>,
}

#[derive(Clone, Copy, Default)]
struct Lane {
    capture: Option<u64>,
    scope: Option<usize>,
}

struct Capture {
    number: u64,
    members: Vec<usize>,
}

struct Program<'a> {
    device: Arc<SimDevice>,
    scopes: &'a mut dyn Scopes,
    rng: Rng,
    streams: Vec<StreamRef>,
    lanes: [Lane; STREAMS],
    captures: Vec<Capture>,
    blocks: Vec<Block>,
    known: Vec<DevicePtr>,
    begun: u64,
    done: Vec<String>,
    summary: Summary,
}

/// Runs one program of this many steps over the scopes, which belong to the device.
///
/// # Errors
/// Returns the rule that was broken.
pub fn run(
    seed: u64,
    steps: u64,
    device: &Arc<SimDevice>,
    scopes: &mut dyn Scopes,
) -> Result<Summary, Box<Broken>> {
    let stream = |_| device.stream_create(StreamFlags::NON_BLOCKING);
    let streams: DriverResult<Vec<StreamRef>> = (0..STREAMS).map(stream).collect();
    let mut program = Program {
        device: Arc::clone(device),
        scopes,
        rng: Rng::new(seed),
        streams: streams.unwrap_or_default(),
        lanes: [Lane::default(); STREAMS],
        captures: Vec::new(),
        blocks: Vec::new(),
        known: Vec::new(),
        begun: 0,
        done: Vec::new(),
        summary: Summary::default(),
    };
    let outcome = program.play(steps);
    let Program { done, summary, .. } = program;
    outcome.map(|()| summary).map_err(|why| Box::new(Broken { seed, why, done }))
}

impl Program<'_> {
    fn play(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            self.summary.operations += 1;
            self.step().map_err(|error| error.to_string())?;
            self.check()?;
        }
        self.finish().map_err(|error| error.to_string())?;
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        self.device.take_violations().first().map_or(Ok(()), |violation| Err(violation.to_string()))
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        self.done.push(text());
    }

    fn step(&mut self) -> DriverResult<()> {
        let lane = self.rng.below(STREAMS as u64) as usize;
        match self.rng.below(100) {
            0..28 => self.allocate(lane),
            28..42 => self.use_block(lane),
            42..62 => self.free(lane),
            62..72 => self.order(lane),
            72..76 => self.synchronize(lane),
            76..83 => self.open_or_close(lane),
            83..90 => self.begin(lane),
            90..94 => self.fork(lane),
            94..98 => self.end_capture(lane),
            98 => self.end_scope(),
            _ => {
                self.note(|| "time passes".to_owned());
                self.device.advance(2_000_000);
                Ok(())
            }
        }
    }

    // --- Blocks ---

    fn allocate(&mut self, lane: usize) -> DriverResult<()> {
        let capture = self.lanes[lane].capture;
        if self.blocks.len() >= MOST_LIVE || (capture.is_some() && !self.is_served(lane)) {
            return Ok(());
        }
        let bytes = self.rng.pick(&SIZES).copied().unwrap_or(SIZES[0]);
        let stream = self.streams[lane];
        let ptr = self.scopes.allocate(bytes, stream)?;
        self.note(|| format!("block {ptr} of {bytes} on {lane}, capture {capture:?}"));
        self.summary.reused += u64::from(self.known.contains(&ptr));
        self.known.push(ptr);
        self.device.lend(ptr, bytes, stream);
        let captured = capture.map(|number| (number, lane));
        let scope = self.lanes[lane].scope.or_else(|| self.lanes[self.origin_of(lane)?].scope);
        self.blocks.push(Block { ptr, bytes, ready: 1 << lane, captured, born: capture, scope });
        self.launch(lane, ptr, bytes);
        Ok(())
    }

    /// Whether a scope serves the requests of a stream in a capture.
    fn is_served(&self, lane: usize) -> bool {
        let capture = self.lanes[lane].capture;
        self.lanes.iter().any(|other| other.capture == capture && other.scope.is_some())
    }

    /// The stream on which a stream's capture began.
    fn origin_of(&self, lane: usize) -> Option<usize> {
        let number = self.lanes[lane].capture?;
        self.captures.iter().find(|capture| capture.number == number).map(|capture| capture.members[0])
    }

    fn launch(&mut self, lane: usize, ptr: DevicePtr, bytes: u64) {
        let ns = [1_000, 1_000_000, 20_000_000][self.rng.below(3) as usize];
        self.device.launch_for(self.streams[lane], &[Access::write(ptr, bytes, 1)], ns);
    }

    /// A block that the stream may use now; orders the stream after the captured uses.
    fn pick(&mut self, lane: usize) -> DriverResult<Option<usize>> {
        if self.blocks.is_empty() {
            return Ok(None);
        }
        let index = self.rng.below(self.blocks.len() as u64) as usize;
        let capture = self.lanes[lane].capture;
        let Block { ready, captured, scope, .. } = self.blocks[index];
        let goes_on = |number: u64| self.captures.iter().any(|capture| capture.number == number);
        // If a stream is open in the block's scope, all streams of its capture come after everything that it
        // comes after.
        let origin =
            self.origin_of(lane).filter(|origin| scope.is_some() && self.lanes[*origin].scope == scope);
        let mut before = std::iter::once(lane).chain(origin);
        let is_ready = before.any(|lane| ready & (1 << lane) != 0);
        match captured {
            _ if !is_ready => Ok(None),
            Some((number, _)) if goes_on(number) && capture != Some(number) => Ok(None),
            Some((number, other)) if goes_on(number) && other != lane => {
                self.wait(other, lane)?;
                Ok(Some(index))
            }
            _ => Ok(Some(index)),
        }
    }

    fn use_block(&mut self, lane: usize) -> DriverResult<()> {
        let Some(index) = self.pick(lane)? else { return Ok(()) };
        let Block { ptr, bytes, .. } = self.blocks[index];
        let capture = self.lanes[lane].capture;
        self.note(|| format!("use of {ptr} on {lane}, capture {capture:?}"));
        self.launch(lane, ptr, bytes);
        match capture {
            Some(number) => self.blocks[index].captured = Some((number, lane)),
            None => self.blocks[index].ready = 1 << lane,
        }
        Ok(())
    }

    fn free(&mut self, lane: usize) -> DriverResult<()> {
        let Some(index) = self.pick(lane)? else { return Ok(()) };
        self.free_block(index, lane)
    }

    fn free_block(&mut self, index: usize, lane: usize) -> DriverResult<()> {
        let Block { ptr, bytes, born, .. } = self.blocks.swap_remove(index);
        let capture = self.lanes[lane].capture;
        self.note(|| format!("free of {ptr} on {lane}, capture {capture:?}"));
        self.summary.freed_in_captures += u64::from(capture.is_some() && capture != born);
        self.device.give_back(ptr, bytes, self.streams[lane]);
        self.scopes.deallocate(ptr, bytes, self.streams[lane])
    }

    // --- Order ---

    /// Makes a stream wait for another.
    fn wait(&mut self, before: usize, after: usize) -> DriverResult<()> {
        let event = self.device.event_create(EventFlags::default())?;
        self.device.event_record(event, self.streams[before])?;
        self.device.stream_wait_event(self.streams[after], event)?;
        // SAFETY: this function owns the event.
        unsafe { self.device.event_destroy(event) }
    }

    fn order(&mut self, lane: usize) -> DriverResult<()> {
        let other = self.rng.below(STREAMS as u64) as usize;
        if other == lane || [lane, other].iter().any(|lane| self.lanes[*lane].capture.is_some()) {
            return Ok(());
        }
        self.note(|| format!("{other} waits for {lane}"));
        self.wait(lane, other)?;
        for block in self.blocks.iter_mut().filter(|block| block.ready & (1 << lane) != 0) {
            block.ready |= 1 << other;
        }
        Ok(())
    }

    fn synchronize(&mut self, lane: usize) -> DriverResult<()> {
        if self.lanes[lane].capture.is_some() {
            return Ok(());
        }
        self.note(|| format!("the host waits for {lane}"));
        self.device.stream_synchronize(self.streams[lane])?;
        for block in self.blocks.iter_mut().filter(|block| block.ready & (1 << lane) != 0) {
            block.ready = Set::MAX;
        }
        Ok(())
    }

    // --- Scopes and captures ---

    fn open_or_close(&mut self, lane: usize) -> DriverResult<()> {
        if self.lanes[lane].capture.is_some() {
            return Ok(());
        }
        if let Some(scope) = self.lanes[lane].scope.take() {
            self.note(|| format!("scope {scope} closes for {lane}"));
            return self.scopes.close(scope, self.streams[lane]);
        }
        let scope = self.rng.below(SCOPES as u64) as usize;
        self.note(|| format!("scope {scope} opens for {lane}"));
        self.lanes[lane].scope = Some(scope);
        self.scopes.open(scope, self.streams[lane]);
        Ok(())
    }

    fn begin(&mut self, lane: usize) -> DriverResult<()> {
        if self.lanes[lane].capture.is_some() || self.lanes[lane].scope.is_none() {
            return Ok(());
        }
        self.begun += 1;
        let number = self.begun;
        self.note(|| format!("{lane} begins capture {number}"));
        self.device.begin_capture(self.streams[lane], CaptureMode::Relaxed)?;
        self.lanes[lane].capture = Some(number);
        self.captures.push(Capture { number, members: vec![lane] });
        Ok(())
    }

    fn fork(&mut self, lane: usize) -> DriverResult<()> {
        if self.lanes[lane].capture.is_some() {
            return Ok(());
        }
        if self.captures.is_empty() {
            return Ok(());
        }
        let index = self.rng.below(self.captures.len() as u64) as usize;
        let from = self.captures[index].members[0];
        if self.lanes[lane].scope.is_some_and(|scope| self.lanes[from].scope != Some(scope)) {
            return Ok(());
        }
        let Capture { number, members } = &mut self.captures[index];
        let number = *number;
        members.push(lane);
        self.lanes[lane].capture = Some(number);
        self.summary.forks += 1;
        self.note(|| format!("{lane} is forked from {from} into capture {number}"));
        self.wait(from, lane)
    }

    fn end_capture(&mut self, lane: usize) -> DriverResult<()> {
        let Some(number) = self.lanes[lane].capture else { return Ok(()) };
        let Some(index) = self.captures.iter().position(|capture| capture.number == number) else {
            return Ok(());
        };
        let Capture { members, .. } = self.captures.swap_remove(index);
        let origin = members[0];
        for member in &members[1..] {
            self.wait(*member, origin)?;
        }
        self.note(|| format!("capture {number} of {members:?} ends"));
        self.device.end_capture(self.streams[origin])?;
        members.iter().for_each(|member| self.lanes[*member].capture = None);
        self.summary.captures += 1;
        Ok(())
    }

    fn end_scope(&mut self) -> DriverResult<()> {
        let scope = self.rng.below(SCOPES as u64) as usize;
        if self.lanes.iter().any(|lane| lane.scope == Some(scope)) {
            return Ok(());
        }
        self.note(|| format!("scope {scope} ends"));
        self.scopes.end(scope)
    }

    /// Ends everything that is under way.
    fn finish(&mut self) -> DriverResult<()> {
        for lane in 0..STREAMS {
            self.end_capture(lane)?;
        }
        self.device.synchronize()?;
        while !self.blocks.is_empty() {
            self.free_block(0, 0)?;
        }
        for lane in 0..STREAMS {
            if self.lanes[lane].scope.is_some() {
                self.open_or_close(lane)?;
            }
        }
        (0..SCOPES).try_for_each(|scope| self.scopes.end(scope))
    }
}
