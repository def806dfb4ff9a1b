//! Tests plans against an exhaustive search, bounds, and files of minimalloc.

mod csv;
mod minimalloc;
mod oracle;
mod program;
