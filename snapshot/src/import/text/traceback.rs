//! The call stacks that Python prints before an exception.

use crate::budget::{Budget, Exceeded};
use crate::recording::{Frame, Id, Recording};

/// The most processes whose lines may be mixed in a text.
const MOST_WRITERS: usize = 64;

/// The most frames of one traceback. A recursion without end prints fewer frames.
const MOST_FRAMES: usize = 2048;

/// The function, the method and the option of PyTorch that pin memory.
const PIN_MEMORY: &str = "pin_memory";

/// Signs of page-locked memory: functions of the driver, files of RMM, options and functions of Python.
const PINS: [&str; 8] = [
    PIN_MEMORY,
    "pinned",
    "page-locked",
    "HostAlloc",
    "HostRegister",
    "MallocHost",
    "MemAllocHost",
    "HostMalloc",
];

/// How many frames of a framework may lie between the code that pins memory and the call that fails.
const MOST_INNER_FRAMES: usize = 2;

/// The last traceback of each writer.
#[derive(Default, Debug)]
pub(crate) struct Tracebacks {
    open: Vec<Open>,
}

/// The frames of one traceback, the outermost first.
#[derive(Debug)]
struct Open {
    /// The bracketed word before each line, such as `[rank0]` or `(Worker pid=7)`.
    writer: String,
    frames: Vec<Id>,
    /// A frame whose line number is on a later line, as IPython prints it.
    waiting: Option<(String, String)>,
    /// The number of frames up to the last one whose code pins memory.
    pins: Option<usize>,
}

impl Tracebacks {
    /// Reads a line, which may belong to a traceback.
    ///
    /// # Errors
    /// The budget is used up.
    pub(crate) fn line(
        &mut self,
        line: &str,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        if let Some(at) = line.find("Traceback (most recent call last)") {
            let before = line[..at].trim_end();
            // PyTorch prints the stack of another thread below the stack of the thread that waited for it.
            if let Some(before) = before.strip_suffix("Original") {
                return self.open(writer(before), budget).map(drop);
            }
            if let Some(open) = self.open(writer(before), budget)? {
                (open.frames, open.waiting, open.pins) = (Vec::new(), None, None);
            }
            return Ok(());
        }
        if let Some((at, frame)) = frame(line) {
            return self.push(writer(&line[..at]), frame, recording, budget);
        }
        if let Some((function, file)) = heading(line) {
            if let Some(open) = self.open("", budget)? {
                open.waiting = Some((function.to_owned(), file.to_owned()));
            }
        } else if let Some(rest) = line.trim_start().strip_prefix("--").filter(|rest| rest.contains('>')) {
            let number = rest.trim_start_matches(['-', '>', ' ']);
            let end = number.find(|char: char| !char.is_ascii_digit()).unwrap_or(number.len());
            let waiting = self.open("", budget)?.and_then(|open| open.waiting.take());
            if let (Some((function, file)), Ok(line)) = (waiting, number[..end].parse()) {
                self.push("", Frame { function: &function, file: &file, line }, recording, budget)?;
            }
        }
        // The line may be the code of the last frame.
        if pins(line) {
            let of_line = self.open.iter_mut().filter(|open| line.contains(&open.writer));
            if let Some(open) = of_line.max_by_key(|open| open.writer.len()) {
                open.pins = Some(open.frames.len());
            }
        }
        Ok(())
    }

    /// Returns whether the code of the innermost frames of a writer pins memory.
    pub(crate) fn pins(&self, before: &str) -> bool {
        let open = self.open.iter().find(|open| open.writer == writer(before));
        open.is_some_and(|open| {
            open.pins.is_some_and(|frames| open.frames.len() <= frames + MOST_INNER_FRAMES)
        })
    }

    /// Returns the stack of the last traceback of the writer of a line, innermost frame first, and forgets
    /// it; `None` if there is none.
    ///
    /// # Errors
    /// The budget is used up.
    pub(crate) fn take(
        &mut self,
        before: &str,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Option<Id>, Exceeded> {
        let key = writer(before);
        let open = self.open.iter_mut().find(|open| open.writer == key);
        let mut frames = Vec::new();
        if let Some(open) = open {
            (frames, open.pins) = (std::mem::take(&mut open.frames), None);
        }
        if frames.is_empty() {
            return Ok(None);
        }
        frames.reverse();
        recording.add_stack(&frames, budget).map(Some)
    }

    fn push(
        &mut self,
        writer: &str,
        frame: Frame<'_>,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        let id = recording.add_frame(frame, budget)?;
        if let Some(open) = self.open(writer, budget)?
            && open.frames.len() < MOST_FRAMES
        {
            open.frames.push(id);
            if frame.function.contains(PIN_MEMORY) || frame.file.ends_with("/pin_memory.py") {
                open.pins = Some(open.frames.len());
            }
        }
        Ok(())
    }

    fn open(&mut self, writer: &str, budget: &mut Budget) -> Result<Option<&mut Open>, Exceeded> {
        let at = match self.open.iter().position(|open| open.writer == writer) {
            Some(at) => at,
            None if self.open.len() == MOST_WRITERS => return Ok(None),
            None => {
                // The length of a line bounds the texts of a traceback.
                budget.take(writer.len() + 2 * MOST_FRAMES * size_of::<Id>())?;
                let writer = writer.to_owned();
                self.open.push(Open { writer, frames: Vec::new(), waiting: None, pins: None });
                self.open.len() - 1
            }
        };
        Ok(self.open.get_mut(at))
    }
}

/// Returns whether a text names page-locked memory.
pub(crate) fn pins(text: &str) -> bool {
    PINS.iter().any(|sign| text.contains(sign)) && !text.contains("pin_memory=False")
}

/// Returns the last bracketed word of a line's start, which names the process that wrote it; times do not.
/// The name of an exception may follow the word.
fn writer(before: &str) -> &str {
    let blank = [' ', ':', '\t'];
    let before = before.trim_end_matches(blank);
    let at = before.rfind(' ').map_or(0, |at| at + 1);
    let before = if before.ends_with("Error") { before[..at].trim_end_matches(blank) } else { before };
    let opening = match before.as_bytes().last() {
        Some(b']') => '[',
        Some(b')') => '(',
        _ => return "",
    };
    let word = before.rfind(opening).map_or("", |at| &before[at..]);
    if word.chars().any(char::is_alphabetic) { word } else { "" }
}

/// Returns the frame in a line of a traceback, and the frame's position in the line.
fn frame(line: &str) -> Option<(usize, Frame<'_>)> {
    if let Some(at) = line.find("File \"") {
        let (file, rest) = line[at + 6..].split_once("\", line ")?;
        let (number, rest) = split_number(rest)?;
        let function = rest.strip_prefix(", in ").unwrap_or("").trim();
        return Some((at, Frame { function, file, line: number }));
    }
    // IPython 8 and later.
    if let Some(rest) = line.strip_prefix("File ") {
        let (place, function) = rest.split_once(", in ")?;
        let (file, number) = place.rsplit_once(':')?;
        return Some((0, Frame { function: name(function), file, line: number.parse().ok()? }));
    }
    let rest = line.strip_prefix("Cell In")?;
    let (cell, rest) = rest.split_once(", line ")?;
    let (number, rest) = split_number(rest)?;
    let function = rest.strip_prefix(", in ").map_or("<module>", name);
    let file = line.get(..7 + cell.len()).unwrap_or("Cell");
    Some((0, Frame { function, file, line: number }))
}

/// In old versions of IPython, returns the function and the file of a frame whose line number follows later.
fn heading(line: &str) -> Option<(&str, &str)> {
    let (file, function) = line.split_once(" in ")?;
    let is_place = !file.contains(' ') && (file.ends_with(".py") || file.starts_with("<ipython-input"));
    (is_place && function.ends_with(')')).then(|| (name(function), file))
}

/// Returns the name that precedes a list of arguments.
fn name(function: &str) -> &str {
    function.split('(').next().unwrap_or(function).trim()
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(text: &str, before: &str) -> Vec<String> {
        let (mut recording, mut budget) = (Recording::new("text", "text"), Budget::new(1 << 20));
        let mut tracebacks = Tracebacks::default();
        for line in text.lines() {
            tracebacks.line(line, &mut recording, &mut budget).unwrap();
        }
        let stack = tracebacks.take(before, &mut recording, &mut budget).unwrap();
        let frames = stack.into_iter().flat_map(|stack| recording.stack(stack));
        frames.map(|frame| format!("{} {}:{}", frame.function, frame.file, frame.line)).collect()
    }

    #[test]
    fn the_frames_of_a_traceback_are_read_innermost_first() {
        let text = "Traceback (most recent call last):\n  File \"a.py\", line 1, in old\nValueError: x\n\n\
                    During handling of the above exception, another exception occurred:\n\n\
                    Traceback (most recent call last):\n  File \"train.py\", line 77, in <module>\n\
                    \x20   main()\n  File \"/venv/lib/torch/nn/module.py\", line 1553, in _call_impl\n\
                    \x20   return f()\n    ^^^^\n";
        assert_eq!(stack(text, ""), ["_call_impl /venv/lib/torch/nn/module.py:1553", "<module> train.py:77"]);
        assert!(stack("File \"a.py\", line x, in f\nFile \"\n--> 3 x\n in )\n", "").is_empty());
    }

    #[test]
    fn mixed_processes_are_told_apart() {
        let text = "[rank0]: Traceback (most recent call last):\n\
                    [rank1]: Traceback (most recent call last):\n\
                    [rank0]:   File \"a.py\", line 1, in f\n[rank1]:   File \"b.py\", line 2, in g\n\
                    09:15:27 (Worker pid=7) File \"c.py\", line 3, in h\n";
        assert_eq!(stack(text, "[rank1]: torch.OutOfMemoryError: "), ["g b.py:2"]);
        assert_eq!(stack(text, "[rank0]: "), ["f a.py:1"]);
        assert!(stack(text, "[rank2]: ").is_empty());
        assert_eq!(stack(text, "10:16:28 (Worker pid=7) "), ["h c.py:3"]);
    }

    #[test]
    fn tracebacks_of_notebooks_are_read() {
        let text = "File /opt/torch/module.py:1740, in Module._call_impl(self, *args)\n\
                    Cell In[5], line 3, in step(x)\n";
        assert_eq!(stack(text, ""), ["step Cell In[5]:3", "Module._call_impl /opt/torch/module.py:1740"]);
        let old = "<ipython-input-9-ab> in <module>\n/usr/lib/torch/optim/adam.py in _init_group(self, \
                   group)\n\
                   \x20   173   # Exponential\n--> 174   state = torch.zeros_like(\n";
        assert_eq!(stack(old, ""), ["_init_group /usr/lib/torch/optim/adam.py:174"]);
    }
}
