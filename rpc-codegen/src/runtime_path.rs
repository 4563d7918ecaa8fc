//! The default path of the runtime in generated code, from the `Cargo.toml` of the package that is
//! built.

use std::env;
use std::path::{Path, PathBuf};

use proc_macro_crate::{FoundCrate, crate_name};

/// The packages with a module `codegen`, the preferred one first: a program that depends on both may
/// name either.
const PACKAGES: [&str; 2] = ["verbline", "rpc-core"];

/// The crate that has the module `codegen`.
#[derive(Debug)]
pub(crate) struct FoundRuntime {
    /// `::rpc_core`
    pub(crate) path: String,
    /// The `Cargo.toml` that says so.
    pub(crate) manifest: Option<PathBuf>,
}

/// Finds the crate under the name that it has in `Cargo.toml`.
///
/// Outside of cargo, and without such a dependency, it is `::rpc_core`: the compiler then reports that
/// this crate is missing.
pub(crate) fn find() -> FoundRuntime {
    let path = PACKAGES
        .iter()
        .find_map(|name| match crate_name(name).ok()? {
            FoundCrate::Itself => Some("crate".to_owned()),
            FoundCrate::Name(name) => Some(format!("::{name}")),
        });
    let directory = env::var_os("CARGO_MANIFEST_DIR");
    FoundRuntime {
        manifest: directory.map(|directory| Path::new(&directory).join("Cargo.toml")),
        path: path.unwrap_or_else(|| "::rpc_core".to_owned()),
    }
}
