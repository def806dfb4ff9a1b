//! The process of PyTorch's allocator, and the messages to it and from it.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::mirror::Change;
use super::program::Program;
use crate::peers::torch::settings::Settings;

/// A request. The addresses are the other process's. Streams have numbers, and 0 is the legacy stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Allocate { bytes: u64, stream: u64 },
    Free { address: u64, stream: u64 },
    Trim,
}

/// A part of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// A segment changed.
    Changed(Change),
    /// The request is answered. There is no address if there was no memory.
    Ended { address: Option<u64>, reserved: u64 },
}

/// The process. Dropping this value ends it.
#[derive(Debug)]
pub(super) struct Server {
    _program: Program,
    /// The standard error of the process.
    messages: File,
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts the process, with a simulated device that has this many bytes.
    ///
    /// # Errors
    /// The reason, as a clause.
    pub(super) fn start(program: Program, settings: &Settings, device_bytes: u64) -> Result<Self, String> {
        let mut command = program.command();
        command.env("MILLPOND_DEVICE", format!("sim:{device_bytes}"));
        if let Some(text) = settings.environment() {
            command.env("PYTORCH_CUDA_ALLOC_CONF", text).env_remove("PYTORCH_ALLOC_CONF");
        }
        if settings.limit != u64::MAX {
            command.arg(settings.limit.to_string());
        }
        let messages = tempfile::tempfile().map_err(|error| error.to_string())?;
        let copy = messages.try_clone().map_err(|error| error.to_string())?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(copy).spawn();
        let mut child = child.map_err(|error| format!("its process cannot be started: {error}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or("its process has no pipes")?;
        let (input, output) = (BufWriter::new(input), BufReader::new(output));
        let mut server = Self { _program: program, messages, child, input, output };
        server.receive()?;
        Ok(server)
    }

    /// Sends a request. The process gets it at the latest when an answer is awaited.
    pub(super) fn send(&mut self, request: Request) -> Result<(), String> {
        let message = match request {
            Request::Allocate { bytes, stream } => [0, bytes, stream],
            Request::Free { address, stream } => [1, address, stream],
            Request::Trim => [2, 0, 0],
        };
        self.input
            .write_all(message.map(u64::to_ne_bytes).as_flattened())
            .map_err(|error| self.broken(&error))
    }

    /// Waits for a part of an answer.
    ///
    /// # Errors
    /// The reason, after which the process serves nothing more.
    pub(super) fn receive(&mut self) -> Result<Answer, String> {
        self.input.flush().map_err(|error| self.broken(&error))?;
        let mut number = || {
            let mut bytes = [0; 8];
            self.output.read_exact(&mut bytes).map(|()| u64::from_ne_bytes(bytes))
        };
        let mut message = || Ok([number()?, number()?, number()?]);
        let [kind, first, second] = message().map_err(|error| self.broken(&error))?;
        Ok(match kind {
            0 => Answer::Ended { address: Some(first), reserved: second },
            1 => Answer::Ended { address: None, reserved: second },
            3 => Answer::Changed(Change::Allocated { address: first, bytes: second }),
            4 => Answer::Changed(Change::Released { address: first }),
            5 => Answer::Changed(Change::Mapped { address: first, bytes: second }),
            6 => Answer::Changed(Change::Unmapped { address: first, bytes: second }),
            _ => {
                let mut text = String::new();
                let read = self.output.by_ref().take(first).read_to_string(&mut text);
                return Err(read.map_or_else(|error| self.broken(&error), |_| text));
            }
        })
    }
}

impl Server {
    /// Says why a pipe is broken, with the last words of the process.
    fn broken(&self, error: &io::Error) -> String {
        let text = self.messages();
        let last = text.iter().find(|line| line.contains("what():")).or(text.last());
        format!("its process has ended: {}", last.map_or_else(|| error.to_string(), Clone::clone))
    }

    /// Returns the messages of the process, without the dynamic linker's: CUDA's libraries have versions, and
    /// the simulated device has none.
    fn messages(&self) -> Vec<String> {
        let mut text = String::new();
        let mut file = &self.messages;
        // Without the text, the error is less clear.
        let _ = file.rewind().and_then(|()| file.read_to_string(&mut text));
        let lines = text.lines().filter(|line| !line.contains("no version information available"));
        lines.map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for line in self.messages() {
            tracing::warn!(target: "millpond::replay", "PyTorch's allocator: {line}");
        }
    }
}
