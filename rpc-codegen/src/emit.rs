//! What the emitters share: the path to the runtime, documentation, and the attribute that keeps lints off.
//!
//! Emitters name everything by a path from a root (`::core`, `::std`, `self::`, the runtime), because a `.proto` may
//! call a message `Result`, `Send` or `T`.

use crate::model::Method;

/// Where emitted code finds what it names.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    /// `::rpc_core::codegen::v1`
    pub(crate) path: String,
}

impl Runtime {
    /// The runtime in the crate at `crate_path`.
    pub(crate) fn in_crate(crate_path: &str) -> Runtime {
        // The version is in the path so that generated code and a runtime that do not fit fail with a name in the
        // message, not with a type error in code that nobody wrote.
        Runtime {
            path: format!("{crate_path}::codegen::v1"),
        }
    }

    pub(crate) fn request(&self, method: &Method) -> String {
        format!("{}::Request<{}>", self.path, method.request.rust_type)
    }

    pub(crate) fn response(&self, method: &Method) -> String {
        format!("{}::Response<{}>", self.path, method.response.rust_type)
    }
}

/// Doc comment lines; `otherwise` where the `.proto` says nothing.
pub(crate) fn docs(indent: &str, lines: &[String], otherwise: &str) -> String {
    if lines.is_empty() {
        return format!("{indent}/// {otherwise}\n");
    }
    lines
        .iter()
        .map(|line| format!("{indent}///{line}\n"))
        .collect()
}

/// `#[deprecated]` on a line of its own, if it is.
pub(crate) fn deprecated(indent: &str, deprecated: bool) -> String {
    if deprecated {
        format!("{indent}#[deprecated]\n")
    } else {
        String::new()
    }
}

/// Put before every item of a generated file, because `include!` takes no inner attributes: a user's lints are about
/// code that a user can change.
const QUIET: &str = "#[allow(missing_docs, unreachable_pub, unused_qualifications, dead_code, deprecated, \
                     clippy::all, clippy::pedantic)]\n";

/// `code` with its top-level items exempt from lints, those of prost as well as ours.
pub(crate) fn quieted(code: &str) -> String {
    let mut out = String::with_capacity(code.len() * 2);
    for line in code.lines() {
        // Items that start in the first column are the top level: both emitters indent what is inside.
        if ["pub struct ", "pub enum ", "pub trait ", "pub mod ", "impl"]
            .iter()
            .any(|item| line.starts_with(item))
        {
            out.push_str(QUIET);
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}
