//! Writes a long log to the standard output; the arguments are the numbers of rows and threads. To time the
//! default run with ten million rows:
//!
//! ```sh
//! cargo run --release -p millpond-replay --example long_log -- 10000000 8 >long.csv
//! time cargo run --release -p millpond-replay -- --device sim:h200 long.csv
//! ```

mod rows;

use std::io::{self, BufWriter};
use std::process::ExitCode;

fn main() -> ExitCode {
    let numbers: Option<Vec<u64>> = std::env::args().skip(1).map(|text| text.parse().ok()).collect();
    let Some([rows, threads @ 1..=rows::LIVE]) = numbers.as_deref() else {
        eprintln!("long_log ROWS THREADS, as in `long_log 10000000 8`; at most {} threads", rows::LIVE);
        return ExitCode::from(2);
    };
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    match rows::write(&mut out, *rows, *threads) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the log cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}
