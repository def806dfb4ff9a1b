//! Tests of the library.

mod properties;
