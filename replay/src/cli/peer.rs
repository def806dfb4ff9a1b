//! The option `--peer`: allocators of other projects, which run as they are.

use std::str::FromStr;

use millpond_core::Result;
use millpond_core::stack::StackSpec;
use millpond_engine::program::LogSummary;

/// An allocator of another project, and the folder where it is installed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    folder: Option<String>,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once('=').unwrap_or((text, "")) {
            ("torch", "") if text.ends_with('=') => {
                Err("the folder is missing: write torch=FOLDER".to_owned())
            }
            ("torch", folder) => Ok(Self { folder: (!folder.is_empty()).then(|| folder.to_owned()) }),
            (name, _) => Err(format!("`{name}` cannot be run; write torch or torch=FOLDER")),
        }
    }
}

impl Peer {
    /// Returns the stack that replays a log, with the settings with which the log was recorded.
    pub(super) fn stack(&self, log: &LogSummary) -> Result<StackSpec> {
        let settings = log.recorded_with.as_deref().and_then(|stack| stack.strip_prefix("torch"));
        let settings = settings.unwrap_or_default();
        match &self.folder {
            None => format!("pytorch{settings}").parse(),
            Some(folder) => {
                let separator = if settings.is_empty() { ':' } else { ',' };
                format!("pytorch{settings}{separator}folder=\"{folder}\"").parse()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_replays_a_log_with_the_settings_of_the_log() {
        let stack = |peer: &str, recorded_with: Option<&str>| {
            let mut log = LogSummary::default();
            log.recorded_with = recorded_with.map(str::to_owned);
            peer.parse::<Peer>().unwrap().stack(&log).unwrap().to_string()
        };
        assert_eq!(stack("torch", None), "pytorch");
        assert_eq!(stack("torch", Some("rmm_pool")), "pytorch");
        let expandable = "torch:expandable_segments=True";
        assert_eq!(stack("torch", Some(expandable)), "pytorch:expandable_segments=True");
        let with_folder = stack("torch=/opt/a+b", Some(expandable));
        assert_eq!(with_folder, "pytorch:expandable_segments=True,folder=\"/opt/a+b\"");
        assert!("rmm".parse::<Peer>().unwrap_err().contains("write torch"));
        assert!("torch=".parse::<Peer>().unwrap_err().contains("folder is missing"));
    }
}
