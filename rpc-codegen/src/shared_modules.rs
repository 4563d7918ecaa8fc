//! Moves types nested in a message to the package whose module has the same name.
//!
//! Package `plant` may have a message `Valve` with nested types, beside a package `plant.valve`. prost writes
//! a module `valve` into the file of `plant`, and users include `plant.valve` in another module of that
//! name. Both names are right: prost's paths are relative, and both modules are in that of `plant`. So
//! the contents of the first module move to the file of `plant.valve`.

use std::collections::BTreeMap;

use prost_build::Module;
use syn::Item;

use crate::error::Error;
use crate::output::Package;

/// Moves the nested types in `packages`. Adds packages such as `a.b`, if `a.b.c` exists and `a` contains a
/// message `B` with nested types.
///
/// # Errors
///
/// Returns [`Error::Setting`] if the code is not Rust, because of an attribute that was set.
pub(crate) fn merge(packages: &mut BTreeMap<Module, Package>) -> Result<(), Error> {
    let mut modules = BTreeMap::new();
    for (module, package) in &*packages {
        for len in 1..=module.len() {
            let name = package.name.split('.').take(len).collect::<Vec<_>>();
            modules
                .entry(first_parts(module, len))
                .or_insert_with(|| name.join("."));
        }
    }
    // A module precedes those in it, to which its own nested types may belong.
    for (module, name) in modules {
        let Some(own_name) = module.parts().last() else {
            continue;
        };
        let outer = packages.get_mut(&first_parts(&module, module.len() - 1));
        let Some(items) = outer
            .map(|outer| take_module(outer, own_name))
            .transpose()?
        else {
            continue;
        };
        if items.is_empty() {
            continue;
        }
        let package = packages.entry(module).or_insert_with(|| Package {
            name,
            code: String::new(),
        });
        let mut file = parse(package)?;
        file.items.extend(items);
        package.code = prettyplease::unparse(&file);
    }
    Ok(())
}

/// Removes the module `name` from a package. Returns its items, or nothing if there is no such module.
fn take_module(package: &mut Package, name: &str) -> Result<Vec<Item>, Error> {
    if !package.code.contains(&format!("mod {name} ")) {
        return Ok(Vec::new());
    }
    let mut file = parse(package)?;
    let is_it = |item: &Item| matches!(item, Item::Mod(module) if module.ident == name);
    let Some(index) = file.items.iter().position(is_it) else {
        return Ok(Vec::new());
    };
    let Item::Mod(module) = file.items.remove(index) else {
        return Ok(Vec::new());
    };
    package.code = prettyplease::unparse(&file);
    Ok(module.content.map(|(_, items)| items).unwrap_or_default())
}

fn parse(package: &Package) -> Result<syn::File, Error> {
    syn::parse_file(&package.code).map_err(|error| Error::Setting {
        message: format!(
            "the code of package `{}` is not Rust: {error}",
            package.name
        ),
    })
}

fn first_parts(module: &Module, len: usize) -> Module {
    Module::from_parts(module.parts().take(len))
}
