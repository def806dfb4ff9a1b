//! Tests of the entry points and of the judge.

mod calls;
mod driver;
mod found;
mod host;
