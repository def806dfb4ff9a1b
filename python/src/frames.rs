//! The call stacks of the Python interpreter, for the history of events.
//!
//! A stack is captured as its code objects and positions, which takes a microsecond. The names and lines of a
//! position are looked up once, by the thread that first captures it. So a thread that writes a snapshot or
//! answers `millpond-replay top` never waits for the GIL, which a forking thread may hold.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::null;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::api::{AddFrameFunction, PerProcess, Raw, c_text};
use crate::gil;

unsafe extern "C" {
    // Python has had these functions since 3.11, but not in its stable interface.
    fn PyFrame_GetBack(frame: *mut ffi::PyFrameObject) -> *mut ffi::PyFrameObject;
    fn PyFrame_GetLasti(frame: *mut ffi::PyFrameObject) -> c_int;
    fn PyCode_Addr2Line(code: *mut ffi::PyCodeObject, byte_offset: c_int) -> c_int;
}

/// The most frames of a call stack that are kept, counted from the innermost frame.
const MOST_FRAMES: usize = 256;

/// The most different call stacks that are kept.
const MOST_STACKS: usize = 1 << 20;

/// A frame: the address of its code object, which is kept alive, and the position in it.
type Place = (usize, c_int);

/// Hashes the words of a call stack. Code objects have different addresses, so little mixing is enough.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_i32(&mut self, word: i32) {
        self.write_u64(word as u64);
    }
}

/// The texts of a frame.
struct Named {
    name: Option<CString>,
    file: Option<CString>,
    line: u64,
}

#[derive(Default)]
struct Stacks {
    /// Each place keeps a reference to its code object, so no other object gets the address.
    named: HashMap<Place, Arc<Named>, BuildHasherDefault<Mix>>,
    numbers: HashMap<Box<[Place]>, u64, BuildHasherDefault<Mix>>,
    stacks: Vec<Arc<[Arc<Named>]>>,
}

/// Threads call no function of Python while they lock it, because that may run any code.
static STACKS: LazyLock<PerProcess<Mutex<Stacks>>> = LazyLock::new(|| PerProcess(Default::default()));

thread_local! {
    /// An empty list for the frames of the next call stack, so that a capture allocates no memory.
    static SPARE: Cell<Vec<Place>> = const { Cell::new(Vec::new()) };
}

/// Captures the calling thread's Python call stack. If the thread runs no Python code, returns 0.
pub(crate) extern "C" fn capture() -> u64 {
    if !gil::has_state() {
        return 0;
    }
    gil::attached(|py| {
        let mut places = SPARE.try_with(Cell::take).unwrap_or_default();
        // Python may collect garbage during this call, and so run any code on any thread. That code may free
        // a block, and then capture a call stack here, too. So no lock is held.
        walk(&mut places);
        let number = number_of(py, &places);
        for (code, _) in places.drain(..) {
            // SAFETY: this thread holds the GIL, and `walk` took this reference.
            unsafe { ffi::Py_DECREF(object(code)) };
        }
        let _ = SPARE.try_with(|spare| spare.set(places));
        number
    })
    .unwrap_or(0)
}

fn object(code: usize) -> *mut ffi::PyObject {
    std::ptr::with_exposed_provenance_mut(code)
}

/// Adds the places of the calling thread's frames, the innermost first. Each place holds a reference to its
/// code object. The caller holds the GIL.
fn walk(places: &mut Vec<Place>) {
    // SAFETY: the caller holds the GIL. `PyEval_GetFrame` borrows a frame, and the other functions return
    // references. Those to frames end here.
    unsafe {
        let mut frame = ffi::PyEval_GetFrame();
        ffi::Py_XINCREF(frame.cast());
        while !frame.is_null() && places.len() < MOST_FRAMES {
            let code = ffi::PyFrame_GetCode(frame);
            places.push((code.expose_provenance(), PyFrame_GetLasti(frame)));
            let back = PyFrame_GetBack(frame);
            ffi::Py_DECREF(frame.cast());
            frame = back;
        }
        ffi::Py_XDECREF(frame.cast());
    }
}

/// Returns the number of a stack; 0 for an empty one, or if the table is full. The caller keeps the code
/// objects alive.
fn number_of(py: Python<'_>, places: &[Place]) -> u64 {
    let mut unnamed: Vec<Place> = {
        let Stacks { named, numbers, stacks } = &*STACKS.get().lock();
        if let Some(number) = numbers.get(places) {
            return *number;
        }
        if places.is_empty() || stacks.len() >= MOST_STACKS {
            return 0;
        }
        places.iter().filter(|place| !named.contains_key(place)).copied().collect()
    };
    // A function that calls itself has one place many times.
    unnamed.sort_unstable();
    unnamed.dedup();
    let named: Vec<_> = unnamed.into_iter().map(|place| (place, Arc::new(name(py, place)))).collect();
    STACKS.get().lock().add(places, named)
}

/// Looks up the texts of a frame. The caller keeps the code object alive.
fn name(py: Python<'_>, (code, position): Place) -> Named {
    let code = object(code);
    // SAFETY: the caller keeps it alive.
    let object = unsafe { Bound::from_borrowed_ptr(py, code) };
    let text = |name: &Bound<'_, PyString>| {
        object.getattr(name).and_then(|text| text.extract::<String>()).ok().map(|text| c_text(&text))
    };
    // SAFETY: it is a code object, and the GIL is held.
    let line = unsafe { PyCode_Addr2Line(code.cast(), position) };
    Named {
        name: text(intern!(py, "co_qualname")),
        file: text(intern!(py, "co_filename")),
        line: u64::try_from(line).unwrap_or(0),
    }
}

impl Stacks {
    /// Adds a stack, with the texts of places that were not known before, and returns its number.
    /// The caller holds the GIL, and keeps the code objects alive.
    fn add(&mut self, places: &[Place], fresh: Vec<(Place, Arc<Named>)>) -> u64 {
        let Self { named, numbers, stacks } = self;
        for (place, texts) in fresh {
            named.entry(place).or_insert_with(|| {
                // SAFETY: the caller holds the GIL, and keeps the code object alive.
                unsafe { ffi::Py_INCREF(object(place.0)) };
                texts
            });
        }
        *numbers.entry(places.into()).or_insert_with(|| {
            stacks.push(places.iter().filter_map(|place| named.get(place).cloned()).collect());
            stacks.len() as u64
        })
    }
}

/// Lists the frames of a captured stack. It does not need the GIL.
pub(crate) extern "C" fn frames(stack: u64, list: Raw, add: Option<AddFrameFunction>) {
    let (Some(add), Some(index)) = (add, stack.checked_sub(1)) else { return };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let named = STACKS.get().lock().stacks.get(index).cloned();
    for Named { name, file, line } in named.iter().flat_map(|stack| stack.iter().map(|frame| &**frame)) {
        let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
        add(list, pointer(name), pointer(file), *line);
    }
}
