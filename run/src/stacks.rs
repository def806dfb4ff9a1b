//! Call stacks: native frames, and frames of Python.
//!
//! The calling thread need not hold Python's global lock: PyTorch, for example, releases it before it calls
//! the driver. So this library does not ask Python for its frames. Python's module `faulthandler` prints a
//! thread's frames when the thread gets a signal, and needs no lock for this. The program's `sitecustomize`
//! registers such a signal with a file of this library, and this library sends the signal to the calling
//! thread.

use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::process::id_of;

/// The most native frames of a stack, from the innermost on.
const MOST_FRAMES: usize = 64;

/// One frame of a call stack.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) function: String,
    /// The source file, or else the library; empty for a frame of the program without a source file.
    pub(crate) file: String,
    /// The line, counted from 1; 0 if it is not known.
    pub(crate) line: u64,
    /// The file name of the library or the program that contains a native frame.
    pub(crate) module: String,
}

/// A call stack, innermost frame first.
#[derive(Debug, Default)]
pub(crate) struct Stack {
    pub(crate) frames: Vec<Arc<Frame>>,
    /// The library that asked for memory: the first one that is no part of CUDA's runtime.
    pub(crate) asker: String,
}

/// Captures the call stack of the calling thread, without the frames of this library.
pub(crate) fn capture() -> Stack {
    let mut frames = native();
    let is_cuda = |name: &str| ["libcuda.", "libcudart"].iter().any(|part| name.starts_with(part));
    let mut modules = frames.iter().map(|frame| &frame.module);
    let asker = modules.find(|name| !is_cuda(name)).cloned().unwrap_or_default();
    let python = python();
    if !python.is_empty() {
        // The interpreter's native frames say nothing that Python's frames do not say better.
        let is_interpreter = |frame: &Arc<Frame>| frame.function.starts_with("_PyEval_");
        let end = frames.iter().position(is_interpreter).unwrap_or(frames.len());
        frames.truncate(end);
        frames.extend(python);
    }
    Stack { frames, asker }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// The native frames of the calling thread.
fn native() -> Vec<Arc<Frame>> {
    /// The frames at an address, innermost first; several if functions are inlined there.
    type Names = FxHashMap<usize, Vec<Arc<Frame>>>;
    static FRAMES: LazyLock<RwLock<Names>> = LazyLock::new(RwLock::default);
    let mut addresses = [std::ptr::null_mut::<c_void>(); MOST_FRAMES];
    // SAFETY: the array has the length that is passed.
    let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), MOST_FRAMES as c_int) };
    let addresses = &addresses[..usize::try_from(count).unwrap_or_default()];
    // A return address belongs to the instruction after the call.
    let addresses = || addresses.iter().map(|address| address.addr().saturating_sub(1));
    // The names are found without a lock, because that enters the dynamic linker.
    let new: Vec<usize> = {
        let known = FRAMES.read();
        addresses().filter(|address| !known.contains_key(address)).collect()
    };
    let shared = |address| (address, names(address).into_iter().map(Arc::new).collect());
    let found: Vec<(usize, Vec<Arc<Frame>>)> = new.into_iter().map(shared).collect();
    if !found.is_empty() {
        FRAMES.write().extend(found);
    }
    let known = FRAMES.read();
    addresses().filter_map(|address| known.get(&address)).flatten().cloned().collect()
}

/// Returns the frames at an address; none for an address in this library.
fn names(address: usize) -> Vec<Frame> {
    let of = |address: *const c_void| {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the place is writable, and zeros are a valid value of it.
        unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
    };
    let Some(info) = of(std::ptr::without_provenance(address)) else {
        return vec![Frame { function: format!("{address:#x}"), ..Frame::default() }];
    };
    let own = of(names as *const c_void).map_or(std::ptr::null_mut(), |own| own.dli_fbase);
    if info.dli_fbase == own {
        return Vec::new();
    }
    let text = |text: *const libc::c_char| {
        // SAFETY: the dynamic linker returns null or a C string that lives as long as the library.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
    };
    let file = text(info.dli_fname).map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
    let module = file_name(&file).to_owned();
    let is_program = file == *PROGRAM;
    if is_program {
        let found = of_program(address, &module);
        if !found.is_empty() {
            return found;
        }
    }
    let function = text(info.dli_sname).map(demangled);
    let offset = || format!("{module}+{:#x}", address - info.dli_fbase.addr());
    let function = function.unwrap_or_else(offset);
    vec![Frame { function, file: if is_program { String::new() } else { file }, line: 0, module }]
}

/// The program as the dynamic linker names it.
static PROGRAM: LazyLock<String> =
    LazyLock::new(|| std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned());

/// Returns the frames at an address of the program itself, with their lines if the program has debug
/// information. Libraries are too large for this.
fn of_program(address: usize, module: &str) -> Vec<Frame> {
    let mut found = Vec::new();
    backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
        found.extend(symbol.name().map(|name| Frame {
            function: format!("{name:#}"),
            file: symbol.filename().map(|file| file.display().to_string()).unwrap_or_default(),
            line: symbol.lineno().map_or(0, u64::from),
            module: module.to_owned(),
        }));
    });
    found
}

/// Returns the readable name of a function. The program's C++ library finds it, if it has one.
fn demangled(name: &CStr) -> String {
    type Demangle = unsafe extern "C" fn(
        *const libc::c_char,
        *mut libc::c_char,
        *mut usize,
        *mut c_int,
    ) -> *mut libc::c_char;
    let plain = || name.to_string_lossy().into_owned();
    if !name.to_bytes().starts_with(b"_Z") {
        return plain();
    }
    // SAFETY: the C++ library documents this type for the symbol. It allocates the text with `malloc`.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_demangle".as_ptr());
        if found.is_null() {
            return plain();
        }
        let demangle: Demangle = std::mem::transmute(found);
        let text = demangle(name.as_ptr(), std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        if text.is_null() {
            return plain();
        }
        let readable = CStr::from_ptr(text).to_string_lossy().into_owned();
        libc::free(text.cast());
        readable
    }
}

/// The signal at which Python prints a thread's frames; 0 if there is none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// The address of Python's handler of that signal.
static HANDLER: AtomicUsize = AtomicUsize::new(0);

/// The file into which Python prints, with the process that made it.
struct Printed {
    file: File,
    id: (u64, u64),
    process: u32,
}

/// Makes a file in memory.
fn in_memory() -> Option<File> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"millpond run".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the descriptor is new, so nothing else owns it.
    (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
}

/// The file into which Python prints.
fn printed() -> Option<&'static Mutex<Printed>> {
    static FILE: OnceLock<Option<Mutex<Printed>>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let file = in_memory()?;
        let id = id_of(&file).ok()?;
        Some(Mutex::new(Printed { file, id, process: std::process::id() }))
    });
    file.as_ref()
}

impl Printed {
    /// Returns whether the descriptor still names this library's file. A child of `fork` gets a file of its
    /// own under the same descriptor, because Python knows the descriptor.
    fn is_ours(&mut self) -> bool {
        if id_of(&self.file).ok() != Some(self.id) {
            return false;
        }
        let process = std::process::id();
        if self.process != process {
            let Some(own) = in_memory() else { return false };
            // SAFETY: both descriptors are open, and this library owns them.
            let done = unsafe { libc::dup3(own.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) };
            let Some(id) = id_of(&self.file).ok().filter(|_| done >= 0) else { return false };
            (self.id, self.process) = (id, process);
        }
        true
    }

    /// Lets Python print the frames of the calling thread.
    fn print(&mut self, signal: c_int) -> std::io::Result<String> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        // The handler only writes to the file. It runs before the call returns, on this thread.
        // SAFETY: Python has a handler for the signal.
        if unsafe { libc::raise(signal) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// Returns the descriptor of the file into which Python prints frames; -1 without one.
#[unsafe(no_mangle)]
extern "C" fn millpond_run_python_file() -> c_int {
    printed().map_or(-1, |printed| printed.lock().file.as_raw_fd())
}

/// Says at which signal Python prints the frames of the thread that gets it. Python has set its handler.
#[unsafe(no_mangle)]
extern "C" fn millpond_run_python_signal(signal: c_int) {
    HANDLER.store(handler(signal), Ordering::Release);
    SIGNAL.store(signal, Ordering::Release);
}

/// The Python frames of the calling thread.
fn python() -> Vec<Arc<Frame>> {
    let signal = SIGNAL.load(Ordering::Acquire);
    // Python removes its handlers when it ends, and the program may set another one.
    let is_handled = signal != 0 && handler(signal) == HANDLER.load(Ordering::Acquire);
    if !is_handled || is_blocked(signal) {
        return Vec::new();
    }
    let text = printed().and_then(|printed| {
        let mut printed = printed.lock();
        if printed.is_ours() { printed.print(signal).ok() } else { None }
    });
    let Some(text) = text else { return Vec::new() };
    static FRAMES: LazyLock<Mutex<HashSet<Arc<Frame>>>> = LazyLock::new(Mutex::default);
    let mut known = FRAMES.lock();
    let shared = |frame: Frame| match known.get(&frame) {
        Some(frame) => Arc::clone(frame),
        None => {
            let frame = Arc::new(frame);
            known.insert(Arc::clone(&frame));
            frame
        }
    };
    text.lines().filter_map(frame).map(shared).collect()
}

/// Returns the address of the process's handler of a signal; 0 is the default action.
fn handler(signal: c_int) -> usize {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the place is writable, and zeros are a valid action.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    }
}

/// Returns whether the calling thread blocks a signal, so that it would come later.
fn is_blocked(signal: c_int) -> bool {
    let mut blocked = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the place is writable, and zeros are a valid set.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), blocked.as_mut_ptr()) != 0
            || libc::sigismember(blocked.as_ptr(), signal) != 0
    }
}

/// Reads a line that `faulthandler` prints: `  File "train.py", line 31 in step`.
fn frame(line: &str) -> Option<Frame> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    // `faulthandler` prints `???` for a line that it does not know.
    let (function, file) = (function.to_owned(), file.to_owned());
    Some(Frame { function, file, line: line.parse().unwrap_or(0), ..Frame::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_faulthandler_are_frames() {
        let read = |line| frame(line).map(|frame| (frame.function, frame.file, frame.line));
        let file = |line| Some(("step".to_owned(), "a \", line 3.py".to_owned(), line));
        assert_eq!(read("  File \"a \", line 3.py\", line 31 in step"), file(31));
        assert_eq!(read("  File \"a \", line 3.py\", line ??? in step"), file(0));
        assert_eq!(read("Stack (most recent call first):"), None);
        assert_eq!(read("  ..."), None);
    }
}
