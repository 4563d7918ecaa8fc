//! What the emitters share: the runtime's path, modules and their imports, documentation, and the
//! attribute that turns lints off.
//!
//! # Names
//!
//! A `.proto` may call a message `Result`, `Send` or `T`. Each service therefore gets modules of
//! its own: inside them a message is always `super::Name`, and short names belong to the generator.
//! Only the service's trait is defined in such a module under a name that the user chose, and it
//! may be `Request` or `Send` as well. Emitters therefore mark each name from outside with a `$`,
//! as in `$Request<super::HelloRequest>`, and [`Runtime::module`] replaces the mark: by an import,
//! or by a full path if the trait has that name.

use std::collections::BTreeSet;

/// Names in Rust's prelude, which need no import.
const PRELUDE: [&str; 6] = ["Clone", "Fn", "Option", "Result", "Send", "Sync"];

/// Where emitted code finds the items that it uses.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    /// `::rpc_core::codegen::v1`
    pub(crate) path: String,
}

impl Runtime {
    /// Returns the runtime in the crate at `crate_path`.
    pub(crate) fn in_crate(crate_path: &str) -> Runtime {
        // The path contains the version. If generator and runtime do not fit, the compiler reports
        // a missing module instead of type errors in code that nobody wrote.
        Runtime {
            path: format!("{crate_path}::codegen::v1"),
        }
    }

    /// Emits the module `name` with these `items`, after the `use` for the names that they mark
    /// with `$`. `docs` is the module's doc comment.
    ///
    /// `own` is the item whose name comes from the `.proto`: an equal name of the runtime is
    /// written as a path.
    pub(crate) fn module(&self, name: &str, docs: &str, own: &str, items: &str) -> String {
        let mut imports = BTreeSet::new();
        let items = self.resolve(items, own, &mut imports);
        let imports: Vec<_> = imports.into_iter().collect();
        let runtime = match imports.as_slice() {
            [] => String::new(),
            imports => format!("use {}::{{{}}};\n", self.path, imports.join(", ")),
        };
        format!("{docs}pub mod {name} {{\n{runtime}{items}}}\n")
    }

    /// Replaces each `$Name` in `items` and adds to `imports` the names that are to be imported.
    fn resolve<'a>(&self, items: &'a str, own: &str, imports: &mut BTreeSet<&'a str>) -> String {
        let mut out = String::with_capacity(items.len());
        for line in items.split_inclusive('\n') {
            // Documentation comes from the `.proto`, and attributes from settings. They may contain a `$`.
            if line.trim_start().starts_with(['/', '#']) {
                out.push_str(line);
                continue;
            }
            let mut parts = line.split('$');
            out.extend(parts.next());
            for part in parts {
                let name = &part[..part
                    .find(|c: char| !c.is_alphanumeric())
                    .unwrap_or(part.len())];
                if name == own {
                    out.push_str(&format!("{}::", self.path));
                } else if !PRELUDE.contains(&name) {
                    imports.insert(name);
                }
                out.push_str(part);
            }
        }
        out
    }
}

/// Emits a doc comment: the `lines` of the `.proto`, or `otherwise` if it has none, then the
/// paragraphs of `more`.
pub(crate) fn docs(lines: &[String], otherwise: &str, more: &[&str]) -> String {
    let mut out = if lines.is_empty() {
        format!("/// {otherwise}\n")
    } else {
        lines.iter().map(|line| format!("///{line}\n")).collect()
    };
    for paragraph in more {
        out.push_str(&format!("///\n/// {paragraph}\n"));
    }
    out
}

/// Emits `#[deprecated]` on its own line, or nothing.
pub(crate) fn deprecated(deprecated: bool) -> &'static str {
    if deprecated { "#[deprecated]\n" } else { "" }
}

/// Placed before every top-level item of a generated file: users cannot act on lints about
/// generated code, and a file for `include!` cannot have inner attributes.
const QUIET: &str = "#[allow(missing_docs, unreachable_pub, unused_imports, unused_qualifications, \
                     dead_code, deprecated, clippy::all, clippy::pedantic)]\n";

/// Turns lints off for the top-level items of `code`, prost's as well as ours, and separates items
/// by empty lines.
pub(crate) fn finished(code: &str) -> String {
    const ITEMS: [&str; 6] = [
        "pub struct ",
        "pub enum ",
        "pub mod ",
        "mod ",
        "pub use ",
        "impl",
    ];
    let mut out = String::with_capacity(code.len() * 2);
    let mut previous = "";
    for line in code.lines() {
        if starts_item(previous, line) {
            out.push('\n');
        }
        // Nested items are indented, so an item in the first column is at the top level.
        if ITEMS.iter().any(|item| line.starts_with(item)) {
            out.push_str(QUIET);
        }
        out.push_str(&with_path(line));
        out.push('\n');
        previous = line;
    }
    out
}

/// Returns `line` with a path for each enum of the same module that it names in an attribute for prost.
///
/// The derive writes the name into functions where it defines types such as `Inner`. Those would hide an
/// enum of that name.
fn with_path(line: &str) -> String {
    let mut line = line.to_owned();
    if line.trim_start().starts_with("#[prost(") {
        for (before, after) in [("enumeration = \"", '"'), ("enumeration(", ')')] {
            let Some(start) = line.find(before).map(|at| at + before.len()) else {
                continue;
            };
            let name = line[start..].split(after).next().unwrap_or_default();
            if !name.contains("::") {
                line.insert_str(start, "self::");
            }
        }
    }
    line
}

/// Returns true if a new item begins with `line`, on the same level as the one that ends before it.
fn starts_item(previous: &str, line: &str) -> bool {
    const STARTS: [&str; 6] = ["///", "#[", "pub ", "impl", "fn ", "async fn "];
    let indent = |line: &str| line.len() - line.trim_start().len();
    previous.ends_with(['}', ';'])
        && !previous.trim_start().starts_with("//")
        && indent(previous) == indent(line)
        && STARTS
            .iter()
            .any(|start| line.trim_start().starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_imported_once() {
        let code = Runtime::in_crate("::rpc_core").module(
            "m",
            "/// A module.\n",
            "Greeter",
            "/// Costs $Request.\nfn f(_: $Request<super::M>, _: $Request<super::N>) -> $Result<$fmt::Error, ()>;\n",
        );
        assert_eq!(
            code,
            "/// A module.\npub mod m {\nuse ::rpc_core::codegen::v1::{Request, fmt};\n\
             /// Costs $Request.\nfn f(_: Request<super::M>, _: Request<super::N>) -> Result<fmt::Error, ()>;\n}\n"
        );
    }

    #[test]
    fn a_name_that_the_service_has_is_written_as_a_path() {
        let items = "pub trait Send: $Send + $Sync {}\n";
        let code = Runtime::in_crate("crate::rpc").module("m", "/// A module.\n", "Send", items);
        assert_eq!(
            code,
            "/// A module.\npub mod m {\npub trait Send: crate::rpc::codegen::v1::Send + Sync {}\n}\n"
        );
    }
}
