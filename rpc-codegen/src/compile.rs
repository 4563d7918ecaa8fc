//! Compiles `.proto` files to descriptors, with protox or `protoc`, and lists the files that were
//! read.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use miette::Diagnostic;
use prost::Message;
use prost_types::FileDescriptorSet;

use crate::error::Error;
use crate::problem::{Place, Problem};

/// The files to compile.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) protos: Vec<PathBuf>,
    pub(crate) includes: Vec<PathBuf>,
}

/// The compiled descriptors.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// All files. Imported files precede the files that import them.
    pub(crate) set: FileDescriptorSet,
    /// The same set encoded. It contains the custom options too, for which `set` has no field.
    pub(crate) bytes: Vec<u8>,
    /// The names, in `set`, of the files to compile; the others are imports.
    pub(crate) roots: Vec<String>,
    /// The paths of the files that were read, by their names in `set`.
    pub(crate) read: BTreeMap<String, PathBuf>,
}

impl Sources {
    /// Compiles with protox, which needs no installed program.
    ///
    /// # Errors
    ///
    /// Returns an error if a file does not exist, is in no include directory, or has mistakes.
    pub(crate) fn compile(&self) -> Result<Compiled, Error> {
        let roots = self.roots()?;
        let compile = || {
            let mut compiler = protox::Compiler::new(&self.includes)?;
            compiler
                .include_imports(true)
                .include_source_info(true)
                .open_files(&self.protos)?;
            Ok(compiler)
        };
        let compiler = compile().map_err(|err| self.explain(err))?;
        Ok(Compiled {
            set: compiler.file_descriptor_set(),
            bytes: compiler.encode_file_descriptor_set(),
            roots,
            // Files without a path are the well-known types that protox contains.
            read: compiler
                .files()
                .filter_map(|file| Some((file.name().to_owned(), file.path()?.to_owned())))
                .collect(),
        })
    }

    /// Compiles with the program at `protoc`, which gets `args` as well.
    ///
    /// # Errors
    ///
    /// Returns an error if a file does not exist or is in no include directory, or if `protoc`
    /// cannot be run, fails, or doesn't write a descriptor set.
    pub(crate) fn compile_with_protoc(
        &self,
        protoc: &Path,
        args: &[OsString],
    ) -> Result<Compiled, Error> {
        let roots = self.roots()?;
        let mut command = Command::new(protoc);
        command.args([
            "--include_imports",
            "--include_source_info",
            "--descriptor_set_out=/dev/stdout",
        ]);
        for include in &self.includes {
            command.arg("-I").arg(include);
        }
        let output =
            command
                .args(args)
                .args(&self.protos)
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
        let set = FileDescriptorSet::decode(output.stdout.as_slice()).map_err(|source| {
            Error::ProtocOutput {
                protoc: protoc.to_owned(),
                source,
            }
        })?;
        // Files in none of the include directories are the well-known types that protoc contains.
        let read = set
            .file
            .iter()
            .filter_map(|file| Some((file.name().to_owned(), self.find(file.name())?)))
            .collect();
        Ok(Compiled {
            set,
            bytes: output.stdout,
            roots,
            read,
        })
    }

    /// Returns the names under which the files to compile can be imported.
    fn roots(&self) -> Result<Vec<String>, Error> {
        let root = |path: &PathBuf| match self.import_name(path) {
            Some(name) if self.find(&name).is_some() => Ok(name),
            _ if path.exists() => Err(Error::NotIncluded {
                path: path.clone(),
                includes: self.includes.clone(),
            }),
            _ => Err(Error::FileNotFound { path: path.clone() }),
        };
        self.protos.iter().map(root).collect()
    }

    /// Returns the name under which `path` can be imported: `b/c.proto` for `a/b/c.proto` if `a` is
    /// an include directory. A relative path that is below none is returned as it is.
    fn import_name(&self, path: &Path) -> Option<String> {
        // Compare components only, so that `./a` and `a/` are equal.
        let plain = |path: &Path| -> PathBuf {
            path.components()
                .filter(|part| *part != Component::CurDir)
                .collect()
        };
        let path = plain(path);
        let below = self
            .includes
            .iter()
            .find_map(|include| Some(path.strip_prefix(plain(include)).ok()?.to_owned()));
        let name = below.or_else(|| path.is_relative().then_some(path))?;
        Some(name.to_str()?.to_owned())
    }

    /// Returns the path of the file that an import of `name` reads.
    fn find(&self, name: &str) -> Option<PathBuf> {
        self.includes
            .iter()
            .map(|include| include.join(name))
            .find(|path| path.is_file())
    }

    /// Converts an error of protox, with the lines of the file to which it refers.
    fn explain(&self, err: protox::Error) -> Error {
        let name = err.file().unwrap_or_default();
        let file = self.find(name).unwrap_or_else(|| PathBuf::from(name));
        // If the file can no longer be read, the error just shows no lines.
        let source = fs::read_to_string(&file).unwrap_or_default();
        if let Some((line, edition)) = edition_of(&source) {
            return Error::Edition {
                file,
                line: Some(line),
                edition: Some(edition),
            };
        }
        let mut problems = vec![problem(&err, &file, &source)];
        problems.extend(
            err.related()
                .into_iter()
                .flatten()
                .map(|related| problem(related, &file, &source)),
        );
        if err.is_file_not_found() && !problems[0].places.is_empty() {
            let includes: Vec<_> = self
                .includes
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            problems[0].help = Some(format!(
                "the include directories are: {}",
                includes.join(", ")
            ));
        }
        Error::Proto { problems }
    }
}

fn problem(diagnostic: &dyn Diagnostic, file: &Path, source: &str) -> Problem {
    let mut problem = Problem::in_file(file, diagnostic.to_string());
    problem.help = diagnostic.help().map(|help| help.to_string());
    for label in diagnostic.labels().into_iter().flatten() {
        let text = label.label().unwrap_or_default().to_owned();
        problem
            .places
            .push(Place::new(source, label.offset(), label.len(), text));
    }
    // Of two definitions with the same name, show the second one first: it is probably the mistake.
    if problem
        .places
        .first()
        .is_some_and(|place| place.label.starts_with("first"))
    {
        problem.places.reverse();
    }
    if problem.places.is_empty() && problem.message.ends_with("end of file") {
        problem.places.push(Place::end_of(source));
    }
    problem
}

/// Returns the line and the value of the `edition` statement if `source` begins with one.
fn edition_of(source: &str) -> Option<(usize, String)> {
    let mut rest = source;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
        rest = match rest.get(..2) {
            Some("//") => rest.split_once('\n')?.1,
            Some("/*") => rest.split_once("*/")?.1,
            _ => break,
        };
    }
    let value = rest
        .strip_prefix("edition")?
        .trim_start()
        .strip_prefix('=')?;
    let value = value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .trim_matches(['"', '\'']);
    let line = source[..source.len() - rest.len()].matches('\n').count() + 1;
    Some((line, value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edition_is_found_after_comments() {
        let source = "// edition = \"no\";\n/* nor\n here */\nedition = \"2023\";\npackage a;";
        assert_eq!(edition_of(source), Some((4, "2023".to_owned())));
        assert_eq!(
            edition_of("syntax = \"proto3\"; // edition = \"2023\";"),
            None
        );
        assert_eq!(edition_of("/* never closed edition"), None);
        assert_eq!(edition_of("/é"), None);
    }

    #[test]
    fn import_names_are_relative_to_an_include_directory() {
        let sources = Sources {
            protos: vec![],
            includes: vec!["./a".into(), "/abs".into()],
        };
        assert_eq!(
            sources.import_name(Path::new("a/b/c.proto")).as_deref(),
            Some("b/c.proto")
        );
        assert_eq!(
            sources.import_name(Path::new("/abs/c.proto")).as_deref(),
            Some("c.proto")
        );
        assert_eq!(
            sources.import_name(Path::new("c.proto")).as_deref(),
            Some("c.proto")
        );
        assert_eq!(sources.import_name(Path::new("/elsewhere/c.proto")), None);
    }
}
