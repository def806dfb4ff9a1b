//! The file of the recording: a log with the columns of a recording, which `millpond-replay` reads.
//!
//! Each row is written before the call returns, so a program that is killed loses none.

use std::ffi::c_int;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use millpond_engine::log::column;
use millpond_engine::log::notes::{origin, push_word, word};
use rustc_hash::FxHashMap;

use crate::blocks::{Block, Blocks};
use crate::device::Info;
use crate::process::{id_of, say};
use crate::stacks::{Frame, Stack};

/// While the program runs, a change of the driver's own memory below this number of bytes gets no row. Small
/// changes come from the pieces of 2 MiB in which the driver takes memory.
pub(crate) const NOTICED: u64 = 8 << 20;

/// The most characters of a word that are kept. The reader refuses long lines.
const MOST_CHARS: usize = 2048;

/// What happened to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Allocate,
    Free,
    Failure,
}

impl Call {
    const fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::Failure => "allocate failure",
        }
    }
}

/// The bytes of a device that the rows show, and those that they do not show.
#[derive(Debug, Default)]
struct Shown {
    /// The bytes of live blocks.
    blocks: u64,
    /// The driver's own memory, as a block; no bytes at first.
    driver: u64,
    /// The address of that block.
    address: u64,
    /// The bytes that other processes took when this process was first seen on the device.
    others: Option<u64>,
}

/// Writes the recording of a process.
#[derive(Debug)]
pub(crate) struct Record {
    file: File,
    /// The device and the number of the file, by which a descriptor that the program closed is noticed.
    id: (u64, u64),
    is_broken: bool,
    /// Notes for the next row.
    notes: String,
    frames: FxHashMap<Arc<Frame>, usize>,
    stacks: FxHashMap<Vec<usize>, usize>,
    devices: FxHashMap<c_int, Shown>,
}

impl Record {
    /// Creates the file. If it exists, another process of the program has created it, and this process adds
    /// its number to the name. Returns `None` after an error, which it prints.
    pub(crate) fn create(path: &Path, limit: Option<u64>) -> Option<Self> {
        let create = |path: &Path| OpenOptions::new().append(true).create_new(true).open(path);
        let exists = |done: &std::io::Result<File>| {
            done.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
        };
        let mut file = create(path);
        // A process may replace its program, and then creates another file.
        for image in 0..100 {
            if !exists(&file) {
                break;
            }
            file = create(&with_number(path, std::process::id(), image));
        }
        let made = file.and_then(|file| Ok((id_of(&file)?, file)));
        let (id, file) = match made {
            Ok(made) => made,
            Err(error) => {
                say(&format!("{}: {error}; the process is not recorded", path.display()));
                return None;
            }
        };
        let (frames, stacks, devices) = Default::default();
        let mut record = Self { file, id, is_broken: false, notes: String::new(), frames, stacks, devices };
        let further = ["Device", column::UNIX, column::STACK, column::TAG, column::NOTES];
        record.write(&format!("Thread,Time,Action,Pointer,Size,Stream,{}\n", further.join(",")));
        record.note(&[word::SOURCE, origin::DRIVER_CALLS]);
        let program = std::env::args_os().map(|part| part.to_string_lossy().into_owned());
        let program: Vec<String> = program.collect();
        record.note(&[word::DETAIL, "program", &program.join(" ")]);
        if let Some(limit) = limit {
            record.note(&[word::DETAIL, origin::LIMIT_BYTES, &limit.to_string()]);
        }
        Some(record)
    }

    /// Writes a row.
    pub(crate) fn row(&mut self, call: Call, block: &Block, stream: u64, stack: &Stack) {
        let shown = self.devices.entry(block.device).or_default();
        match call {
            Call::Allocate => shown.blocks = shown.blocks.saturating_add(block.bytes),
            Call::Free => shown.blocks = shown.blocks.saturating_sub(block.bytes),
            Call::Failure => {}
        }
        let number = (!stack.frames.is_empty()).then(|| self.define(&stack.frames));
        self.line(call, block, stream, number, &stack.asker);
    }

    /// Writes a failed request, and the bytes that the device had left.
    pub(crate) fn failure(&mut self, failed: &Block, stream: u64, stack: &Stack, free: Option<u64>) {
        self.row(Call::Failure, failed, stream, stack);
        if let Some(free) = free {
            self.separate();
            let _ = write!(self.notes, "{} 0x0 {free} 0 0 - - - 0 -", word::DEVICE_FREE);
            self.flush();
        }
    }

    /// Writes the memory of a new context.
    pub(crate) fn context(&mut self, blocks: &mut Blocks, device: c_int, bytes: u64) {
        let driver = self.devices.entry(device).or_default().driver;
        self.driver(blocks, device, driver.saturating_add(bytes));
    }

    /// Compares the rows with the bytes that are gone from a device. The driver has taken the rest: for
    /// contexts, code, its pools, and whole pieces.
    ///
    /// Changes of fewer than `noticed` bytes get no row.
    pub(crate) fn look(&mut self, blocks: &mut Blocks, device: c_int, info: Info, noticed: u64) {
        let shown = self.devices.entry(device).or_default();
        let gone = info.total.saturating_sub(info.free);
        let known = shown.blocks.saturating_add(shown.driver);
        let others = shown.others;
        if others.is_none() {
            shown.others = Some(gone.saturating_sub(known));
            self.note(&[word::DETAIL, origin::DEVICE_BYTES, &info.total.to_string()]);
            return;
        }
        let driver = gone.saturating_sub(others.unwrap_or_default()).saturating_sub(shown.blocks);
        if driver.abs_diff(shown.driver) >= noticed {
            self.driver(blocks, device, driver);
        }
    }

    /// Writes the driver's own memory again, because its size has changed.
    fn driver(&mut self, blocks: &mut Blocks, device: c_int, bytes: u64) {
        let shown = self.devices.entry(device).or_default();
        let before = Block::new(shown.address, shown.driver, device);
        let now = Block::new(blocks.place(bytes), bytes, device);
        (shown.address, shown.driver) = (now.address, bytes);
        let frame = Frame { function: "CUDA_driver".to_owned(), ..Frame::default() };
        let number = Some(self.define(&[Arc::new(frame)]));
        for (call, block) in [(Call::Free, before), (Call::Allocate, now)] {
            if block.bytes > 0 {
                self.line(call, &block, 0, number, origin::DRIVER_TAG);
            }
        }
    }

    /// Writes one line, and the notes before it.
    fn line(&mut self, call: Call, block: &Block, stream: u64, stack: Option<usize>, tag: &str) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let [hour, minute, second] = [3600, 60, 1].map(|unit| since.as_secs() / unit);
        let mut line = String::new();
        // SAFETY: the function has no arguments and cannot fail.
        let thread = unsafe { libc::gettid() };
        let micros = since.subsec_micros();
        let (minute, second) = (minute % 60, second % 60);
        let _ =
            write!(line, "{thread},{:02}:{minute:02}:{second:02}.{micros:06},{},", hour % 24, call.name());
        let _ = match block.address {
            0 => write!(line, "(nil)"),
            address => write!(line, "{address:#x}"),
        };
        let (bytes, device, time) = (block.bytes, block.device, since.as_nanos());
        let stack = stack.map(|number| number.to_string()).unwrap_or_default();
        let _ = write!(line, ",{bytes},{stream:#x},cuda:{device},{time},{stack},");
        if !tag.is_empty() {
            push_word(&mut line, tag);
        }
        let notes = std::mem::take(&mut self.notes);
        let _ = writeln!(line, ",{notes}");
        self.write(&line);
    }

    /// Writes the waiting notes in their own row: a failed request for 0 bytes, which other readers skip.
    fn flush(&mut self) {
        let notes = std::mem::take(&mut self.notes);
        self.write(&format!("0,00:00:00.000000,allocate failure,(nil),0,0,,,,,{notes}\n"));
    }

    /// Returns the number of a call stack, and defines it if it is new.
    fn define(&mut self, frames: &[Arc<Frame>]) -> usize {
        let mut numbers = Vec::with_capacity(frames.len());
        for frame in frames {
            let next = self.frames.len() + 1;
            let number = *self.frames.entry(Arc::clone(frame)).or_insert(next);
            if number == next {
                let Frame { function, file, line, .. } = &**frame;
                self.note(&[word::FRAME, &number.to_string(), &line.to_string(), function, file]);
            }
            numbers.push(number);
        }
        let next = self.stacks.len() + 1;
        if let Some(number) = self.stacks.get(&numbers) {
            return *number;
        }
        let list: Vec<String> = numbers.iter().map(usize::to_string).collect();
        self.note(&[word::STACK, &next.to_string(), &list.join(".")]);
        self.stacks.insert(numbers, next);
        next
    }

    fn note(&mut self, words: &[&str]) {
        self.separate();
        for (at, word) in words.iter().enumerate() {
            if at > 0 {
                self.notes.push(' ');
            }
            let end = word.char_indices().nth(MOST_CHARS).map_or(word.len(), |(end, _)| end);
            push_word(&mut self.notes, &word[..end]);
        }
    }

    fn separate(&mut self) {
        // The reader refuses lines of more than 64 KiB.
        if self.notes.len() > 16 << 10 {
            self.flush();
        }
        if !self.notes.is_empty() {
            self.notes.push(';');
        }
    }

    /// A recording that cannot be written does not stop the program.
    fn write(&mut self, text: &str) {
        if self.is_broken {
            return;
        }
        // A program may close all descriptors, and open other files under their numbers.
        let written = match id_of(&self.file) {
            Ok(id) if id == self.id => self.file.write_all(text.as_bytes()),
            _ => Err(std::io::Error::other("the program has closed the file")),
        };
        if let Err(error) = written {
            self.is_broken = true;
            say(&format!("{error}; the recording ends here"));
        }
    }
}

/// Inserts a process's number before the ending of a file's name, and the number of its further programs.
fn with_number(path: &Path, process: u32, image: u32) -> PathBuf {
    let number = if image == 0 { process.to_string() } else { format!("{process}-{image}") };
    match path.extension() {
        Some(ending) => path.with_extension(format!("{number}.{}", ending.to_string_lossy())),
        None => path.with_extension(number),
    }
}
