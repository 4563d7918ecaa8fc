//! Reads the definitions of a crate from its files.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use syn::visit::{self, Visit};
use syn::{
    Fields, FnArg, Ident, ImplItemFn, ItemEnum, ItemFn, ItemImpl, ItemMod, ItemStruct, ItemUnion,
    ItemUse, ReturnType, Signature, UseTree,
};

use super::{Definitions, Function, Owner};
use crate::source::{Crate, is_for_tests};
use crate::type_at::{Scope, TypeAt};

/// Reads a crate in two passes: types first, because impls and functions name them.
pub(super) fn read(source: &Crate) -> Definitions {
    let mut definitions = Definitions {
        uses: vec![BTreeMap::new(); source.files.len()],
        ..Definitions::default()
    };
    for pass in [Pass::Types, Pass::Methods] {
        for (index, file) in source.files.iter().enumerate() {
            if file.is_counted() {
                let mut reader = Reader {
                    definitions: &mut definitions,
                    scope: Scope::of(index, file),
                    pass,
                };
                reader.visit_file(&file.syntax);
            }
        }
    }
    definitions
}

#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Types,
    Methods,
}

/// Reads one file, in one of two passes.
struct Reader<'a> {
    definitions: &'a mut Definitions,
    scope: Scope,
    pass: Pass,
}

impl Reader<'_> {
    /// Adds a type with its fields, each behind this beginning.
    fn add_type<'f>(&mut self, name: &Ident, fields: impl Iterator<Item = (String, &'f Fields)>) {
        let scope = &self.scope;
        let fields = fields.flat_map(|(beginning, fields)| {
            fields.iter().enumerate().map(move |(index, field)| {
                let name = field
                    .ident
                    .as_ref()
                    .map_or(index.to_string(), Ident::to_string);
                (beginning.clone() + &name, TypeAt::new(&field.ty, scope))
            })
        });
        let owner = Owner {
            name: name.to_string(),
            module: self.scope.module.clone(),
            inherent: BTreeSet::new(),
            files: BTreeSet::new(),
            reached: BTreeSet::new(),
            fields: fields.collect(),
            methods: BTreeMap::new(),
        };
        let owners = &mut self.definitions.owners;
        self.definitions
            .by_name
            .entry(owner.name.clone())
            .or_default()
            .push(owners.len());
        owners.push(owner);
    }

    fn function(&mut self, signature: &Signature) -> Function {
        let changes = signature.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(input) => Some(TypeAt::new(&input.ty, &self.scope)),
            FnArg::Receiver(_) => None,
        });
        let changes = changes.filter(TypeAt::is_by_mut);
        let changes: Vec<usize> = changes
            .filter_map(|written| self.definitions.owner(&written))
            .collect();
        // What has state of its own, and is given another type's to change, is a method of the former.
        let receiver = signature.receiver();
        let has_state = receiver.is_some_and(|receiver| receiver.reference.is_some());
        for &owner in &changes {
            let owner = &mut self.definitions.owners[owner];
            owner.reached.insert(self.scope.file);
            if !has_state {
                owner.files.insert(self.scope.file);
            }
        }
        Function {
            module: self.scope.module.clone(),
            file: self.scope.file,
            changes,
            returned: match &signature.output {
                ReturnType::Type(_, ty) => Some(TypeAt::new(ty, &self.scope)),
                ReturnType::Default => None,
            },
        }
    }

    fn add_uses(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        let (name, rename) = match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add_uses(before, &path.tree);
                before.pop();
                return;
            }
            UseTree::Group(group) => {
                return group
                    .items
                    .iter()
                    .for_each(|tree| self.add_uses(before, tree));
            }
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(rename) => (&rename.ident, &rename.rename),
            UseTree::Glob(_) => return,
        };
        let path = before.iter().cloned().chain([name.to_string()]).collect();
        self.definitions.uses[self.scope.file].insert(rename.to_string(), path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.scope.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.scope.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if self.pass == Pass::Types && !is_for_tests(&item.attrs) {
            self.add_uses(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.add_type(&item.ident, iter::once((String::new(), &item.fields)));
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        let variants = item.variants.iter();
        let variants = variants.map(|variant| (format!("{}.", variant.ident), &variant.fields));
        self.add_type(&item.ident, variants);
    }

    fn visit_item_union(&mut self, item: &'ast ItemUnion) {
        self.add_type(&item.ident, iter::empty());
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if is_for_tests(&item.attrs) {
            return;
        }
        self.scope.this = self
            .definitions
            .owner(&TypeAt::new(&item.self_ty, &self.scope));
        if let (Pass::Methods, Some(this)) = (self.pass, self.scope.this) {
            let owner = &mut self.definitions.owners[this];
            owner.files.insert(self.scope.file);
            owner.reached.insert(self.scope.file);
            if item.trait_.is_none() {
                owner.inherent.insert(self.scope.file);
            }
        }
        visit::visit_item_impl(self, item);
        self.scope.this = None;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if is_for_tests(&item.attrs) {
            return;
        }
        if let (Pass::Methods, Some(this)) = (self.pass, self.scope.this) {
            let function = self.function(&item.sig);
            let methods = &mut self.definitions.owners[this].methods;
            methods
                .entry(item.sig.ident.to_string())
                .or_default()
                .push(function);
        }
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if is_for_tests(&item.attrs) {
            return;
        }
        if self.pass == Pass::Methods {
            let function = self.function(&item.sig);
            let functions = &mut self.definitions.functions;
            functions
                .entry(item.sig.ident.to_string())
                .or_default()
                .push(function);
        }
        visit::visit_item_fn(self, item);
    }
}
