//! Which items of services the module of a package re-exports.
//!
//! The service `Greeter` has three such items: `Greeter`, `GreeterClient` and `GreeterServer`. If a message
//! or another service has one of these names, the item remains in its own module.

use std::collections::HashMap;

/// The items that are not re-exported.
#[derive(Debug, Default)]
pub(crate) struct Reexports {
    /// By the full name of the service.
    left_out: HashMap<String, Vec<LeftOut>>,
}

/// An item of a service that is not re-exported.
#[derive(Clone, Debug)]
pub(crate) struct LeftOut {
    /// `GreeterClient`.
    pub(crate) name: String,
    /// What has the name in the module of the package: "message `demo.GreeterClient`".
    pub(crate) holder: String,
}

impl Reexports {
    /// Leaves out the item `name` of `service`, because `holder` has its name.
    pub(crate) fn leave_out(&mut self, service: &str, name: &str, holder: &str) {
        let left_out = self.left_out.entry(service.to_owned()).or_default();
        left_out.push(LeftOut {
            name: name.to_owned(),
            holder: holder.to_owned(),
        });
    }

    /// Returns the items of `service` that are not re-exported.
    pub(crate) fn left_out(&self, service: &str) -> Vec<LeftOut> {
        self.left_out.get(service).cloned().unwrap_or_default()
    }
}
