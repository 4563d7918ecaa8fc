//! The public items of a crate, one line each.
//!
//! The list follows `pub mod` and `pub use` from the crate's root, as a user's paths do, and leaves
//! out what is `#[doc(hidden)]`. A type is listed with its public fields, variants, methods and
//! traits; a trait with its items. What `#[cfg(feature = …)]` adds is listed too.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Fields, File, ImplItem, Item, ItemImpl, ItemMod, Macro, TraitItem, Type, UseTree,
    Visibility,
};

use crate::source::{Crate, is_for_tests};

/// Lists the public items of `source`, sorted.
#[must_use]
pub fn public_items(source: &Crate) -> Vec<String> {
    let mut crate_items = CrateItems::default();
    for file in source.product() {
        crate_items.collect(&file.module, &file.syntax.items);
    }
    let mut lister = Lister {
        items: &crate_items,
        paths: Vec::new(),
        lines: BTreeSet::new(),
        visited: BTreeSet::new(),
    };
    lister.module(&[], &source.name.replace('-', "_"));
    lister.describe();
    lister.lines.into_iter().collect()
}

/// The names that the root of a crate shows: its public items, modules and re-exports, without those
/// that are `#[doc(hidden)]`.
#[must_use]
pub fn front_page(root: &File) -> Vec<String> {
    let mut names = Vec::new();
    for item in &root.items {
        match item {
            Item::Use(import) if is_shown(&import.vis, &import.attrs) => {
                let imported = flatten(&import.tree).into_iter();
                names.extend(imported.map(|(_, name)| name));
            }
            Item::Mod(module) if is_shown(&module.vis, &module.attrs) => {
                names.push(module.ident.to_string());
            }
            Item::Use(_) | Item::Mod(_) => {}
            other => names.extend(name_of(other)),
        }
    }
    names
}

fn is_shown(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    let is_hidden = attributes.iter().any(|attribute| {
        attribute.path().is_ident("doc")
            && attribute.to_token_stream().to_string().contains("hidden")
    });
    matches!(visibility, Visibility::Public(_)) && !is_hidden
}

type ModulePath = Vec<String>;

/// What a crate defines, by module and by name.
#[derive(Default)]
struct CrateItems<'a> {
    modules: BTreeMap<ModulePath, Vec<&'a Item>>,
    /// Inherent and trait implementations, by the name of the type, each with its module.
    impls: BTreeMap<String, Vec<(ModulePath, &'a ItemImpl)>>,
}

impl<'a> CrateItems<'a> {
    fn collect(&mut self, module: &[String], items: &'a [Item]) {
        for item in items {
            match item {
                Item::Mod(ItemMod {
                    ident,
                    content: Some((_, items)),
                    attrs,
                    ..
                }) if !is_for_tests(attrs) => {
                    let inner: ModulePath =
                        module.iter().cloned().chain([ident.to_string()]).collect();
                    self.collect(&inner, items);
                }
                Item::Impl(block) if !is_for_tests(&block.attrs) => {
                    if let Type::Path(path) = &*block.self_ty
                        && let Some(last) = path.path.segments.last()
                    {
                        self.impls
                            .entry(last.ident.to_string())
                            .or_default()
                            .push((module.to_vec(), block));
                    }
                }
                _ => {}
            }
        }
        let module = self.modules.entry(module.to_vec()).or_default();
        module.extend(items.iter());
    }

    /// The item that `name` means in `module`: defined there, or imported.
    fn in_scope(&self, module: &[String], name: &str) -> Option<&'a Item> {
        let items = self.modules.get(module)?;
        let defined = items
            .iter()
            .find(|item| name_of(item).as_deref() == Some(name));
        if let Some(defined) = defined {
            return Some(defined);
        }
        let imports = items.iter().filter_map(|item| match item {
            Item::Use(import) => Some(flatten(&import.tree)),
            _ => None,
        });
        for (path, alias) in imports.flatten() {
            if alias == name
                && let Some(Resolved::Item(found)) = self.resolve(module, &path)
            {
                return Some(found);
            }
        }
        None
    }

    /// The module of this crate that `path` names, seen from `module`.
    fn module_at(&self, module: &[String], path: &[String]) -> Option<ModulePath> {
        let mut found = module.to_vec();
        for part in path {
            match part.as_str() {
                "crate" => found.clear(),
                "self" => {}
                "super" => {
                    found.pop();
                }
                name => found.push(name.to_owned()),
            }
        }
        self.modules.contains_key(&found).then_some(found)
    }

    /// The item that `path` names, seen from `module`; follows private re-exports.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Resolved<'a>> {
        let mut base = module.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                base.pop();
            }
            // A child module, or else another crate.
            first => {
                base.push(first.to_owned());
                if !self.modules.contains_key(&base) {
                    return None;
                }
            }
        }
        rest = &rest[1..];
        let (name, inner) = rest.split_last()?;
        base.extend(inner.iter().cloned());
        let as_module: ModulePath = base.iter().cloned().chain([name.clone()]).collect();
        if self.modules.contains_key(&as_module) {
            return Some(Resolved::Module(as_module));
        }
        let items = self.modules.get(&base)?;
        let found = items
            .iter()
            .find(|item| name_of(item).as_ref() == Some(name));
        if let Some(found) = found {
            return Some(Resolved::Item(found));
        }
        for item in items {
            if let Item::Use(reexport) = item {
                for (path, alias) in flatten(&reexport.tree) {
                    if alias == *name
                        && let Some(found) = self.resolve(&base, &path)
                    {
                        return Some(found);
                    }
                }
            }
        }
        None
    }
}

enum Resolved<'a> {
    Item(&'a Item),
    Module(ModulePath),
}

struct Lister<'a> {
    items: &'a CrateItems<'a>,
    /// Each public item, with one of its public paths.
    paths: Vec<(&'a Item, String)>,
    lines: BTreeSet<String>,
    visited: BTreeSet<(ModulePath, String)>,
}

impl<'a> Lister<'a> {
    /// Describes each item under its shortest path; a line for each other path names that one.
    fn describe(&mut self) {
        let mut paths = std::mem::take(&mut self.paths);
        paths.sort_by_key(|(_, path)| (path.matches("::").count(), path.clone()));
        let mut described: Vec<(&Item, String)> = Vec::new();
        for (item, path) in paths {
            let first = described
                .iter()
                .find(|(other, _)| std::ptr::eq(*other, item));
            if let Some((_, first)) = first {
                self.lines.insert(format!("{path} = {first}"));
            } else {
                self.item(item, &path);
                self.macros_beside(item);
                described.push((item, path));
            }
        }
    }

    fn module(&mut self, module: &[String], public_path: &str) {
        if !self
            .visited
            .insert((module.to_vec(), public_path.to_owned()))
        {
            return;
        }
        let items = self.items.modules.get(module).cloned().unwrap_or_default();
        for item in items {
            let attributes = attributes_of(item);
            if is_hidden(attributes) || is_for_tests(attributes) {
                continue;
            }
            match item {
                Item::Macro(defined) if has_attribute(attributes, "macro_export") => {
                    let name = defined.ident.as_ref().map(ToString::to_string);
                    let name = name.unwrap_or_default();
                    self.lines.insert(format!("{public_path}::{name}! macro"));
                }
                Item::Use(reexport) if is_public(&reexport.vis) => {
                    for (path, alias) in flatten(&reexport.tree) {
                        self.reexport(module, public_path, &path, &alias);
                    }
                }
                Item::Mod(declared) if is_public(&declared.vis) => {
                    let name = declared.ident.to_string();
                    let path = format!("{public_path}::{name}");
                    self.lines.insert(format!("{path} mod"));
                    let inner: ModulePath = module.iter().cloned().chain([name]).collect();
                    self.module(&inner, &path);
                }
                _ => self.found(item, public_path, None),
            }
        }
    }

    fn reexport(&mut self, module: &[String], public_path: &str, path: &[String], alias: &str) {
        match self.items.resolve(module, path) {
            Some(Resolved::Item(item)) => self.found(item, public_path, Some(alias)),
            Some(Resolved::Module(inner)) => {
                let public_path = format!("{public_path}::{alias}");
                self.lines.insert(format!("{public_path} mod"));
                self.module(&inner, &public_path);
            }
            None => {
                let line = format!("{public_path}::{alias} = {}", path.join("::"));
                self.lines.insert(line);
                self.macro_that_makes(module, path);
            }
        }
    }

    fn found(&mut self, item: &'a Item, public_path: &str, alias: Option<&str>) {
        if let Some(name) = name_of(item) {
            let path = format!("{public_path}::{}", alias.unwrap_or(&name));
            self.paths.push((item, path));
        }
    }

    fn item(&mut self, item: &Item, path: &str) {
        let Some(name) = name_of(item) else { return };
        match item {
            Item::Fn(function) if is_public(&function.vis) => {
                self.line(path, &function.sig);
            }
            Item::Const(constant) if is_public(&constant.vis) => {
                let ty = &constant.ty;
                self.line(path, &quote!(const #ty));
            }
            Item::Static(variable) if is_public(&variable.vis) => {
                let ty = &variable.ty;
                self.line(path, &quote!(static #ty));
            }
            Item::Type(alias) if is_public(&alias.vis) => {
                let ty = &alias.ty;
                self.line(path, &quote!(type = #ty));
            }
            Item::Struct(structure) if is_public(&structure.vis) => {
                let generics = &structure.generics;
                self.line(path, &quote!(struct #generics));
                self.fields(path, &structure.fields, true);
                self.implementations(path, &name, item);
            }
            Item::Enum(enumeration) if is_public(&enumeration.vis) => {
                let generics = &enumeration.generics;
                self.line(path, &quote!(enum #generics));
                for variant in &enumeration.variants {
                    let path = format!("{path}::{}", variant.ident);
                    self.line(&path, &quote!(variant));
                    self.fields(&path, &variant.fields, false);
                }
                self.implementations(path, &name, item);
            }
            Item::Trait(definition) if is_public(&definition.vis) => {
                let (generics, bounds) = (&definition.generics, &definition.supertraits);
                self.line(path, &quote!(trait #generics : #bounds));
                for item in &definition.items {
                    self.trait_item(path, item);
                }
            }
            _ => {}
        }
    }

    fn trait_item(&mut self, path: &str, item: &TraitItem) {
        match item {
            TraitItem::Fn(method) if !is_hidden(&method.attrs) => {
                let provided = if method.default.is_some() {
                    " (provided)"
                } else {
                    ""
                };
                let path = format!("{path}::{}", method.sig.ident);
                let signature = compact(&method.sig);
                self.lines.insert(format!("{path} {signature}{provided}"));
            }
            TraitItem::Type(ty) => {
                let bounds = &ty.bounds;
                self.line(&format!("{path}::{}", ty.ident), &quote!(type : #bounds));
            }
            TraitItem::Const(constant) => {
                let ty = &constant.ty;
                self.line(&format!("{path}::{}", constant.ident), &quote!(const #ty));
            }
            _ => {}
        }
    }

    fn fields(&mut self, path: &str, fields: &Fields, only_public: bool) {
        for (index, field) in fields.iter().enumerate() {
            if only_public && !is_public(&field.vis) || is_hidden(&field.attrs) {
                continue;
            }
            let name = field.ident.as_ref().map(ToString::to_string);
            let name = name.unwrap_or_else(|| index.to_string());
            let ty = &field.ty;
            self.line(&format!("{path}.{name}"), &quote!(: #ty));
        }
    }

    /// Lists the text of the macro that makes an item of this crate: what it expands to is unknown.
    fn macro_that_makes(&mut self, module: &[String], path: &[String]) {
        let Some((name, Some(inner))) = path
            .split_last()
            .map(|(name, inner)| (name, self.items.module_at(module, inner)))
        else {
            return;
        };
        let place = inner.join("::");
        for item in self.items.modules.get(&inner).into_iter().flatten() {
            if let Item::Macro(invoked) = item
                && invoked.ident.is_none()
                && mentions(&invoked.mac.tokens, name)
            {
                self.invocation(&place, &invoked.mac);
            }
        }
    }

    /// Lists the macros that are invoked beside a public type: they may implement its methods.
    fn macros_beside(&mut self, item: &Item) {
        if !matches!(item, Item::Struct(_) | Item::Enum(_)) {
            return;
        }
        let modules = self.items.modules.iter();
        let mut home = modules.filter(|(_, items)| items.iter().any(|i| std::ptr::eq(*i, item)));
        let Some((module, items)) = home.next() else {
            return;
        };
        let place = module.join("::");
        for beside in items {
            if let Item::Macro(invoked) = beside
                && invoked.ident.is_none()
                && !invoked.mac.path.is_ident("thread_local")
                && !is_for_tests(&invoked.attrs)
            {
                self.invocation(&place, &invoked.mac);
            }
        }
    }

    fn invocation(&mut self, place: &str, invoked: &Macro) {
        let name = compact(&invoked.path);
        let tokens = compact(&without_docs(invoked.tokens.clone()));
        self.lines
            .insert(format!("{place}: {name}! {{ {tokens} }}"));
    }

    /// The methods of a type, and one line with the traits that it implements.
    fn implementations(&mut self, path: &str, name: &str, item: &Item) {
        let mut traits = derives(attributes_of(item));
        for (module, block) in self.items.impls.get(name).cloned().unwrap_or_default() {
            let defined = self.items.in_scope(&module, name);
            if !defined.is_some_and(|defined| std::ptr::eq(defined, item)) {
                continue;
            }
            if let Some((_, implemented, _)) = &block.trait_ {
                traits.insert(compact(implemented));
                continue;
            }
            for item in &block.items {
                self.associated_item(path, item);
            }
        }
        if !traits.is_empty() {
            let traits: Vec<String> = traits.into_iter().collect();
            self.lines
                .insert(format!("{path} impl {}", traits.join(", ")));
        }
    }

    fn associated_item(&mut self, path: &str, item: &ImplItem) {
        match item {
            ImplItem::Fn(method)
                if is_public(&method.vis)
                    && !is_hidden(&method.attrs)
                    && !is_for_tests(&method.attrs) =>
            {
                self.line(&format!("{path}::{}", method.sig.ident), &method.sig);
            }
            ImplItem::Const(constant) if is_public(&constant.vis) => {
                let ty = &constant.ty;
                self.line(&format!("{path}::{}", constant.ident), &quote!(const #ty));
            }
            ImplItem::Macro(invoked) => self.invocation(path, &invoked.mac),
            _ => {}
        }
    }

    fn line(&mut self, path: &str, signature: &impl ToTokens) {
        self.lines.insert(format!("{path} {}", compact(signature)));
    }
}

/// Tokens as a person would write them on one line.
fn compact(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    let tight = [
        (" :: ", "::"),
        (":: ", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" ,", ","),
        ("& ", "&"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" : ", ": "),
        ("' ", "'"),
        (" [", " ["),
        ("[ ", "["),
        (" ]", "]"),
        (" ;", ";"),
        ("- >", "->"),
        (")->", ") ->"),
        (">->", "> ->"),
        (",)", ")"),
        (", >", ">"),
        (",>", ">"),
    ];
    for (from, to) in tight {
        text = text.replace(from, to);
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The paths that a `use` brings in, each with the name that it gets here.
fn flatten(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    match tree {
        UseTree::Path(path) => flatten(&path.tree)
            .into_iter()
            .map(|(mut rest, name)| {
                rest.insert(0, path.ident.to_string());
                (rest, name)
            })
            .collect(),
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        UseTree::Rename(rename) => {
            vec![(vec![rename.ident.to_string()], rename.rename.to_string())]
        }
        UseTree::Glob(_) => vec![(vec!["*".to_owned()], "*".to_owned())],
        UseTree::Group(group) => group.items.iter().flat_map(flatten).collect(),
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// True if `name` is one of the names in `tokens`.
fn mentions(tokens: &TokenStream, name: &str) -> bool {
    tokens.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == name,
        TokenTree::Group(group) => mentions(&group.stream(), name),
        _ => false,
    })
}

/// The tokens without `#[doc = …]`.
fn without_docs(tokens: TokenStream) -> TokenStream {
    let mut kept = TokenStream::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if let (TokenTree::Punct(mark), Some(TokenTree::Group(group))) = (&token, tokens.peek())
            && mark.as_char() == '#'
            && group.stream().to_string().starts_with("doc")
        {
            tokens.next();
            continue;
        }
        kept.extend([match token {
            TokenTree::Group(group) => {
                let inner = without_docs(group.stream());
                TokenTree::Group(Group::new(group.delimiter(), inner))
            }
            token => token,
        }]);
    }
    kept
}

/// The traits that a type derives.
fn derives(attributes: &[Attribute]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for attribute in attributes {
        if attribute.path().is_ident("derive")
            && let Ok(list) = attribute.meta.require_list()
        {
            let list = list.tokens.to_string();
            names.extend(list.split(',').map(|name| name.trim().replace(' ', "")));
        }
    }
    names.remove("");
    names
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn has_attribute(attributes: &[Attribute], name: &str) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident(name))
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("doc")
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string() == "hidden")
    })
}
