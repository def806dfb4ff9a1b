//! The result of measuring a device.

use std::collections::BTreeMap;

use millpond_driver::CallKind;
use millpond_driver::sim::Profile;

/// The measured costs of a device, and descriptions of the samples.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The profile with which a device like this one can be simulated.
    pub profile: Profile,
    /// The descriptions of the samples, by field and bytes.
    pub(super) comments: BTreeMap<(String, Option<u64>), String>,
}

impl Calibration {
    /// Adds the factor of a kind of calls to the descriptions of its samples.
    pub(super) fn note_factor(&mut self, kind: CallKind, factor: f64) {
        let name = kind.name();
        let is_of_kind =
            |field: &str| field == format!("calls_ns.{name}") || field.split('.').next() == Some(name);
        for (_, text) in self.comments.iter_mut().filter(|((field, _), _)| is_of_kind(field)) {
            *text = format!("{factor:.2} of {text}");
        }
    }

    /// Returns the profile as TOML, with the descriptions of the samples of each cost.
    pub fn to_toml(&self) -> String {
        self.profile.to_toml(|field, bytes| self.comments.get(&(field.to_owned(), bytes)).cloned())
    }
}
