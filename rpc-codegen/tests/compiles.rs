//! Compiles generated code against `rpc-core`, in both editions and with the lints that it may
//! trigger.

#[path = "compiles/words.rs"]
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rpc_codegen::Builder;
use tempfile::TempDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
const PROTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protos");
const USER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compiles");

#[test]
fn in_edition_2021() {
    let user = UserCrate::new("2021");
    succeeds(&mut user.cargo("check"));
}

/// Each build takes seconds, so what is said of one crate is in one test.
#[test]
fn in_edition_2024_and_not_with_futures_that_are_not_send() {
    let user = UserCrate::new("2024");
    succeeds(&mut user.cargo("check"));
    // rustdoc finds no mistakes in the documentation that was made from comments.
    succeeds(
        user.cargo("doc")
            .arg("--no-deps")
            .env("RUSTDOCFLAGS", "-D warnings"),
    );
    // A handler, then a stream.
    future_is_not_send(&user, "not-send");
    future_is_not_send(&user, "stream-not-send");
}

#[test]
fn without_the_codec() {
    let user = UserCrate::with("2024-prost", |builder| builder.build_codec(false));
    succeeds(&mut user.cargo("check"));
}

/// The names are in a crate of their own, because they would make each of the other ones slow.
#[test]
fn with_each_name_in_each_place() {
    let protos = TempDir::new().unwrap();
    for (name, text) in words::protos() {
        fs::write(protos.path().join(name), text).unwrap();
    }
    let user = UserCrate::empty("2024-words");
    user.generate(&[protos.path()], |builder| builder);
    let code = "//! All packages.\npub mod all { rpc_core::include_protos!(\"packages.rs\"); }\n";
    fs::write(user.dir.join("src/lib.rs"), code).unwrap();
    succeeds(&mut user.cargo("check"));
}

/// Names of services that others have, and modules that packages and nested types have in common.
#[test]
fn with_shared_names() {
    let dir = Path::new(USER).join("shared");
    let user = UserCrate::empty("2024-shared");
    user.generate(&[&dir], |builder| builder);
    fs::copy(dir.join("lib.rs"), user.dir.join("src/lib.rs")).unwrap();
    succeeds(&mut user.cargo("check"));
    // Links in the documentation lead to items that are not re-exported, too.
    succeeds(
        user.cargo("doc")
            .arg("--no-deps")
            .env("RUSTDOCFLAGS", "-D warnings"),
    );
}

#[test]
fn through_a_renamed_facade() {
    let user = UserCrate::with("2024-facade", |builder| builder.crate_path("::verb"));
    let facade = Path::new(env!("CARGO_TARGET_TMPDIR")).join("facade");
    write_crate(&facade, "verbline", "2024", &dependency("rpc-core", ""));
    let code = "//! The facade.\npub use rpc_core::{codegen, include_proto, include_protos};\n";
    fs::write(facade.join("src/lib.rs"), code).unwrap();
    let rename = format!("verb = {{ package = \"verbline\", path = {facade:?} }}");
    write_crate(&user.dir, "user", "2024", &rename);
    let code = "//! All packages, and one alone.\n\
                pub mod all { verb::include_protos!(\"packages.rs\"); }\n\
                pub mod greeter { verb::include_proto!(\"greeter\"); }\n";
    fs::write(user.dir.join("src/lib.rs"), code).unwrap();
    succeeds(&mut user.cargo("check"));
}

/// Checks that the user's crate, which compiles, does not any more with `feature`, which adds a value
/// that is not `Send` to one future.
///
/// The feature is enabled in the source: rustc then checks only the functions that differ.
#[track_caller]
fn future_is_not_send(user: &UserCrate, feature: &str) {
    let source = user.dir.join("src/lib.rs");
    let before = fs::read_to_string(&source).unwrap();
    let with_feature = before.replace(&format!("#[cfg(feature = \"{feature}\")]"), "");
    assert_ne!(before, with_feature);
    fs::write(&source, with_feature).unwrap();
    let output = user.cargo("check").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        stderr.contains("future cannot be sent between threads safely"),
        "{stderr}"
    );
    let errors = stderr.lines().filter(|line| line.starts_with("error"));
    // rustc summarizes the errors in the last one.
    assert_eq!(errors.count(), 2, "{stderr}");
    fs::write(source, before).unwrap();
}

/// Returns the dependency on a crate of the workspace.
fn dependency(name: &str, more: &str) -> String {
    format!(
        "{name} = {{ path = {:?} }}\n{more}",
        Path::new(ROOT).join(name)
    )
}

/// Writes a crate without code.
fn write_crate(dir: &Path, name: &str, edition: &str, dependencies: &str) {
    fs::create_dir_all(dir.join("src")).unwrap();
    let manifest = format!(
        r#"
            [package]
            name = "{name}"
            version = "0.1.0"
            edition = "{edition}"
            # The target directory may be in the workspace, which this crate is not part of.
            [workspace]
            [dependencies]
            {dependencies}
        "#
    );
    fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    // Use the versions of the workspace, so that nothing is downloaded.
    fs::copy(Path::new(ROOT).join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
}

/// A user's crate, in the target directory.
struct UserCrate {
    dir: PathBuf,
    /// Several tests use one crate, and all use one target directory.
    _turn: MutexGuard<'static, ()>,
}

impl UserCrate {
    /// Creates the crate. `name` begins with the edition.
    fn new(name: &str) -> UserCrate {
        UserCrate::with(name, |builder| builder)
    }

    /// Creates the crate with other settings.
    fn with(name: &str, set: impl FnOnce(Builder) -> Builder) -> UserCrate {
        let user = UserCrate::empty(name);
        fs::copy(Path::new(USER).join("lib.rs"), user.dir.join("src/lib.rs")).unwrap();
        user.generate(&[PROTOS.as_ref(), GOLDEN.as_ref(), USER.as_ref()], set);
        user
    }

    /// Creates the crate without code.
    fn empty(name: &str) -> UserCrate {
        static TURN: Mutex<()> = Mutex::new(());

        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("user-{name}"));
        let edition = &name[..4];
        let features = "[features]\nnot-send = []\nstream-not-send = []";
        write_crate(&dir, "user", edition, &dependency("rpc-core", features));
        UserCrate { dir, _turn: turn }
    }

    /// Generates the packages of the `.proto` files in these directories.
    fn generate(&self, dirs: &[&Path], set: impl FnOnce(Builder) -> Builder) {
        let paths = dirs
            .iter()
            .flat_map(|dir| fs::read_dir(dir).unwrap())
            .map(|entry| entry.unwrap().path());
        let protos: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|found| found == "proto"))
            .collect();
        set(rpc_codegen::configure())
            .out_dir(self.generated())
            .include_file("packages.rs")
            .compile_protos(&protos, dirs)
            .unwrap();
    }

    fn generated(&self) -> PathBuf {
        self.dir.join("generated")
    }

    fn cargo(&self, command: &str) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args([command, "--offline", "--quiet"])
            .current_dir(&self.dir)
            .env("CARGO_INCREMENTAL", "1")
            // As cargo does after it has run a build script.
            .env("OUT_DIR", self.generated())
            // The crates share a target directory, because they have the same dependencies.
            .env(
                "CARGO_TARGET_DIR",
                Path::new(env!("CARGO_TARGET_TMPDIR")).join("user-target"),
            );
        cargo
    }
}

/// Runs `cargo` and checks that it succeeds.
#[track_caller]
fn succeeds(cargo: &mut Command) {
    let Output { status, stderr, .. } = cargo.output().unwrap();
    assert!(
        status.success(),
        "{cargo:?}\n{}",
        String::from_utf8_lossy(&stderr)
    );
}
