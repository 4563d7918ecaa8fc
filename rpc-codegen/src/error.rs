//! Why no code was generated.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::problem::Problem;

/// Why no code was generated, said so that it can be mended without looking elsewhere.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A `.proto` file that is to be compiled is not there.
    #[error("{}: no such file (relative paths start in the package's directory)", path.display())]
    FileNotFound {
        /// The file, as it was named.
        path: PathBuf,
    },

    /// A `.proto` file is there, but below none of the include directories, and so has no name to be imported by.
    #[error("{}: is not below any of the include directories ({})", path.display(), list(includes))]
    NotIncluded {
        /// The file, as it was named.
        path: PathBuf,
        /// The include directories.
        includes: Vec<PathBuf>,
    },

    /// The `.proto` files have mistakes in them.
    #[error("{}", lines(problems))]
    Proto {
        /// All that were found, at least one.
        problems: Vec<Problem>,
    },

    /// A `.proto` file is written in an edition, and only `syntax = "proto2"` and `"proto3"` are read so far.
    #[error(
        "{}{}: {} not supported yet: write `syntax = \"proto3\";` instead",
        file.display(), at(*line), editions(edition.as_deref())
    )]
    Edition {
        /// The file.
        file: PathBuf,
        /// The line of the `edition` statement, counted from one, if it is known.
        line: Option<usize>,
        /// Which edition, if it is known.
        edition: Option<String>,
    },

    /// A method streams, and only unary methods are generated so far.
    #[error(
        "{}{}: method `{method}` of service `{service}` streams its {}, which is not supported yet: \
         only unary methods are", file.display(), at(*line), streams(*requests, *responses)
    )]
    Streaming {
        /// The file.
        file: PathBuf,
        /// The line of the method, counted from one, if it is known.
        line: Option<usize>,
        /// The service's full name.
        service: String,
        /// The method's name.
        method: String,
        /// Whether the client streams.
        requests: bool,
        /// Whether the server streams.
        responses: bool,
    },

    /// Two things in one package would get the same Rust name.
    #[error(
        "{}{}: {what} needs the Rust name `{name}`, which {other} has already: rename one of the two",
        file.display(), at(*line)
    )]
    NameTaken {
        /// The file.
        file: PathBuf,
        /// The line of the service or method, counted from one, if it is known.
        line: Option<usize>,
        /// What cannot have its name, for example "service `demo.Greeter`".
        what: String,
        /// The Rust name.
        name: String,
        /// What has it, for example "message `demo.GreeterClient`".
        other: String,
    },

    /// A descriptor set lacks a file that one of its files imports.
    #[error("the descriptor set has {file}, but not {import}, which it imports")]
    IncompleteDescriptorSet {
        /// The importing file.
        file: String,
        /// The file that is missing.
        import: String,
    },

    /// `protoc` was asked for, and is not installed.
    #[error(
        "no protoc at {}: install it (Debian, Ubuntu: `apt install protobuf-compiler`; macOS: `brew install \
         protobuf`), or leave `.protoc(…)` out of the build script, as nothing needs to be installed then",
        protoc.display()
    )]
    ProtocNotFound {
        /// What was run.
        protoc: PathBuf,
    },

    /// `protoc` ran and refused; it names file, line and column itself.
    #[error("{} failed ({status}):\n{stderr}", protoc.display())]
    Protoc {
        /// What was run.
        protoc: PathBuf,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said.
        stderr: String,
    },

    /// What `protoc` wrote is not a descriptor set.
    #[error("{} did not write a descriptor set", protoc.display())]
    ProtocOutput {
        /// What was run.
        protoc: PathBuf,
        /// Why not.
        source: prost::DecodeError,
    },

    /// A setting that the code generator cannot use, for example an `extern_path` given twice.
    #[error("{message}")]
    Setting {
        /// Which, and why not.
        message: String,
    },

    /// There is no directory to write to.
    #[error("OUT_DIR is not set, as it is in a build script: name a directory with `.out_dir(…)`")]
    NoOutDir,

    /// The operating system refused something.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The readable form, because a build script's `main() -> Result<(), Box<dyn Error>>` prints this one.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        // Display leaves the cause to whoever walks the chain; here nobody does.
        match std::error::Error::source(self) {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

fn at(line: Option<usize>) -> String {
    line.map(|line| format!(":{line}")).unwrap_or_default()
}

fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(Problem::to_string)
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

fn editions(edition: Option<&str>) -> String {
    edition.map_or("editions are".to_owned(), |edition| {
        format!("edition {edition:?} is")
    })
}

fn streams(requests: bool, responses: bool) -> &'static str {
    match (requests, responses) {
        (true, true) => "requests and responses",
        (true, false) => "requests",
        _ => "responses",
    }
}
