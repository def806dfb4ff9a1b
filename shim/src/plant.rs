//! Faults of the simulated device that the judge plants under an allocator, to see that it finds them.

use std::ffi::{c_int, c_uint};
use std::str::FromStr;

use crate::calls::Handle;
use crate::entry::EntryPoints;

/// A planted fault. An allocator that relies on the calls then breaks a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Plant {
    /// A stream that waits for an event goes on at once.
    Waits,
    /// Each query of an event answers that the event is done.
    Queries,
    /// A thread that waits for a stream goes on at once.
    Synchronisations,
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "waits" => Ok(Self::Waits),
            "queries" => Ok(Self::Queries),
            "synchronisations" => Ok(Self::Synchronisations),
            _ => Err(format!("no fault {name}; there are waits, queries and synchronisations")),
        }
    }
}

impl Plant {
    /// The functions of this crate, with the fault.
    pub fn entry_points(self) -> &'static EntryPoints {
        const WAITS: &EntryPoints = &EntryPoints {
            cudaStreamWaitEvent: wait,
            cudaStreamWaitEvent_ptsz: wait,
            cuStreamWaitEvent: wait,
            cuStreamWaitEvent_ptsz: wait,
            ..*EntryPoints::OWN
        };
        const QUERIES: &EntryPoints =
            &EntryPoints { cudaEventQuery: query, cuEventQuery: query, ..*EntryPoints::OWN };
        const SYNCHRONISATIONS: &EntryPoints = &EntryPoints {
            cudaStreamSynchronize: synchronise,
            cudaStreamSynchronize_ptsz: synchronise,
            cuStreamSynchronize: synchronise,
            cuStreamSynchronize_ptsz: synchronise,
            ..*EntryPoints::OWN
        };
        match self {
            Self::Synchronisations => SYNCHRONISATIONS,
            Self::Waits => WAITS,
            Self::Queries => QUERIES,
        }
    }
}

unsafe extern "C" fn wait(_stream: Handle, _event: Handle, _flags: c_uint) -> c_int {
    0
}

unsafe extern "C" fn synchronise(_stream: Handle) -> c_int {
    0
}

unsafe extern "C" fn query(_event: Handle) -> c_int {
    0
}
