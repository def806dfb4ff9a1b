//! The call stacks of the Python interpreter, for the history of events.
//!
//! A call stack is captured as its code objects and positions, which takes a microsecond. The names and lines
//! are looked up later, when a snapshot is written.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::null;
use std::sync::LazyLock;

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;

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

#[derive(Default)]
struct Stacks {
    numbers: HashMap<Box<[Place]>, u64, BuildHasherDefault<Mix>>,
    stacks: Vec<Box<[Place]>>,
}

/// A thread locks the table only while it holds the GIL, and calls no Python function while it holds the
/// lock.
static STACKS: LazyLock<PerProcess<Mutex<Stacks>>> = LazyLock::new(|| PerProcess(Default::default()));

thread_local! {
    /// An empty list for the frames of the next call stack, so that a capture allocates no memory.
    static SPARE: Cell<Vec<Place>> = const { Cell::new(Vec::new()) };
}

/// Captures the calling thread's Python call stack. If the thread runs no Python code, returns 0.
pub(crate) extern "C" fn capture() -> u64 {
    gil::attached(|_| {
        let mut places = SPARE.try_with(Cell::take).unwrap_or_default();
        // Python may collect garbage during this call, and so run any code on any thread. That code may free
        // a block, and then capture a call stack here, too. So no lock is held.
        walk(&mut places);
        let number = number_of(&mut places);
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

/// Returns the number of a call stack. Returns 0 if the stack is empty, or if the table is full. If the stack
/// is new, the table keeps its references, and `places` is empty afterwards.
fn number_of(places: &mut Vec<Place>) -> u64 {
    let mut table = STACKS.get().lock();
    let Stacks { numbers, stacks } = &mut *table;
    if let Some(number) = numbers.get(&places[..]) {
        return *number;
    }
    if places.is_empty() || stacks.len() == MOST_STACKS {
        return 0;
    }
    let kept: Box<[Place]> = places.as_slice().into();
    places.clear();
    stacks.push(kept.clone());
    numbers.insert(kept, stacks.len() as u64);
    stacks.len() as u64
}

/// Names the frames of a captured call stack.
pub(crate) extern "C" fn frames(stack: u64, list: Raw, add: Option<AddFrameFunction>) {
    let Some(add) = add else { return };
    gil::attached(|py| {
        let index = stack.checked_sub(1).and_then(|index| usize::try_from(index).ok());
        let places = index.and_then(|index| STACKS.get().lock().stacks.get(index).cloned());
        for (code, position) in places.iter().flat_map(|places| places.iter()) {
            let code = object(*code);
            // SAFETY: the table keeps the code object.
            let object = unsafe { Bound::from_borrowed_ptr(py, code) };
            let text = |name: &str| object.getattr(name).and_then(|text| text.extract::<String>()).ok();
            let name = text("co_qualname").map(|text| c_text(&text));
            let file = text("co_filename").map(|text| c_text(&text));
            // SAFETY: it is a code object, and the GIL is held.
            let line = unsafe { PyCode_Addr2Line(code.cast(), *position) };
            let pointer = |text: &Option<std::ffi::CString>| text.as_ref().map_or(null(), |it| it.as_ptr());
            add(list, pointer(&name), pointer(&file), u64::try_from(line).unwrap_or(0));
        }
    });
}
