//! The stacks of recorded calls: captured as a number, and named when a snapshot is written.

use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

/// One frame of a call stack.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct Frame {
    /// The name of the function.
    pub name: String,
    /// The source file; empty if the file is not known.
    pub file: String,
    /// The line in the source file, counted from 1; 0 if the line is not known.
    pub line: u64,
}

impl Frame {
    /// Creates a frame from a function, a file and a line.
    pub fn new(name: impl Into<String>, file: impl Into<String>, line: u64) -> Self {
        Self { name: name.into(), file: file.into(), line }
    }
}

/// Captures call stacks for recorders. By default, a recorder captures Rust's call stacks. The Python package
/// installs a source that captures Python's frames instead.
pub trait StackSource: Send + Sync {
    /// Captures the call stack of the calling thread, and returns the number of this call stack. Equal call
    /// stacks have the same number. The number 0 means that there is no call stack.
    ///
    /// A recorder calls this method in each recorded call, and holds no lock during the call.
    fn capture(&self) -> u64;

    /// Returns the frames of a captured call stack, innermost first.
    ///
    /// The thread that answers `millpond-replay top` calls this method, too. If the method then waits for a
    /// lock that a forking thread holds, the fork takes up to a second longer.
    fn frames(&self, stack: u64) -> Vec<Frame>;
}

static SOURCE: RwLock<Option<Arc<dyn StackSource>>> = RwLock::new(None);

/// Sets the source of call stacks for all recorders that are created later. Returns the previous source.
/// `None` stands for Rust's call stacks.
pub fn set_stack_source(source: Option<Arc<dyn StackSource>>) -> Option<Arc<dyn StackSource>> {
    std::mem::replace(&mut *SOURCE.write(), source)
}

pub(super) fn source() -> Arc<dyn StackSource> {
    static NATIVE: LazyLock<Arc<Native>> = LazyLock::new(Arc::default);
    SOURCE.read().clone().unwrap_or_else(|| Arc::clone(&*NATIVE) as _)
}

impl fmt::Debug for dyn StackSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StackSource")
    }
}

/// The most frames of a stack that are kept, from the innermost on.
const MOST_FRAMES: usize = 128;

/// The most different stacks that are kept.
const MOST_STACKS: usize = 1 << 20;

/// The stacks of Rust, as addresses in the program.
#[derive(Default)]
struct Native(Mutex<Stacks>);

#[derive(Default)]
struct Stacks {
    numbers: FxHashMap<Arc<[usize]>, u64>,
    stacks: Vec<Arc<[usize]>>,
}

impl StackSource for Native {
    fn capture(&self) -> u64 {
        let mut addresses = Vec::with_capacity(MOST_FRAMES);
        backtrace::trace(|frame| {
            // The return address belongs to the instruction after the call.
            addresses.push((frame.ip() as usize).saturating_sub(1));
            addresses.len() < MOST_FRAMES
        });
        let mut stacks = self.0.lock();
        if let Some(number) = stacks.numbers.get(&addresses[..]) {
            return *number;
        }
        if stacks.stacks.len() == MOST_STACKS {
            return 0;
        }
        let addresses = Arc::<[usize]>::from(addresses);
        stacks.stacks.push(Arc::clone(&addresses));
        let number = stacks.stacks.len() as u64;
        stacks.numbers.insert(addresses, number);
        number
    }

    fn frames(&self, stack: u64) -> Vec<Frame> {
        let index = stack.checked_sub(1).and_then(|index| usize::try_from(index).ok());
        let addresses = index.and_then(|index| self.0.lock().stacks.get(index).cloned());
        let mut frames = Vec::new();
        for address in addresses.iter().flat_map(|addresses| &**addresses) {
            backtrace::resolve(*address as *mut _, |symbol| {
                frames.push(Frame {
                    name: symbol.name().map(|name| format!("{name:#}")).unwrap_or_default(),
                    file: symbol.filename().map(|file| file.display().to_string()).unwrap_or_default(),
                    line: symbol.lineno().map_or(0, u64::from),
                });
            });
        }
        // The frames of the recorder are not the caller's.
        let is_own = |frame: &Frame| {
            let parts = ["millpond_adaptors::recording::", "millpond_core::", "DeviceMemoryResource"];
            let is_ours = parts.iter().any(|part| frame.name.contains(part));
            frame.name.starts_with("backtrace::") || (is_ours && !frame.name.contains("::tests::"))
        };
        // Between them are frames of the standard library, such as `Result::map_err`.
        let is_std = |frame: &Frame| ["core::", "std::"].iter().any(|start| frame.name.starts_with(start));
        let first = frames.iter().take_while(|frame| is_own(frame) || is_std(frame)).count();
        let own = frames[..first].iter().rposition(is_own).map_or(0, |last| last + 1);
        if own < frames.len() {
            frames.drain(..own);
        }
        frames
    }
}

/// Writes frames like a backtrace of the standard library.
pub(super) fn text_of_frames(frames: &[Frame]) -> String {
    let mut text = String::new();
    for (number, Frame { name, file, line }) in frames.iter().enumerate() {
        let _ = writeln!(text, "{number:4}: {name}");
        if !file.is_empty() {
            let _ = writeln!(text, "             at {file}:{line}:0");
        }
    }
    text
}

/// Reads the frames in the text of a backtrace of the standard library.
pub(super) fn frames_of_text(text: &str) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if let Some(place) = line.strip_prefix("at ") {
            let mut parts = place.rsplitn(3, ':').skip(1);
            let (number, file) = (parts.next(), parts.next());
            if let (Some(last), Some(number), Some(file)) = (frames.last_mut(), number, file) {
                (last.file, last.line) = (file.to_owned(), number.parse().unwrap_or(0));
            }
        } else if let Some((_, name)) = line.split_once(": ") {
            frames.push(Frame { name: name.to_owned(), ..Frame::default() });
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(miri))]
    #[inline(never)]
    fn captured_here(native: &Native) -> u64 {
        native.capture()
    }

    #[test]
    #[cfg(not(miri))] // Miri has no addresses of machine code.
    fn equal_stacks_have_one_number() {
        let native = Native::default();
        let captured: Vec<u64> = (0..3).map(|_| captured_here(&native)).collect();
        assert_eq!(captured, [captured[0]; 3]);
        assert_ne!(native.capture(), captured[0]);
        let frames = native.frames(captured[0]);
        assert!(frames.iter().any(|frame| frame.name.contains("equal_stacks_have_one_number")), "{frames:?}");
        assert!(native.frames(0).is_empty() && native.frames(1 << 40).is_empty());
    }

    #[test]
    fn a_backtrace_in_text_has_its_frames() {
        let text = "   0: core::ops::function\n             at /rustc/lib.rs:250:5\n   1: main\n";
        let frame = |name: &str, file: &str, line| Frame { name: name.into(), file: file.into(), line };
        let expected = [frame("core::ops::function", "/rustc/lib.rs", 250), frame("main", "", 0)];
        assert_eq!(frames_of_text(text), expected);
        assert_eq!(frames_of_text(&text_of_frames(&expected)), expected);
        assert!(frames_of_text("no backtrace").is_empty());
    }
}
