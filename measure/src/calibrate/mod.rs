//! Measures the cost of a device's driver calls, and writes a profile for a simulated device.
//!
//! Each call is measured in conditions like in a pool. Many blocks and mappings are live, sequences of calls
//! use up the free memory, other calls come in between, and the device is idle. A cost is the mean of its
//! samples, without the slowest 5 %. Comments in the profile give the medians. At the end, calibration scales
//! the costs of each kind of call to the time that these calls take in pools.
//!
//! | file | measures |
//! |---|---|
//! | `memory` | plain, managed and pinned memory, by size |
//! | `pages` | virtual memory management, by size and by number of mappings |
//! | `calls` | streams, events, pools of the driver, and other calls with a constant cost |
//! | `samples` | one call |
//! | `pools` | a made-up log through pools, on the device and simulated, to scale the costs of each kind |
//! | `check` | logs on the device and on the simulated device, for comparison |

mod calibration;
mod calls;
pub mod check;
mod memory;
mod pages;
mod pools;
mod samples;
mod session;

use millpond_core::driver::DriverResult;
use millpond_core::{DriverHandle, Error, format_bytes};

pub use calibration::Calibration;

use millpond_engine::Result;

use session::Session;

/// The least memory in bytes that the measurement needs.
const LEAST_BYTES: u64 = 256 << 20;

/// Measures the device of this driver. This takes some seconds, and up to 6 GiB of the device's memory.
/// Before each section, calls `say` with the name of the section.
///
/// # Errors
/// The device has too little free memory, or a driver call fails. If the device does not support a call, the
/// profile leaves out the call.
pub fn calibrate(driver: &DriverHandle, say: &mut dyn FnMut(&str)) -> Result<Calibration> {
    let mut session = Session::new(&**driver).map_err(Error::from)?;
    if session.budget < LEAST_BYTES {
        let text = format!(
            "a quarter of the device's free memory is less than {}, which the calibration needs; free some \
             memory",
            format_bytes(LEAST_BYTES)
        );
        return Err(Error::invalid_argument(text).into());
    }
    let sections: [(&str, Section); 6] = [
        ("streams and events", calls::streams_and_events),
        ("other calls", calls::others),
        ("pools of the driver", calls::pools),
        ("plain memory", memory::plain),
        ("managed and pinned memory", memory::host),
        ("virtual memory", pages::all),
    ];
    for (what, measure) in sections {
        say(what);
        match measure(&mut session) {
            Err(error) if error.is_unsupported() => {}
            answer => answer.map_err(Error::from)?,
        }
    }
    let budget = session.budget;
    let mut calibration = session.finish(driver)?;
    if driver.virtual_time_ns().is_none() {
        say("calls of pools");
        pools::scale(&mut calibration, driver, budget)?;
    }
    Ok(calibration)
}

type Section = fn(&mut Session<'_>) -> DriverResult<()>;

#[cfg(test)]
mod tests;
