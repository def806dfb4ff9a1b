//! Sizes on the command line.

use clap::Args;
use millpond_core::{Error, Result, format_bytes, parse_bytes, parse_memory};
use millpond_snapshot::explain::{self, Explanation};
use millpond_snapshot::recording::Recording;

/// The size of the device, for the commands that explain a file.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct DeviceMemoryArgs {
    /// The size of the device's memory, as in 80GiB; with this option, the explanation also shows how much
    /// memory is used outside of the allocator
    #[arg(long, value_name = "SIZE", value_parser = device_memory)]
    device_memory: Option<u64>,
}

impl DeviceMemoryArgs {
    /// Explains a recording.
    ///
    /// # Errors
    /// The size of the device contradicts the file.
    pub(super) fn explain(&self, recording: &Recording) -> Result<Explanation> {
        let explanation = explain::explain(recording, self.device_memory);
        if let Some(bytes) = self.device_memory {
            explanation.check_device_bytes(bytes).map_err(|why| {
                Error::invalid_argument(format!("--device-memory: {}: {why}", recording.file()))
            })?;
        }
        Ok(explanation)
    }
}

/// No device has less memory than this. If the user writes less, the user most likely forgot the unit.
const SMALLEST_DEVICE: u64 = 1 << 20;

fn device_memory(text: &str) -> std::result::Result<u64, String> {
    let bytes = parse_bytes(text).map_err(|error| error.message().to_owned())?;
    if bytes < SMALLEST_DEVICE {
        let size = format_bytes(bytes);
        return Err(format!(
            "`{text}` is {size}, which is less than any device has; add the unit, as in 80GiB"
        ));
    }
    Ok(bytes)
}

/// Parses an amount of memory. The error is the message alone, because clap names the option.
pub(super) fn memory(text: &str) -> std::result::Result<u64, String> {
    parse_memory(text).map_err(|error| error.message().to_owned())
}
