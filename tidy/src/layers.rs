//! The layers of each crate, and the arrows that are allowed between them.
//!
//! A layer is a folder, or a few files at a crate's root that belong together. A layer may import
//! the layers that its row names, and no other. Rows stand from the lowest layer to the highest, and
//! a row names only rows above it, so that the arrows can form no circle.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Violation;
use crate::imports::{Import, circles, imports};
use crate::source::Crate;

/// One layer.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// What violations call it.
    pub name: &'static str,
    /// Its modules, with all that is below them: `driver`, `provider::soft`. The longest match
    /// counts.
    pub modules: &'static [&'static str],
    /// Names of the layers that it may import.
    pub may_import: &'static [&'static str],
}

/// The layers of a package.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// Its folder.
    pub folder: &'static str,
    /// From the lowest to the highest.
    pub layers: &'static [Layer],
}

const fn layer(
    name: &'static str,
    modules: &'static [&'static str],
    may_import: &'static [&'static str],
) -> Layer {
    Layer {
        name,
        modules,
        may_import,
    }
}

include!("allowed.rs");

impl Package {
    /// Checks the package in the checkout at `root`: every arrow is allowed, no module is unassigned,
    /// and no modules import each other in a circle.
    ///
    /// # Panics
    ///
    /// If a file cannot be read or is not Rust.
    #[must_use]
    pub fn violations(&self, root: &Path) -> Vec<Violation> {
        let source = Crate::read(root, self.folder);
        let imports = imports(&source);
        let mut violations = self.upward_arrows(&source, &imports);
        violations.extend(self.unassigned(&source));
        violations.extend(self.unused_arrows(&source, &imports));
        violations.extend(circular(&source, &imports));
        violations
    }

    /// Returns the first row that names a layer that is not above it.
    #[must_use]
    pub fn row_out_of_order(&self) -> Option<&'static str> {
        let mut above = BTreeSet::new();
        let mut rows = self.layers.iter();
        let wrong = rows.find(|layer| {
            let known = layer.may_import.iter().all(|name| above.contains(name));
            !(known && above.insert(layer.name))
        });
        wrong.map(|layer| layer.name)
    }

    fn layer_of(&self, module: &[String]) -> Option<&Layer> {
        let path = module.join("::");
        let matching = self.layers.iter().flat_map(|layer| {
            let modules = layer.modules.iter();
            modules.map(move |&module| (layer, module))
        });
        matching
            .filter(|(_, module)| {
                let rest = path.strip_prefix(module);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            })
            .max_by_key(|(_, module)| module.len())
            .map(|(layer, _)| layer)
    }

    fn upward_arrows(&self, source: &Crate, imports: &[Import]) -> Vec<Violation> {
        let mut violations = Vec::new();
        for import in imports {
            let file = &source.files[import.file];
            let Some(from) = self.layer_of(&file.module) else {
                continue;
            };
            let violation = |message: String| Violation {
                file: file.path.clone(),
                line: import.line,
                message,
            };
            match self.layer_of(&import.module) {
                None => violations.push(violation(
                    "imports a re-export of the crate's root: name the module that defines it"
                        .to_owned(),
                )),
                Some(to) if to.name != from.name && !from.may_import.contains(&to.name) => {
                    violations.push(violation(format!(
                        "{} must not import {} ({}): move the definition down, or pass a value; \
                         the allowed arrows are in tidy/src/allowed.rs",
                        from.name,
                        to.name,
                        import.module.join("::"),
                    )));
                }
                Some(_) => {}
            }
        }
        violations
    }

    fn unassigned(&self, source: &Crate) -> Vec<Violation> {
        let files = source.product().filter(|file| !file.module.is_empty());
        files
            .filter(|file| self.layer_of(&file.module).is_none())
            .map(|file| Violation {
                file: file.path.clone(),
                line: 1,
                message: "is in no layer: add it to tidy/src/allowed.rs".to_owned(),
            })
            .collect()
    }

    /// Arrows that are allowed and that no import uses, so that the list stays exact.
    fn unused_arrows(&self, source: &Crate, imports: &[Import]) -> Vec<Violation> {
        let used: BTreeSet<(&str, &str)> = imports
            .iter()
            .filter_map(|import| {
                let from = self.layer_of(&source.files[import.file].module)?;
                Some((from.name, self.layer_of(&import.module)?.name))
            })
            .collect();
        let mut violations = Vec::new();
        for layer in self.layers {
            for name in layer.may_import {
                if !used.contains(&(layer.name, name)) {
                    violations.push(Violation {
                        file: "tidy/src/allowed.rs".into(),
                        line: 1,
                        message: format!(
                            "{}: {} imports nothing of {name}: take the arrow out",
                            self.folder, layer.name
                        ),
                    });
                }
            }
        }
        violations
    }
}

fn circular(source: &Crate, imports: &[Import]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for circle in circles(source, imports) {
        let in_circle = |import: &&Import| {
            let from = &source.files[import.file].module;
            let is_part = from.starts_with(&import.module) || import.module.starts_with(from);
            circle.contains(from) && circle.contains(&import.module) && !is_part
        };
        for import in imports.iter().filter(in_circle) {
            let file = &source.files[import.file];
            violations.push(Violation {
                file: file.path.clone(),
                line: import.line,
                message: format!(
                    "imports {}, which imports this module in turn (a circle of {}): move what \
                     both need into a module below them",
                    import.module.join("::"),
                    circle.len(),
                ),
            });
        }
    }
    violations
}
