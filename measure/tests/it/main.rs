//! Tests of what belongs to the library and is no part of it.

mod peers_report;
