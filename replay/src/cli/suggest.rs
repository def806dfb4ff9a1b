//! What a name that does not exist was probably meant to be.

use std::path::Path;

use millpond_core::Error;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_driver::DeviceSpec;

/// How alike two names are at least, from 0 to 1: clap's own share.
const ALIKE: f64 = 0.7;

/// The simulated devices that have a name.
const DEVICES: [&str; 3] = ["cuda:0", "sim:h200", "sim:a100"];

/// The known name that is most like another one, if any is much like it.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let shares = known.into_iter().map(|known| (strsim::jaro(name, known), known));
    let near = shares.filter(|(share, known)| *share > ALIKE && *known != name);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, known)| known)
}

/// The layer or the parameter that a stack with an error probably means, as words to add to the error.
pub(super) fn of_stack(stack: &StackSpec, table: &LayerTable) -> Option<String> {
    stack.all_layers().into_iter().find_map(|layer| {
        let Ok(entry) = table.get(&layer.name) else {
            let known = table.entries().iter().map(|entry| entry.name);
            return nearest(&layer.name, known).map(|name| format!("did you mean `{name}`?"));
        };
        layer.params.iter().find_map(|(key, _)| {
            let known = entry.params.iter().map(|(name, _)| *name);
            if known.clone().any(|name| name == key) {
                return None;
            }
            nearest(key, known).map(|name| format!("did you mean `{name}`?"))
        })
    })
}

/// Which of the subcommands a file that does not exist probably means.
pub(super) fn of_file(path: &Path, command: &clap::Command) -> Option<String> {
    let name = path.to_str().filter(|name| !name.contains(['/', '\\', '.']))?;
    if path.exists() {
        return None;
    }
    let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    nearest(name, known.iter().copied()).map(|name| {
        format!("there is no such file, and a command of nearly that name: did you mean `{name}`?")
    })
}

/// Reads a device, and says which one a text that is none probably means.
pub(super) fn device(text: &str) -> Result<DeviceSpec, Error> {
    text.parse().map_err(|error: Error| match nearest(&text.to_ascii_lowercase(), DEVICES) {
        Some(name) => Error::invalid_argument(format!("did you mean `{name}`? {error}")),
        None => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_by_a_likely_mistake_and_not_by_another_word() {
        let known = ["pool", "plan", "explain", "cuda_async"];
        for (wrong, right) in [("pol", "pool"), ("explian", "explain"), ("cuda_asnyc", "cuda_async")] {
            assert_eq!(nearest(wrong, known), Some(right));
        }
        assert_eq!(nearest("quantum", known), None);
        assert_eq!(nearest("pool", ["pool"]), None);
    }

    #[test]
    fn a_path_is_no_mistaken_command() {
        let command = clap::Command::new("program").subcommand(clap::Command::new("explain"));
        let of = |name: &str| of_file(Path::new(name), &command);
        assert_eq!((of("./explian"), of("explian.csv"), of("log")), (None, None, None));
        assert!(of("explian").unwrap().contains("did you mean `explain`?"));
    }
}
