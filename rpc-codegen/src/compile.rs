//! Compiles `.proto` files to descriptors, with protox's parser or `protoc`, and lists the files that
//! were read.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;
use prost_types::FileDescriptorSet;

use crate::editions::{self, EditionsInSet};
use crate::error::Error;
use crate::includes::Sources;
use crate::link::{Linked, Linker};

/// The compiled descriptors.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// All files. Imported files precede the files that import them.
    pub(crate) set: FileDescriptorSet,
    /// The same set encoded, or nothing if nobody asked for it. It contains the custom options too, for
    /// which `set` has no field.
    pub(crate) bytes: Vec<u8>,
    /// The names, in `set`, of the files to compile; the others are imports.
    pub(crate) roots: Vec<String>,
    /// The paths of the files that were read, by their names in `set`.
    pub(crate) read: BTreeMap<String, PathBuf>,
}

/// Compiles with protox's parser, which needs no installed program. The descriptors are encoded too if
/// `encodes`.
///
/// # Errors
///
/// Returns an error if a file does not exist, is in no include directory, or has mistakes.
pub(crate) fn with_protox(sources: &Sources, encodes: bool) -> Result<Compiled, Error> {
    let roots = sources.roots()?;
    let mut linker = Linker::new(sources);
    for root in &roots {
        linker.add(root)?;
    }
    let Linked { set, bytes, read } = linker.finish(encodes);
    Ok(Compiled {
        set,
        bytes,
        roots,
        read,
    })
}

/// Compiles with the program at `protoc`, which gets `args` as well.
///
/// # Errors
///
/// Returns an error if a file does not exist or is in no include directory, or if `protoc`
/// cannot be run, fails, or doesn't write a descriptor set.
pub(crate) fn with_protoc(
    sources: &Sources,
    protoc: &Path,
    args: &[OsString],
) -> Result<Compiled, Error> {
    let roots = sources.roots()?;
    let mut command = Command::new(protoc);
    command.args([
        "--include_imports",
        "--include_source_info",
        "--descriptor_set_out=/dev/stdout",
    ]);
    for include in &sources.includes {
        command.arg("-I").arg(include);
    }
    let output = command
        .args(args)
        .args(roots.iter().filter_map(|root| sources.find(root)))
        .output()
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::ProtocNotFound {
                protoc: protoc.to_owned(),
            },
            _ => Error::Io {
                doing: "run",
                path: protoc.to_owned(),
                source,
            },
        })?;
    if !output.status.success() {
        return Err(Error::Protoc {
            protoc: protoc.to_owned(),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr)
                .trim_end()
                .to_owned(),
        });
    }
    let mut set = FileDescriptorSet::decode(output.stdout.as_slice())
        .map_err(|source| undecodable(sources, protoc, &output.stdout, source))?;
    // Files in none of the include directories are the well-known types that protoc contains.
    let read: BTreeMap<_, _> = set
        .file
        .iter()
        .filter_map(|file| Some((file.name().to_owned(), sources.find(file.name())?)))
        .collect();
    let editions =
        EditionsInSet::decode(output.stdout.as_slice()).map_err(|source| Error::ProtocOutput {
            protoc: protoc.to_owned(),
            source,
        })?;
    editions::lower(&editions.files, &mut set, &read)?;
    Ok(Compiled {
        set,
        bytes: output.stdout,
        roots,
        read,
    })
}

/// The names of the files of a descriptor set, which can be decoded though their comments cannot.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(message, repeated, tag = "1")]
    files: Vec<NamedFile>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedFile {
    #[prost(string, tag = "1")]
    name: String,
}

/// Returns the error of a descriptor set that cannot be decoded: protoc passes comments on as they
/// are.
fn undecodable(
    sources: &Sources,
    protoc: &Path,
    bytes: &[u8],
    source: prost::DecodeError,
) -> Error {
    let files = Named::decode(bytes).unwrap_or_default().files;
    let not_utf8 = files.iter().find_map(|named| {
        let file = sources.find(&named.name)?;
        let bytes = fs::read(&file).ok()?;
        let offset = std::str::from_utf8(&bytes).err()?.valid_up_to();
        let line = bytes[..offset]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        Some(Error::NotUtf8 { file, line, offset })
    });
    not_utf8.unwrap_or_else(|| Error::ProtocOutput {
        protoc: protoc.to_owned(),
        source,
    })
}
