//! The modes of the host. They differ in how far the host runs ahead of the device.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// How far the host (the CPU) runs ahead of the device. The [module](super) explains the modes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Host {
    /// The host waits only if a launch or an allocation makes it wait.
    Ahead,
    /// Before an allocation, the host waits until fewer than [`LEVEL_KERNELS`](Self::LEVEL_KERNELS) kernels
    /// of the stream are unfinished.
    Level,
    /// After each launch, the host waits for the stream.
    Sync,
}

impl Host {
    /// All modes, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Ahead, Self::Level, Self::Sync];

    /// The most unfinished kernels of one stream with [`Level`](Self::Level). `busy.hpp` in `benches/peers`
    /// has the same number.
    pub const LEVEL_KERNELS: usize = 4;

    /// Returns the name of the mode in `--host` and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Level => "level",
            Self::Sync => "sync",
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|host| host.name() == text).ok_or_else(|| {
            format!("`{text}` is not a mode of the host; use {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}
