//! Reads the numbers, texts and objects that Python passes.
//!
//! The error for a wrong argument names the argument, and shows the allowed values and the value passed.

use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::type_object::PyTypeCheck;

/// Describes the values of an argument for a resource. `millpond._arguments` has the same text.
pub(crate) const RESOURCE: &str = "a millpond resource, such as millpond.stack(\"cuda+pool\")";

const ADDRESS: &str = "an address as a number, from 0 to 2**64 - 1";
/// The values that `prefetch` and `__dlpack__` allow.
pub(crate) const DESTINATION: &str = "the number of the memory's own device, -1 for the host, or None";
pub(crate) const DL_STREAM: &str = "the handle of a stream, from 1; -1 for no stream; or None";
const BYTES: &str = "a whole number of bytes, 0 or more";

/// Makes the error of the class `E` for a wrong argument.
#[cold]
pub(crate) fn wrong<E: PyTypeInfo>(given: &Bound<'_, PyAny>, name: &str, allowed: &str) -> PyErr {
    let py = given.py();
    let make = || {
        let arguments = (E::type_object(py), name, allowed, given);
        py.import("millpond._arguments")?.getattr("wrong")?.call1(arguments)
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

/// Replaces Python's error for an object that was not converted. Other errors, for instance Ctrl-C in the
/// object's `__index__`, stay.
#[cold]
pub(crate) fn refused(error: PyErr, given: &Bound<'_, PyAny>, name: &str, allowed: &str) -> PyErr {
    let py = given.py();
    if error.is_instance_of::<PyOverflowError>(py) {
        wrong::<PyOverflowError>(given, name, allowed)
    } else if error.is_instance_of::<PyTypeError>(py) {
        wrong::<PyTypeError>(given, name, allowed)
    } else if error.is_instance_of::<PyValueError>(py) {
        wrong::<PyValueError>(given, name, allowed)
    } else {
        error
    }
}

/// Converts an argument. A number outside of the range of `T` raises `OverflowError`, as in RMM.
#[inline]
pub(crate) fn read<'py, T>(given: &Bound<'py, PyAny>, name: &str, allowed: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    given.extract().map_err(|error| refused(error, given, name, allowed))
}

/// Returns an argument as an object of the class `T`.
pub(crate) fn instance<'a, 'py, T: PyTypeCheck>(
    given: &'a Bound<'py, PyAny>,
    name: &str,
    allowed: &str,
) -> PyResult<&'a Bound<'py, T>> {
    given.cast().map_err(|_| wrong::<PyTypeError>(given, name, allowed))
}

/// Reads a size. A size beyond 2^64 becomes the largest one. The resource then has no memory for it, and the
/// program gets the `MemoryError` of any request that is too large. A negative size raises `OverflowError`,
/// as in RMM.
#[inline]
fn size(given: &Bound<'_, PyAny>, name: &str) -> PyResult<u64> {
    given.extract().or_else(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(given.py()) && given.gt(0)? {
            return Ok(u64::MAX);
        }
        Err(refused(error, given, name, BYTES))
    })
}

/// Makes the functions that read an argument with a known name.
macro_rules! readers {
    ($($reader:ident($name:literal) -> $type:ty = $read:ident($($allowed:expr)?);)*) => {$(
        #[inline]
        pub(crate) fn $reader(given: &Bound<'_, PyAny>) -> PyResult<$type> {
            $read(given, $name $(, $allowed)?)
        }
    )*};
}

readers! {
    alignment("alignment") -> u64 = read("an alignment in bytes, a power of 2; or 0 for the default");
    copy("copy") -> Option<bool> = read("True, False or None");
    destination("device") -> Option<i32> = read(DESTINATION);
    device_name("name") -> Option<String> = read("a text such as \"cuda:1\" or \"sim:8GiB\", or None");
    dl_device("dl_device") -> Option<(i32, i32)> = read("a device's type and its number, as a pair, or None");
    dl_stream("stream") -> Option<i64> = read(DL_STREAM);
    flags("flags") -> Option<u32> = read("a CudaStreamFlags, or None");
    keep_bytes("keep_bytes") -> u64 = size();
    max_version("max_version") -> Option<(u32, u32)> = read("a pair of numbers such as (1, 0), or None");
    nbytes("nbytes") -> u64 = size();
    new_capacity("new_capacity") -> u64 = size();
    new_size("new_size") -> u64 = size();
    ordinal("ordinal") -> u32 = read("the number of a device; the first device is 0");
    protocol("protocol") -> i32 = read("the number of a protocol of pickle");
    ptr("ptr") -> usize = read(ADDRESS);
    buffer_size("size") -> u64 = size();
    value("value") -> u8 = read("the value of a byte, from 0 to 255");
}
