//! Reads profiles from TOML with serde.

use std::path::Path;

use millpond_core::{Error, Result, small_file};
use serde::Deserialize;

use super::write::FORMAT;
use super::{Costs, Profile};

/// The smallest and largest memory of a simulated device, in bytes.
const LEAST_MEMORY: u64 = 2 << 20;
const MOST_MEMORY: u64 = 1 << 44;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[expect(dead_code, reason = "reading the field checks it")]
    format: Format,
    device: Device,
    costs: Costs,
}

#[derive(Deserialize)]
#[serde(try_from = "u32")]
struct Format;

impl TryFrom<u32> for Format {
    type Error = String;

    fn try_from(version: u32) -> Result<Self, String> {
        let other = || format!("this program reads format {FORMAT}; write the file again with `calibrate`");
        (version == FORMAT).then_some(Self).ok_or_else(other)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    name: Name,
    memory_bytes: Memory,
    multiprocessors: u32,
    compute_capability: (u32, u32),
    measured_on: Option<String>,
}

/// The name of a device, which goes to terminals and into metrics.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let is_shown = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        let wrong = "the name of a device has only printable ASCII characters";
        name.bytes().all(is_shown).then_some(Self(name)).ok_or(wrong)
    }
}

#[derive(Deserialize)]
#[serde(try_from = "u64")]
struct Memory(u64);

impl TryFrom<u64> for Memory {
    type Error = String;

    fn try_from(bytes: u64) -> Result<Self, String> {
        let wrong = || format!("a simulated device has from {LEAST_MEMORY} (2 MiB) to {MOST_MEMORY} bytes");
        (LEAST_MEMORY..=MOST_MEMORY).contains(&bytes).then_some(Self(bytes)).ok_or_else(wrong)
    }
}

pub(super) fn file(path: &Path) -> Result<Profile> {
    let source = path.display().to_string();
    let text = small_file::read(path).map_err(|error| {
        Error::invalid_argument(format!("the profile {source} cannot be read: {error}; check the path"))
    })?;
    parse(&text, &source)
}

pub(super) fn parse(text: &str, source: &str) -> Result<Profile> {
    let file: File = toml::from_str(text)
        .map_err(|error| Error::invalid_argument(describe(&error.to_string(), &error, text, source)))?;
    let Device { name, memory_bytes, multiprocessors, compute_capability: (major, minor), measured_on } =
        file.device;
    let capability = (i64::from(major), i64::from(minor));
    let profile =
        Profile::measured(name.0, memory_bytes.0, multiprocessors.into(), capability, "", file.costs);
    Ok(profile.with_measured_on(measured_on))
}

/// Names the file, the line, the field as written, and the error.
fn describe(whole: &str, error: &toml::de::Error, text: &str, source: &str) -> String {
    let Some(at) = error.span().map(|span| span.start).filter(|at| text.is_char_boundary(*at)) else {
        return format!("the profile {source}: {whole}");
    };
    let number = text[..at].matches('\n').count();
    let line = text.lines().nth(number).unwrap_or_default().trim();
    // A curve's points stand below its field.
    let field = text.lines().take(number + 1).filter(|line| line.contains('=') || line.starts_with('['));
    let field = field.last().unwrap_or_default().trim();
    let of = if field == line { String::new() } else { format!(" of `{field}`") };
    format!("the profile {source}, line {}, `{line}`{of}: {}", number + 1, error.message())
}
