//! Tests of the binary and of the library behind it.

mod standard_streams;
mod support;

mod advice;
mod bad_input;
mod bench;
mod book;
mod busy;
mod calibrate;
mod explain;
mod export;
mod failed_rows;
mod gate;
mod import;
mod long_run;
mod memory;
mod one_answer;
mod one_reading;
mod overwrite;
mod own_layers;
mod page;
mod plan;
mod replay;
mod terminal;
mod top;
mod tune;
