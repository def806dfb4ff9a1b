//! Writes a recording as a log. RMM's columns come first.

use std::fmt::Write as _;
use std::io::{self, Write};

use millpond_engine::log::column;
use millpond_engine::log::notes::{push_word, word};

use super::{Clock, Event, EventKind, Id, Lane, Recording};

/// Notes with at least this number of bytes get their own row.
const NOTES_BYTES: usize = 16 << 10;

/// Writes rows, and the notes that belong to them.
struct Writer<'a, W> {
    recording: &'a Recording,
    out: W,
    notes: String,
    /// Marks the frames, call stacks and tags that are already defined, by number.
    frames: Vec<bool>,
    stacks: Vec<bool>,
    tags: Vec<bool>,
}

impl Recording {
    /// Writes the recording as a log. RMM's readers can read the first columns of the log.
    /// [`import::read`](crate::import::read) can read all columns, and makes the same recording again.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn write_csv(&self, out: impl Write) -> io::Result<()> {
        let mut writer = Writer {
            recording: self,
            out,
            notes: String::new(),
            frames: Vec::new(),
            stacks: Vec::new(),
            tags: Vec::new(),
        };
        writer.header()?;
        writer.about()?;
        for (number, event) in self.events().enumerate() {
            writer.event(number, event)?;
        }
        writer.flush_notes()?;
        writer.out.flush()
    }
}

impl<W: Write> Writer<'_, W> {
    fn header(&mut self) -> io::Result<()> {
        let time = match self.recording.clock {
            Clock::Unix => column::UNIX,
            Clock::Monotonic => column::MONOTONIC,
            Clock::Steps => column::STEP,
        };
        let further = [
            "Device",
            "Alignment",
            time,
            column::STACK,
            column::POOL,
            column::TAG,
            column::ROUNDED,
            column::BEFORE,
            column::NOTES,
        ];
        writeln!(self.out, "Thread,Time,Action,Pointer,Size,Stream,{}", further.join(","))
    }

    /// Writes notes about the recording itself.
    fn about(&mut self) -> io::Result<()> {
        let recording = self.recording;
        self.note(&[word::SOURCE, &recording.source.format])?;
        for (name, value) in &recording.source.details {
            self.note(&[word::DETAIL, name, value])?;
        }
        if let Some(device) = recording.device_name() {
            self.note(&[word::DEVICE, &device])?;
        }
        for (name, value) in &recording.settings {
            self.note(&[word::SETTING, name, value])?;
        }
        for unknown in &recording.unknowns {
            self.note(&[word::UNKNOWN, &unknown.code, &unknown.text])?;
        }
        if let Some(check) = &recording.check {
            let counts = check.counts().map(|count| count.to_string());
            let mut words = vec![word::CHECK];
            words.extend(counts.iter().map(String::as_str));
            words.extend(check.first.as_deref());
            self.note(&words)?;
        }
        Ok(())
    }

    fn note(&mut self, words: &[&str]) -> io::Result<()> {
        self.start_note()?;
        for (at, word) in words.iter().enumerate() {
            if at > 0 {
                self.notes.push(' ');
            }
            push_word(&mut self.notes, word);
        }
        Ok(())
    }

    fn start_note(&mut self) -> io::Result<()> {
        if self.notes.len() > NOTES_BYTES {
            self.flush_notes()?;
        }
        if !self.notes.is_empty() {
            self.notes.push(';');
        }
        Ok(())
    }

    /// Writes the waiting notes in their own row. The row is a failed request for 0 bytes, which RMM's
    /// readers skip.
    fn flush_notes(&mut self) -> io::Result<()> {
        if !self.notes.is_empty() {
            let notes = std::mem::take(&mut self.notes);
            writeln!(self.out, "0,00:00:00.000000,allocate failure,(nil),0,0,,,,,,,,,{notes}")?;
        }
        Ok(())
    }

    fn event(&mut self, number: usize, event: &Event) -> io::Result<()> {
        if let Some(stack) = event.stack {
            self.define_stack(stack)?;
        }
        if !event.kind.is_row() {
            return self.event_note(event);
        }
        self.row(number, event)?;
        match self.recording.device_free_bytes(number) {
            Some(bytes) => self.device_free(bytes),
            None => Ok(()),
        }
    }

    fn row(&mut self, number: usize, event: &Event) -> io::Result<()> {
        let recording = self.recording;
        let Lane { thread, stream, pool } = recording.lane(event);
        let action = match event.kind {
            EventKind::Allocate => "allocate",
            EventKind::Free => "free",
            _ => "allocate failure",
        };
        let time = event.time();
        let unix = time.filter(|_| recording.clock == Clock::Unix).unwrap_or(0);
        let micros = unix / 1000 % 1_000_000;
        let [hour, minute, second] = [3600, 60, 1].map(|unit| unix / 1_000_000_000 % 86_400 / unit);
        write!(self.out, "{thread},{hour:02}:{:02}:{:02}.{micros:06},{action},", minute % 60, second % 60)?;
        match event.address {
            0 => write!(self.out, "(nil)")?,
            address => write!(self.out, "{address:#x}")?,
        }
        write!(self.out, ",{},{stream},", event.bytes)?;
        if let Some(device) = recording.device {
            write!(self.out, "{}:{device}", if recording.is_simulated { "sim" } else { "cuda" })?;
        }
        write!(self.out, ",{},", 1_u64 << event.alignment_log2.min(63))?;
        if let Some(time) = time {
            write!(self.out, "{time}")?;
        }
        self.out.write_all(b",")?;
        if let Some(stack) = event.stack {
            write!(self.out, "{stack}")?;
        }
        self.out.write_all(b",")?;
        if let Some((first, second)) = pool {
            write!(self.out, "{first}:{second}")?;
        }
        self.out.write_all(b",")?;
        if let Some(tag) = event.tag {
            let mut text = String::new();
            push_word(&mut text, recording.tag(tag));
            self.out.write_all(text.as_bytes())?;
        }
        self.out.write_all(b",")?;
        if let Some(rounded) = recording.rounded_bytes(number) {
            write!(self.out, "{rounded}")?;
        }
        let before = if event.is_before { "1" } else { "" };
        let notes = std::mem::take(&mut self.notes);
        writeln!(self.out, ",{before},{notes}")
    }

    /// Writes a note for an event that has no row: kind, address, bytes, stream, thread, time, stack, pool,
    /// before, tag.
    fn event_note(&mut self, event: &Event) -> io::Result<()> {
        let recording = self.recording;
        if let Some(tag) = event.tag {
            self.define_tag(tag)?;
        }
        self.start_note()?;
        let Lane { thread, stream, pool } = recording.lane(event);
        let Event { address, bytes, .. } = event;
        let notes = &mut self.notes;
        // Writing to a string cannot fail.
        let _ = write!(notes, "{} {address:#x} {bytes} {stream} {thread} ", event.kind.name());
        let _ = match event.time() {
            Some(time) => write!(notes, "{time} "),
            None => write!(notes, "- "),
        };
        let _ = match event.stack {
            Some(stack) => write!(notes, "{stack} "),
            None => write!(notes, "- "),
        };
        let _ = match pool {
            Some((first, second)) => write!(notes, "{first}:{second} "),
            None => write!(notes, "- "),
        };
        let _ = write!(notes, "{} ", u8::from(event.is_before));
        let _ = match event.tag {
            Some(tag) => write!(notes, "{tag}"),
            None => write!(notes, "-"),
        };
        Ok(())
    }

    /// Writes a note with the free bytes of the device, which belongs to the failed request before it. It has
    /// the fields of an event.
    fn device_free(&mut self, bytes: u64) -> io::Result<()> {
        self.start_note()?;
        let _ = write!(self.notes, "{} 0x0 {bytes} 0 0 - - - 0 -", word::DEVICE_FREE);
        Ok(())
    }

    fn define_stack(&mut self, stack: Id) -> io::Result<()> {
        if !is_new(&mut self.stacks, stack) {
            return Ok(());
        }
        let mut list = String::new();
        for &frame in self.recording.raw_stack(stack) {
            if let Some(known) = self.recording.frame(frame)
                && is_new(&mut self.frames, frame)
            {
                let [id, line] = [u64::from(frame.get()), known.line].map(|number| number.to_string());
                self.note(&[word::FRAME, &id, &line, known.function, known.file])?;
            }
            let separator = if list.is_empty() { "" } else { "." };
            let _ = write!(list, "{separator}{frame}");
        }
        self.note(&[word::STACK, &stack.to_string(), &list])
    }

    fn define_tag(&mut self, tag: Id) -> io::Result<()> {
        if is_new(&mut self.tags, tag) {
            self.note(&[word::TAG, &tag.to_string(), self.recording.tag(tag)])?;
        }
        Ok(())
    }
}

/// Marks a number, and returns whether it was unmarked before.
fn is_new(marks: &mut Vec<bool>, id: Id) -> bool {
    let at = id.get() as usize - 1;
    if at >= marks.len() {
        marks.resize(at + 1, false);
    }
    !std::mem::replace(&mut marks[at], true)
}
