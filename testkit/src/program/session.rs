//! A program over several devices and threads; one device and one thread are current.

use super::FailureKind;
use super::broken::{Broken, Checks};
use super::execution::{Execution, StreamState};
use super::op::Op;
use super::worker::Worker;

/// A program's executions, one for each device, and its threads.
pub(super) struct Session {
    executions: Vec<Option<Box<Execution>>>,
    device: usize,
    thread: u8,
    workers: Vec<Option<Worker>>,
}

fn gone() -> Broken {
    Broken::new(FailureKind::Panic, "a thread of the program ended")
}

impl Session {
    /// A session over these devices, at least one.
    pub(super) fn new(executions: Vec<Execution>) -> Self {
        let executions = executions.into_iter().map(|execution| Some(Box::new(execution))).collect();
        Self { executions, device: 0, thread: 0, workers: Vec::new() }
    }

    pub(super) fn device(&self) -> usize {
        self.device
    }

    /// The current device's execution.
    pub(super) fn current(&self) -> Result<&Execution, Broken> {
        self.executions[self.device].as_deref().ok_or_else(gone)
    }

    /// Carries out an operation on the current device and thread, if a careful caller would do it.
    pub(super) fn step(&mut self, op: Op) -> Checks {
        let (devices, threads) = (self.current()?.config.devices, self.current()?.config.threads);
        match op {
            Op::Device { device } if device < devices => self.device = usize::from(device),
            Op::Thread { thread } if thread < threads => self.thread = thread,
            Op::Device { .. } | Op::Thread { .. } => return Ok(()),
            _ => return self.step_on(self.thread, op),
        }
        self.current()?.done.lock().push(op);
        Ok(())
    }

    fn step_on(&mut self, thread: u8, op: Op) -> Checks {
        let mut execution = self.executions[self.device].take().ok_or_else(gone)?;
        execution.thread = thread;
        if thread == 0 {
            let result = execution.step(op);
            self.executions[self.device] = Some(execution);
            return result;
        }
        let index = usize::from(thread);
        if self.workers.len() <= index {
            self.workers.resize_with(index + 1, || None);
        }
        let worker = self.workers[index].get_or_insert_with(Worker::start);
        let (execution, result) = worker.step(execution, op).ok_or_else(gone)?;
        self.executions[self.device] = Some(execution);
        result
    }

    /// Ends the captures of a program that broke a rule, so that its resources can give back their memory.
    pub(super) fn end_captures(&self) {
        for execution in self.executions.iter().flatten() {
            for capture in &execution.captures.live {
                if let StreamState::Alive(origin) = execution.stream_state(capture.origin) {
                    // The rule that was broken says more than this error.
                    let _ended = execution.device.end_capture(origin);
                }
            }
        }
    }

    /// Ends each capture on its thread, then the programs of all devices; returns the executions.
    pub(super) fn finish(mut self) -> Result<Vec<Execution>, Broken> {
        for device in 0..self.executions.len() {
            self.device = device;
            while let Some(capture) = self.current()?.captures.live.first() {
                let (stream, thread) = (capture.origin, capture.thread);
                self.step_on(thread, Op::EndCapture { stream })?;
                if self.current()?.ending.is_some() {
                    break;
                }
            }
        }
        let mut finished = Vec::new();
        for execution in self.executions {
            let mut execution = execution.ok_or_else(gone)?;
            execution.thread = 0;
            execution.finish()?;
            finished.push(*execution);
        }
        Ok(finished)
    }
}
