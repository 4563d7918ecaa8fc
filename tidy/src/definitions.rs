//! Which types a crate defines, and in which files their methods stand: inherent ones, those of traits,
//! and functions that take the type by `&mut`, which are methods in all but name. A method with
//! `&self` or `&mut self` that is given another type by `&mut` is a method of its own type only.

mod reader;

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Crate;
use crate::type_at::{Scope, TypeAt};

/// What a crate's product code defines.
#[derive(Default)]
pub struct Definitions {
    /// Structs, enums and unions.
    pub owners: Vec<Owner>,
    by_name: BTreeMap<String, Vec<usize>>,
    functions: BTreeMap<String, Vec<Function>>,
    /// For each file, what its `use` items name: the last part, and the whole path.
    uses: Vec<BTreeMap<String, Vec<String>>>,
}

/// A type, with the files that hold what it does.
pub struct Owner {
    /// Its name.
    pub name: String,
    /// The module that defines it.
    pub module: Vec<String>,
    /// The files with inherent impls.
    pub inherent: BTreeSet<usize>,
    /// The files with impls of any kind, or with functions that take it by `&mut` and have no
    /// `self` by reference.
    pub files: BTreeSet<usize>,
    /// The files from which it is changed: `files`, and those with methods of other types that take it
    /// by `&mut`.
    pub reached: BTreeSet<usize>,
    fields: BTreeMap<String, TypeAt>,
    methods: BTreeMap<String, Vec<Function>>,
}

/// A function or a method.
pub struct Function {
    module: Vec<String>,
    /// The file that defines it.
    pub file: usize,
    /// The types that it takes by `&mut`, apart from `self`.
    pub changes: Vec<usize>,
    /// What it returns.
    pub returned: Option<TypeAt>,
}

impl Definitions {
    /// Reads the definitions of a crate.
    #[must_use]
    pub fn of(source: &Crate) -> Self {
        reader::read(source)
    }

    /// The type of the crate that is written there, behind references and the like.
    #[must_use]
    pub fn owner(&self, written: &TypeAt) -> Option<usize> {
        self.owner_at(&written.path()?, &written.scope)
    }

    /// The type that a path names.
    #[must_use]
    pub fn owner_at(&self, path: &[String], scope: &Scope) -> Option<usize> {
        let name = path.last()?;
        if path.len() == 1 && name == "Self" {
            return scope.this;
        }
        let candidates = self.by_name.get(name)?;
        let modules = candidates
            .iter()
            .map(|&owner| self.owners[owner].module.as_slice());
        let chosen = self.choose(path, scope, modules.collect())?;
        Some(candidates[chosen])
    }

    /// The function that a path names.
    #[must_use]
    pub fn function(&self, path: &[String], scope: &Scope) -> Option<&Function> {
        let candidates = self.functions.get(path.last()?)?;
        let modules = candidates.iter().map(|function| function.module.as_slice());
        Some(&candidates[self.choose(path, scope, modules.collect())?])
    }

    /// Chooses among the modules that define the last part of `path` the one that the path means.
    fn choose(&self, path: &[String], scope: &Scope, modules: Vec<&[String]>) -> Option<usize> {
        let used = path
            .first()
            .and_then(|first| self.uses[scope.file].get(first));
        let path = match used {
            Some(used) => [used, &path[1..]].concat(),
            None if path.len() > 1 => path.to_vec(),
            None => {
                let local = modules.iter().position(|module| *module == scope.module);
                // Or a glob import, if there is only one such name.
                return local.or((modules.len() == 1).then_some(0));
            }
        };
        let module = scope.absolute(&path[..path.len() - 1]);
        let exact = modules.iter().position(|defined| *defined == module);
        // Or the path of a re-export, in a module above.
        let mut below = (0..modules.len()).filter(|&index| modules[index].starts_with(&module));
        exact.or_else(|| below.next().filter(|_| below.next().is_none()))
    }

    /// A method, unless several files define one with this name.
    #[must_use]
    pub fn method(&self, owner: usize, name: &str) -> Option<&Function> {
        let (first, others) = self.owners[owner].methods.get(name)?.split_first()?;
        others
            .iter()
            .all(|other| other.file == first.file)
            .then_some(first)
    }

    /// The type of a field of the struct, or of the variant of an enum, that a path names.
    #[must_use]
    pub fn member(&self, path: &[String], name: &str, scope: &Scope) -> Option<&TypeAt> {
        if let Some(owner) = self.owner_at(path, scope) {
            return self.field(owner, name);
        }
        let (variant, path) = path.split_last()?;
        self.field(self.owner_at(path, scope)?, &format!("{variant}.{name}"))
    }

    /// The type of a field: `name`, or `Variant.name`.
    #[must_use]
    pub fn field(&self, owner: usize, name: &str) -> Option<&TypeAt> {
        self.owners[owner].fields.get(name)
    }
}
