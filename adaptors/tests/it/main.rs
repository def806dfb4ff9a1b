//! Tests of adaptors over the resources of millpond: texts, pages of documentation, the contract, reports.

mod backtraces;
mod builders;
mod conformance;
mod debug_log;
mod find_trait;
mod layer_docs;
mod stack_files;
mod stack_text;
mod statistics;
