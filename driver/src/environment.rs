//! The environment variables that choose the default device.

use std::sync::OnceLock;

use millpond_core::environment::variable;

/// Names the default device, as [`DeviceSpec`](crate::DeviceSpec) reads it: `cuda:1`, `sim:8GiB`.
pub(crate) const DEVICE_VARIABLE: &str = "MILLPOND_DEVICE";
/// The number of a process among all that a launcher (`torchrun`, `accelerate`) started on this machine.
pub(crate) const RANK_VARIABLE: &str = "LOCAL_RANK";

/// The two variables. An empty variable counts as unset, and so does a rank that is not a number.
#[derive(Default, Debug)]
pub(crate) struct Environment {
    pub(crate) device: Option<String>,
    pub(crate) rank: Option<u32>,
}

impl Environment {
    /// The variables at the first call, which decides for the rest of the process.
    pub(crate) fn get() -> &'static Self {
        static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
        // A value that is not text names no device: the error lists the valid values.
        ENVIRONMENT.get_or_init(|| Self::read(|name| Some(variable(name)?.to_string_lossy().into_owned())))
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let rank = text(RANK_VARIABLE).and_then(|rank| rank.parse().ok());
        Self { device: text(DEVICE_VARIABLE), rank }
    }

    /// The device ordinal for the rank among `count` devices. A process that sees one device uses it, because
    /// its launcher chose it through `CUDA_VISIBLE_DEVICES`.
    pub(crate) fn ordinal_among(&self, count: u32) -> u32 {
        self.rank.filter(|_| count > 1).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(device: &str, rank: &str) -> Environment {
        Environment::read(|name| Some(if name == RANK_VARIABLE { rank } else { device }.to_owned()))
    }

    #[test]
    fn an_empty_variable_is_unset() {
        for empty in ["", "  "] {
            let read = read(empty, empty);
            assert_eq!((read.device, read.rank), (None, None));
        }
        let unset = Environment::read(|_| None);
        assert_eq!((unset.device, unset.rank), (None, None));
    }

    #[test]
    fn a_rank_names_its_device_unless_there_is_one() {
        for (rank, count, ordinal) in
            [("1", 2, 1), ("1", 1, 0), ("3", 2, 3), ("", 2, 0), ("two", 4, 0), (" 2 ", 4, 2)]
        {
            assert_eq!(read("", rank).ordinal_among(count), ordinal, "{rank:?} of {count}");
        }
        assert_eq!(read(" sim:8GiB ", "1").device.as_deref(), Some("sim:8GiB"));
    }
}
