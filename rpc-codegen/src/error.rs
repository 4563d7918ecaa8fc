//! The errors of code generation.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::problem::Problem;

/// An error that prevented code generation.
///
/// The message names the file and, if it is known, the line, and says what to change. `Debug`
/// prints the message as well: Rust prints the error of a build script's `main` with `Debug`. Match
/// on the variant for its data.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A `.proto` file to compile does not exist, or is a directory.
    #[error("{}: {}", path.display(), no_file(path))]
    FileNotFound {
        /// The file, as it was named.
        path: PathBuf,
    },

    /// A `.proto` file to compile is in none of the include directories, and so it has no import
    /// name.
    #[error("{}: not in any of the include directories ({})", path.display(), list(includes))]
    NotIncluded {
        /// The file, as it was named.
        path: PathBuf,
        /// The include directories.
        includes: Vec<PathBuf>,
    },

    /// An import of a `.proto` file to compile would read another file: an earlier include directory
    /// has one of the same name.
    #[error(
        "{}: an import of this file would read {}, which is in an earlier include directory: reorder the \
         include directories, or compile that file",
        path.display(), by.display()
    )]
    Shadowed {
        /// The file, as it was named.
        path: PathBuf,
        /// The file that would be read.
        by: PathBuf,
    },

    /// The `.proto` files contain mistakes.
    #[error("{}", blocks(problems))]
    Proto {
        /// The mistakes, at least one.
        problems: Vec<Problem>,
    },

    /// A `.proto` file has an edition, which the built-in parser does not read, and for whose features
    /// a [`FileDescriptorSet`](crate::FileDescriptorSet) has no field.
    #[error("{}{}: {}", file.display(), at(*line), editions(edition.as_deref()))]
    Edition {
        /// The file.
        file: PathBuf,
        /// The line of the `edition` statement, counted from one, if it is known.
        line: Option<usize>,
        /// The edition, if it is known. It is not for a descriptor.
        edition: Option<String>,
    },

    /// protoc has read a file whose edition, or one of whose features, this generator does not know.
    #[error("{}: {what} is not known to this generator, which knows the editions 2023 and 2024", file.display())]
    UnknownFeature {
        /// The file.
        file: PathBuf,
        /// The edition or the feature, for example "the feature `field_presence = 4`".
        what: String,
    },

    /// A `.proto` file has bytes that are not UTF-8, so protoc's descriptors cannot be decoded.
    #[error(
        "{}:{line}: the byte at offset {offset} is not UTF-8: save the file as UTF-8, or remove `.protoc(…)` \
         from the build script: the built-in parser replaces such bytes in comments",
        file.display()
    )]
    NotUtf8 {
        /// The file.
        file: PathBuf,
        /// The line of the first such byte, counted from one.
        line: usize,
        /// Its offset in the file in bytes.
        offset: usize,
    },

    /// Two items in one place, such as a package, a message or an enum, would have the same Rust name.
    #[error(
        "{}{}: {what} and {other} would both have the Rust name `{name}`: rename one of them",
        file.display(), at(*line)
    )]
    NameTaken {
        /// The file.
        file: PathBuf,
        /// The line of the second item, counted from one, if it is known.
        line: Option<usize>,
        /// The second item, for example "message `demo.hello`".
        what: String,
        /// The common Rust name.
        name: String,
        /// The first item, for example "message `demo.Hello`".
        other: String,
    },

    /// The name of an item consists of underscores only, which is not a valid name in Rust.
    #[error("{}{}: {what} has no valid Rust name: rename it", file.display(), at(*line))]
    NoRustName {
        /// The file.
        file: PathBuf,
        /// The line of the item, counted from one, if it is known.
        line: Option<usize>,
        /// The item, for example "message `demo._`".
        what: String,
    },

    /// An item uses a type of the package `google.protobuf` that the crate prost-types does not have.
    #[error(
        "{}{}: {what} uses the type `{type}`, which the crate prost-types does not have: set \
         `.compile_well_known_types(true)`, which generates all types of `google.protobuf`",
        file.display(), at(*line)
    )]
    NotInProstTypes {
        /// The file.
        file: PathBuf,
        /// The line of the item, counted from one, if it is known.
        line: Option<usize>,
        /// The item, for example "field `edition` of message `demo.File`".
        what: String,
        /// The type, for example "google.protobuf.Edition".
        r#type: String,
    },

    /// There are several errors of the kinds above, or several settings that are not valid.
    #[error("{}", blocks(errors))]
    Several {
        /// The errors, at least two, in the order of the files.
        errors: Vec<Error>,
    },

    /// A descriptor set does not contain a file that one of its files imports.
    #[error("the descriptor set contains {file}, but not {import}, which {file} imports")]
    IncompleteDescriptorSet {
        /// The importing file.
        file: String,
        /// The missing file.
        import: String,
    },

    /// The `protoc` that was set does not exist.
    #[error(
        "protoc not found at {}: install it (Debian, Ubuntu: `apt install protobuf-compiler`; macOS: `brew \
         install protobuf`), or remove `.protoc(…)` from the build script: nothing needs to be installed then",
        protoc.display()
    )]
    ProtocNotFound {
        /// The program.
        protoc: PathBuf,
    },

    /// `protoc` failed. Its own message names file, line and column.
    #[error("{} failed ({status}):\n{stderr}", protoc.display())]
    Protoc {
        /// The program.
        protoc: PathBuf,
        /// The exit status.
        status: std::process::ExitStatus,
        /// The error output.
        stderr: String,
    },

    /// The output of `protoc` is not a descriptor set.
    #[error("{} did not write a descriptor set", protoc.display())]
    ProtocOutput {
        /// The program.
        protoc: PathBuf,
        /// The error of decoding it.
        source: prost::DecodeError,
    },

    /// A codec cannot be generated for a message, because prost's code for it is not understood. A
    /// newer version of prost may have generated it, or an attribute that was set.
    #[error(
        "{file}: no codec for message `{message}`: prost's code for {} has {found}, which is not understood; \
         with `.build_codec(false)` prost encodes all messages",
        field.as_ref().map_or("it".to_owned(), |field| format!("the field `{field}`"))
    )]
    NoCodec {
        /// The file with the message.
        file: String,
        /// The message, for example `demo.HelloRequest`.
        message: String,
        /// The field, if the fault is in one.
        field: Option<String>,
        /// What was found in prost's code.
        found: String,
    },

    /// A setting is not valid, for example an `extern_path` for a path that already has one.
    #[error("{message}")]
    Setting {
        /// The setting and the reason.
        message: String,
    },

    /// There is no directory to write to: no `out_dir` is set, and this is not a build script.
    #[error(
        "OUT_DIR is not set: run this in a build script, or set a directory with `.out_dir(…)`"
    )]
    NoOutDir,

    /// An I/O operation failed.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation, for example "write".
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    /// Returns all `errors` as one, or `Ok` if there is none.
    pub(crate) fn any_of(errors: impl IntoIterator<Item = Error>) -> Result<(), Error> {
        let mut errors: Vec<_> = errors.into_iter().collect();
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several { errors }),
        }
    }
}

/// Prints the message rather than the variant: Rust prints the error that a build script's `main`
/// returns with `Debug`, and the mistake should be readable there.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        // `main` does not print the source.
        match std::error::Error::source(self) {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

fn no_file(path: &Path) -> &'static str {
    match path.is_dir() {
        true => "this is a directory: name the `.proto` files in it",
        false => "no such file; relative paths are resolved from the package's directory",
    }
}

fn at(line: Option<usize>) -> String {
    line.map(|line| format!(":{line}")).unwrap_or_default()
}

fn blocks(all: &[impl fmt::Display]) -> String {
    let texts: Vec<_> = all.iter().map(|one| one.to_string()).collect();
    texts.join("\n\n")
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

fn editions(edition: Option<&str>) -> String {
    match edition {
        Some(edition) => format!(
            "edition {edition:?} is not read by the built-in parser: have protoc read the file (27 or newer): \
             set `.protoc(\"protoc\")`"
        ),
        None => "a descriptor of prost-types has no field for the features of its edition: pass the file to \
                 `compile_protos`, with `.protoc(\"protoc\")`"
            .to_owned(),
    }
}
