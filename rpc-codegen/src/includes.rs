//! Where `.proto` files are: the files to compile, and the directories that imports are looked up in.

use std::path::{Component, Path, PathBuf};

use crate::error::Error;

/// The files to compile.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) protos: Vec<PathBuf>,
    pub(crate) includes: Vec<PathBuf>,
}

impl Sources {
    /// Returns the names under which the files to compile can be imported.
    pub(crate) fn roots(&self) -> Result<Vec<String>, Error> {
        let root = |path: &PathBuf| {
            let name = self.import_name(path);
            let found = name.as_deref().and_then(|name| self.find(name));
            match (name, found) {
                (Some(name), Some(found)) if is_read(path, &name, &found) => Ok(name),
                (_, Some(by)) => Err(Error::Shadowed {
                    path: path.clone(),
                    by,
                }),
                _ if path.is_file() => Err(Error::NotIncluded {
                    path: path.clone(),
                    includes: self.includes.clone(),
                }),
                _ => Err(Error::FileNotFound { path: path.clone() }),
            }
        };
        // The order of the list has no influence, on the output and on which mistake is found.
        let mut roots: Vec<_> = self.protos.iter().map(root).collect::<Result<_, _>>()?;
        roots.sort();
        roots.dedup();
        Ok(roots)
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
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        self.includes
            .iter()
            .map(|include| include.join(name))
            .find(|path| path.is_file())
    }

    /// Returns the include directories, for messages.
    pub(crate) fn list_includes(&self) -> String {
        let includes = self.includes.iter().map(|path| path.display().to_string());
        let includes: Vec<_> = includes.collect();
        format!("the include directories are: {}", includes.join(", "))
    }
}

/// Returns true if `path` names the file `found`, which an import of `name` reads.
fn is_read(path: &Path, name: &str, found: &Path) -> bool {
    // It may be relative to an include directory instead of the current one.
    path == Path::new(name)
        || matches!((path.canonicalize(), found.canonicalize()), (Ok(path), Ok(found)) if path == found)
}

#[cfg(test)]
mod tests {
    use super::*;

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
