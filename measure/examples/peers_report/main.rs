//! Prints tables and draws plots of the measurements of `benches/peers/run.sh`.
//!
//! ```sh
//! cargo run -p millpond-measure --example peers_report -- results.jsonl --out docs/plots >tables.md
//! ```
//!
//! The tables link to the plots relative to their parent folder.

mod data;
mod plots;
mod tables;

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;

/// Prints tables of the measurements of benches/peers/run.sh, as Markdown, and draws plots
#[derive(Parser)]
struct Args {
    /// The output of run.sh; several files are combined
    #[arg(required = true, value_name = "RESULTS.JSONL")]
    results: Vec<PathBuf>,

    /// The folder for the plots
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut data = data::Data::default();
    for path in &args.results {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        data.read(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    print!("{}", tables::markdown(&data));
    if let Some(folder) = args.out {
        std::fs::create_dir_all(&folder)?;
        println!();
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        for file in plots::draw(&data, &folder)? {
            println!("![{}]({name}/{file})", file.trim_end_matches(".svg"));
        }
    }
    Ok(())
}
