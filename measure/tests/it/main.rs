//! Tests the library's examples.

mod peers_report;
