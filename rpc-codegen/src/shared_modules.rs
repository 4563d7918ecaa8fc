//! Moves types nested in a message to the package whose module has the same name.
//!
//! Package `plant` may have a message `Valve` with nested types, beside a package `plant.valve`. prost writes
//! a module `valve` into the file of `plant`, and users include `plant.valve` in another module of that
//! name. Both names are right: prost's paths are relative, and both modules are in that of `plant`. So
//! the contents of the first module move to the file of `plant.valve`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

use prost_build::Module;
use syn::Item;

/// Adds the modules that contain those of packages: `a.b` if there are only `a` and `a.b.c`. `names` has
/// the names of the packages.
pub(crate) fn add_outer(names: &mut BTreeMap<Module, String>) {
    for (module, name) in names.clone() {
        for len in 1..module.len() {
            let outer = Module::from_parts(module.parts().take(len));
            let name = || name.split('.').take(len).collect::<Vec<_>>().join(".");
            names.entry(outer).or_insert_with(name);
        }
    }
}

/// The types that move.
pub(crate) struct SharedModules {
    /// The modules of packages, and those that contain them.
    modules: BTreeSet<Module>,
    /// What has been taken out of other modules, by the modules to which it goes.
    moved: HashMap<Module, Vec<Item>>,
}

impl SharedModules {
    pub(crate) fn new(names: &BTreeMap<Module, String>) -> Self {
        Self {
            modules: names.keys().cloned().collect(),
            moved: HashMap::new(),
        }
    }

    /// Moves items out of a module and into it. The modules that contain `module` come before it.
    pub(crate) fn merge(&mut self, module: &Module, items: &mut Vec<Item>) {
        items.extend(self.moved.remove(module).unwrap_or_default());
        for item in mem::take(items) {
            let Item::Mod(inner) = item else {
                items.push(item);
                continue;
            };
            let path = module.parts().map(str::to_owned);
            let path = Module::from_parts(path.chain([inner.ident.to_string()]));
            if self.modules.contains(&path) {
                let content = inner.content.into_iter().flat_map(|(_, items)| items);
                self.moved.entry(path).or_default().extend(content);
            } else {
                items.push(Item::Mod(inner));
            }
        }
    }
}
