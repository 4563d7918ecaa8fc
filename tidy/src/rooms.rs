//! The rooms of each crate, and the arrows that are allowed between them.
//!
//! A room is a folder, or a few files at a crate's root that belong together. A room may import
//! the rooms that its row names, and no other. Rows stand from the lowest room to the highest, and
//! a row names only rows above it, so that the arrows can form no circle.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Breach;
use crate::imports::{Import, circles, imports};
use crate::source::Crate;

/// One room.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// What breaches call it.
    pub name: &'static str,
    /// Its modules, with all that is below them: `driver`, `verbs::types`. The longest match
    /// counts.
    pub modules: &'static [&'static str],
    /// Names of the rooms that it may import.
    pub may_import: &'static [&'static str],
}

/// The rooms of a package.
#[derive(Clone, Copy, Debug)]
pub struct House {
    /// The package, which is also its folder.
    pub package: &'static str,
    /// From the lowest to the highest.
    pub rooms: &'static [Room],
}

const fn room(
    name: &'static str,
    modules: &'static [&'static str],
    may_import: &'static [&'static str],
) -> Room {
    Room {
        name,
        modules,
        may_import,
    }
}

include!("houses.rs");

impl House {
    /// Checks the package in the checkout at `root`: every arrow is allowed, no module is homeless,
    /// and no modules import each other in a circle.
    ///
    /// # Panics
    ///
    /// If a file cannot be read or is not Rust.
    #[must_use]
    pub fn breaches(&self, root: &Path) -> Vec<Breach> {
        let source = Crate::read(root, self.package);
        let imports = imports(&source);
        let mut breaches = self.upward_arrows(&source, &imports);
        breaches.extend(self.homeless(&source));
        breaches.extend(circular(&source, &imports));
        breaches
    }

    /// The rows are in order: each names only rows above it.
    #[must_use]
    pub fn rows_are_in_order(&self) -> bool {
        let mut above = BTreeSet::new();
        self.rooms.iter().all(|room| {
            let known = room.may_import.iter().all(|name| above.contains(name));
            known && above.insert(room.name)
        })
    }

    fn room_of(&self, module: &[String]) -> Option<&Room> {
        let path = module.join("::");
        let matching = self.rooms.iter().flat_map(|room| {
            let modules = room.modules.iter();
            modules.map(move |&module| (room, module))
        });
        matching
            .filter(|(_, module)| {
                let rest = path.strip_prefix(module);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            })
            .max_by_key(|(_, module)| module.len())
            .map(|(room, _)| room)
    }

    fn upward_arrows(&self, source: &Crate, imports: &[Import]) -> Vec<Breach> {
        let mut breaches = Vec::new();
        for import in imports {
            let file = &source.files[import.file];
            let Some(from) = self.room_of(&file.module) else {
                continue;
            };
            let breach = |message: String| Breach {
                file: file.path.clone(),
                line: import.line,
                message,
            };
            match self.room_of(&import.module) {
                None => breaches.push(breach(
                    "imports from the crate's root: name the module that defines it".to_owned(),
                )),
                Some(to) if to.name != from.name && !from.may_import.contains(&to.name) => {
                    breaches.push(breach(format!(
                        "{} must not import {} ({}): move the definition down, or pass a value; \
                         the allowed arrows are in tidy/src/houses.rs",
                        from.name,
                        to.name,
                        import.module.join("::"),
                    )));
                }
                Some(_) => {}
            }
        }
        breaches
    }

    fn homeless(&self, source: &Crate) -> Vec<Breach> {
        let files = source.product().filter(|file| !file.module.is_empty());
        files
            .filter(|file| self.room_of(&file.module).is_none())
            .map(|file| Breach {
                file: file.path.clone(),
                line: 1,
                message: "is in no room: add it to tidy/src/houses.rs".to_owned(),
            })
            .collect()
    }
}

fn circular(source: &Crate, imports: &[Import]) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for circle in circles(source, imports) {
        let in_circle = |import: &&Import| {
            let from = &source.files[import.file].module;
            let is_part = from.starts_with(&import.module) || import.module.starts_with(from);
            circle.contains(from) && circle.contains(&import.module) && !is_part
        };
        for import in imports.iter().filter(in_circle) {
            let file = &source.files[import.file];
            breaches.push(Breach {
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
    breaches
}
