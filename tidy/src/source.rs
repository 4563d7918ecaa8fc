//! A crate's source files as syntax trees, each with its module path.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::{Attribute, File, Item, Meta, Token};

/// The root of this checkout.
#[must_use]
pub fn workspace_root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}

/// One crate's library: its files, from `src/lib.rs` down.
pub struct Crate {
    /// The package's name.
    pub name: String,
    /// In the order of their paths.
    pub files: Vec<SourceFile>,
}

/// One file of a crate.
pub struct SourceFile {
    /// Relative to the checkout's root.
    pub path: PathBuf,
    /// Module path from the crate's root, for example `["driver", "link"]`; empty for `lib.rs`.
    pub module: Vec<String>,
    /// The file's text.
    pub text: String,
    /// The parsed text.
    pub syntax: File,
    /// True if the module is declared for tests alone (`#[cfg(test)] mod tests;`).
    pub is_test: bool,
}

impl Crate {
    /// Reads the library of the package in the folder `package` of the checkout at `root`.
    ///
    /// # Panics
    ///
    /// If a file cannot be read or is not Rust, or if there is none: nothing can be checked then.
    #[must_use]
    pub fn read(root: &Path, package: &str) -> Self {
        let source = root.join(package).join("src");
        let mut paths = Vec::new();
        list_rust_files(&source, &mut paths);
        paths.sort();
        let mut files: Vec<SourceFile> = paths
            .into_iter()
            .filter(|path| {
                path.strip_prefix(&source)
                    .is_ok_and(|path| !is_program(path))
            })
            .map(|path| SourceFile::read(root, package, &path))
            .collect();
        assert!(!files.is_empty(), "{} has no Rust files", source.display());
        let tests = test_modules(&files);
        for file in &mut files {
            file.is_test = tests.iter().any(|test| file.module.starts_with(test));
        }
        Self {
            name: name_of(&root.join(package).join("Cargo.toml")),
            files,
        }
    }

    /// A crate of files with these paths below `src` and these texts.
    ///
    /// # Panics
    ///
    /// If a text is not Rust.
    #[must_use]
    pub fn from_texts(name: &str, texts: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| {
            SourceFile::new(name, Path::new(path), (*text).to_owned())
        };
        Self {
            name: name.to_owned(),
            files: texts.iter().map(file).collect(),
        }
    }

    /// The paths of all modules that have a file.
    #[must_use]
    pub fn modules(&self) -> BTreeSet<&[String]> {
        let files = self.files.iter();
        files.map(|file| file.module.as_slice()).collect()
    }

    /// The files that are part of the product: no tests.
    pub fn product(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| !file.is_test)
    }
}

impl SourceFile {
    fn read(root: &Path, package: &str, path: &Path) -> Self {
        let text = fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        let in_source = path.strip_prefix(root.join(package).join("src"));
        Self::new(
            package,
            in_source.expect("the path was listed below it"),
            text,
        )
    }

    /// The file at a path below `src`.
    fn new(package: &str, in_source: &Path, text: String) -> Self {
        let path = Path::new(package).join("src").join(in_source);
        let syntax = syn::parse_file(&text)
            .unwrap_or_else(|error| panic!("cannot parse {}: {error}", path.display()));
        let mut module: Vec<String> = in_source
            .with_extension("")
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
            module.pop();
        }
        Self {
            path,
            module,
            text,
            syntax,
            is_test: false,
        }
    }

    /// True if people wrote the file, and not for tests.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        !self.is_test && !self.is_generated()
    }

    /// True if a tool wrote the file.
    #[must_use]
    pub fn is_generated(&self) -> bool {
        self.text.starts_with("// This file is @generated")
    }
}

/// True if the item exists only in tests, models and fuzz targets: its `#[cfg(…)]` is false where
/// `test`, `loom` and `fuzzing` are, whatever the features and the target are.
#[must_use]
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<Meta>()
                    .is_ok_and(|condition| in_product(&condition) == Some(false))
    })
}

/// Evaluates a condition of `cfg` for product code. `None` if it depends on features or the target.
fn in_product(condition: &Meta) -> Option<bool> {
    let Meta::List(list) = condition else {
        let for_tests = ["test", "loom", "fuzzing"];
        let is_for_tests = for_tests.iter().any(|name| condition.path().is_ident(name));
        return is_for_tests.then_some(false);
    };
    let parts = list
        .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
        .unwrap_or_default();
    let parts: Vec<Option<bool>> = parts.iter().map(in_product).collect();
    if list.path.is_ident("not") {
        return parts.first().copied().flatten().map(|value| !value);
    }
    // One part that is false decides `all`; one that is true decides `any`.
    let decides = !list.path.is_ident("all");
    if parts.contains(&Some(decides)) {
        Some(decides)
    } else if parts.contains(&None) {
        None
    } else {
        Some(!decides)
    }
}

/// The name of the package with this manifest.
fn name_of(manifest: &Path) -> String {
    let text = fs::read_to_string(manifest)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", manifest.display()));
    let mut lines = text.lines();
    let name = lines.find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.unwrap_or_else(|| panic!("{} names no package", manifest.display()))
        .to_owned()
}

fn list_rust_files(folder: &Path, paths: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a listed folder has entries").path();
        if path.is_dir() {
            list_rust_files(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

/// `main.rs` and `bin/…` below `src`: programs are crates of their own.
fn is_program(path: &Path) -> bool {
    path == Path::new("main.rs") || path.starts_with("bin")
}

/// The modules that are declared for tests alone.
fn test_modules(files: &[SourceFile]) -> Vec<Vec<String>> {
    let mut tests = Vec::new();
    for file in files {
        for item in &file.syntax.items {
            if let Item::Mod(declared) = item
                && declared.content.is_none()
                && is_for_tests(&declared.attrs)
            {
                let mut module = file.module.clone();
                module.push(declared.ident.to_string());
                tests.push(module);
            }
        }
    }
    tests
}
