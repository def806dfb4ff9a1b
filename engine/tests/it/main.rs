//! Tests of the library.

mod kills;
mod properties;
