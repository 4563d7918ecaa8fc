//! Which module of a crate imports which, and the circles among them.
//!
//! An import is a path in code that names another module of the crate: in a `use`, or written out
//! (`crate::driver::link::LinkKey`). Code for tests and models does not count. Paths among
//! the arguments of macros count; those in the bodies of `macro_rules!` count where they are written.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ItemFn, ItemImpl, ItemMod, ItemUse, Macro, Path, UseTree};

use crate::Violation;
use crate::source::{Crate, SourceFile, is_for_tests};

/// One place where a module names another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// Index of the importing file in [`Crate::files`].
    pub file: usize,
    /// Line of the path in that file.
    pub line: usize,
    /// The imported module.
    pub module: Vec<String>,
}

/// All imports of a crate's product code.
#[must_use]
pub fn imports(source: &Crate) -> Vec<Import> {
    let modules = source.modules();
    let mut imports = Vec::new();
    for (index, file) in source.files.iter().enumerate() {
        if file.is_test || file.is_generated() {
            continue;
        }
        let found = Visitor::visit(file, &modules).found.into_iter();
        imports.extend(found.map(|(line, module)| Import {
            file: index,
            line,
            module,
        }));
    }
    imports.sort();
    imports.dedup();
    imports
}

/// The places where product code outside of `testing` and `for_testing` names such a module of this crate
/// or of another one.
#[must_use]
pub fn uses_of_testing(source: &Crate) -> Vec<Violation> {
    let modules = source.modules();
    let is_testing = |module: &[String]| {
        let mut parts = module.iter();
        parts.any(|part| ["testing", "for_testing", "rpc_core_testing"].contains(&&**part))
    };
    let files = source.product().filter(|file| !is_testing(&file.module));
    files
        .flat_map(|file| {
            let paths = Visitor::visit(file, &modules).paths.into_iter();
            let uses = paths.filter(|(_, path)| is_testing(path));
            uses.map(|(line, path)| Violation {
                file: file.path.clone(),
                line,
                message: format!(
                    "{}: product code does not use what is for tests; move what it needs below both",
                    path.join("::")
                ),
            })
        })
        .collect()
}

/// Groups of modules that import each other in a loop. An import between a module and one inside
/// it does not count: a parent and its parts are one thing.
#[must_use]
pub fn circles(source: &Crate, imports: &[Import]) -> Vec<BTreeSet<Vec<String>>> {
    let mut arrows: BTreeMap<&[String], BTreeSet<&[String]>> = BTreeMap::new();
    for import in imports {
        let from = source.files[import.file].module.as_slice();
        let to = import.module.as_slice();
        if !from.starts_with(to) && !to.starts_with(from) {
            arrows.entry(from).or_default().insert(to);
        }
    }
    let reachable = |start: &'_ [String]| -> BTreeSet<Vec<String>> {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&[String]> = vec![start];
        while let Some(module) = next.pop() {
            for &to in arrows.get(module).into_iter().flatten() {
                if seen.insert(to.to_vec()) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reaches: BTreeMap<&[String], BTreeSet<Vec<String>>> = arrows
        .keys()
        .map(|&module| (module, reachable(module)))
        .collect();
    let mut circles: BTreeSet<BTreeSet<Vec<String>>> = BTreeSet::new();
    for (&module, reached) in &reaches {
        if reached.contains(module) {
            let back = |other: &&Vec<String>| {
                let others = reaches.get(other.as_slice());
                others.is_some_and(|reached| reached.contains(module))
            };
            circles.insert(reached.iter().filter(back).cloned().collect());
        }
    }
    circles.into_iter().collect()
}

struct Visitor<'a> {
    file: &'a SourceFile,
    modules: &'a BTreeSet<&'a [String]>,
    /// The inline modules around the current position.
    inner: Vec<String>,
    /// The modules of this crate that are named.
    found: Vec<(usize, Vec<String>)>,
    /// The paths themselves, as they are written.
    paths: Vec<(usize, Vec<String>)>,
}

impl<'a> Visitor<'a> {
    fn visit(file: &'a SourceFile, modules: &'a BTreeSet<&'a [String]>) -> Self {
        let mut visitor = Self {
            file,
            modules,
            inner: Vec::new(),
            found: Vec::new(),
            paths: Vec::new(),
        };
        visitor.visit_file(&file.syntax);
        visitor
    }

    /// Records the module that a path names, if it is another file of this crate.
    fn record(&mut self, line: usize, path: &[String]) {
        let mut module = self.file.module.clone();
        module.extend(self.inner.iter().cloned());
        let mut rest = path;
        match rest.first().map(String::as_str) {
            Some("crate") => {
                module.clear();
                rest = &rest[1..];
            }
            Some("self") => rest = &rest[1..],
            Some("super") => {
                while rest.first().is_some_and(|part| part == "super") {
                    module.pop();
                    rest = &rest[1..];
                }
            }
            // A path that begins with a child module's name.
            Some(first) => {
                let child: Vec<String> = module.iter().cloned().chain([first.to_owned()]).collect();
                if !self.modules.contains(child.as_slice()) {
                    return;
                }
            }
            None => return,
        }
        module.extend(rest.iter().cloned());
        while !self.modules.contains(module.as_slice()) {
            if module.pop().is_none() {
                return;
            }
        }
        if module != self.file.module {
            self.found.push((line, module));
        }
    }

    /// Records a path that is written out in code.
    fn record_path(&mut self, line: usize, parts: Vec<String>) {
        if parts.len() > 1 {
            if matches!(parts[0].as_str(), "crate" | "super" | "self") {
                self.record(line, &parts);
            }
            self.paths.push((line, parts));
        }
    }

    /// Records the paths among the arguments of a macro: names with `::` between them.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.record_path(line, std::mem::take(&mut path));
                        line = name.span().start().line;
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.record_path(line, std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.visit_tokens(group.stream());
                    }
                }
            }
        }
        self.record_path(line, path);
    }

    fn record_used(&mut self, line: usize, path: &[String]) {
        self.paths.push((line, path.to_vec()));
        self.record(line, path);
    }

    fn record_tree(&mut self, line: usize, before: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.record_tree(line, before, &path.tree);
                before.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.record_tree(line, before, tree);
                }
            }
            UseTree::Name(name) => {
                before.push(name.ident.to_string());
                self.record_used(line, before);
                before.pop();
            }
            UseTree::Rename(rename) => {
                before.push(rename.ident.to_string());
                self.record_used(line, before);
                before.pop();
            }
            UseTree::Glob(_) => self.record_used(line, before),
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_some() && !is_for_tests(&item.attrs) {
            self.inner.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.inner.pop();
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_for_tests(&item.attrs) {
            let line = item.use_token.span.start().line;
            self.record_tree(line, &mut Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        let line = path.segments[0].ident.span().start().line;
        self.record_path(line, parts);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast Macro) {
        self.visit_tokens(invoked.tokens.clone());
        visit::visit_macro(self, invoked);
    }
}
