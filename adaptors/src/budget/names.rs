//! The names of the live budgets of each device.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use millpond_core::{DeviceId, Driver, Error, Result};
use parking_lot::Mutex;

use super::account::BudgetNode;
use super::settings::Settings;

static NAMES: Mutex<BTreeMap<(DeviceId, String), Weak<BudgetNode>>> = Mutex::new(BTreeMap::new());

/// Returns the budget with this name on the driver's device. Creates it if there is none.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the budget has other settings, if there
/// is no such parent, or if a guarantee is too large; the driver's errors, if a size is a percentage.
pub(crate) fn open(settings: Settings, driver: &dyn Driver) -> Result<Arc<BudgetNode>> {
    let device = driver.device();
    if settings.name.is_empty() {
        return Err(Error::invalid_argument("the name of a budget is empty; write for example name=etl"));
    }
    let (limit, guaranteed) = (settings.limit.resolve(driver)?, settings.guaranteed.resolve(driver)?);
    let find = |names: &BTreeMap<_, Weak<BudgetNode>>, name: &str| {
        names.get(&(device, name.to_owned())).and_then(Weak::upgrade)
    };
    // Declared before the lock, so that the last handle of a budget is dropped after the lock.
    let (known, parent);
    let mut names = NAMES.lock();
    known = find(&names, &settings.name);
    if let Some(known) = &known {
        return if known.settings == settings {
            Ok(Arc::clone(known))
        } else {
            Err(differs(known, &settings))
        };
    }
    names.retain(|_, budget| budget.strong_count() > 0);
    parent = settings.parent.as_deref().and_then(|name| find(&names, name));
    if let (Some(name), None) = (&settings.parent, &parent) {
        let live = names.keys().filter(|(on, _)| *on == device).map(|(_, name)| name.as_str());
        return Err(no_parent(&settings.name, name, device, &live.collect::<Vec<_>>()));
    }
    let node = BudgetNode::new(settings, limit, guaranteed, parent.clone())?;
    names.insert((device, node.settings.name.clone()), Arc::downgrade(&node));
    Ok(node)
}

/// Returns all live budgets, ordered by device and name.
pub(crate) fn all() -> Vec<(DeviceId, Arc<BudgetNode>)> {
    let names = NAMES.lock();
    names.iter().filter_map(|((device, _), budget)| Some((*device, budget.upgrade()?))).collect()
}

/// Returns how many names of the device are kept.
#[cfg(test)]
pub(crate) fn count(device: DeviceId) -> usize {
    NAMES.lock().keys().filter(|(on, _)| *on == device).count()
}

fn differs(known: &BudgetNode, settings: &Settings) -> Error {
    Error::invalid_argument(format!(
        "there is a budget `{}` with other options: `{}`, not `{settings}`; give the same options, or \
         another name",
        settings.name, known.settings
    ))
}

fn no_parent(name: &str, parent: &str, device: DeviceId, live: &[&str]) -> Error {
    let live = if live.is_empty() { "none".to_owned() } else { live.join(", ") };
    Error::invalid_argument(format!(
        "the budget `{name}` has the parent `{parent}`, and {device} has no budget of this name (it has: \
         {live}); build a stack with `budget:name={parent}` first, and keep it"
    ))
}
