//! The blob store, run as a user does: files of any size, whose digests both sides check.

// These programs read no input.
#[allow(dead_code)]
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::program::{Program, device_name};
use proto::blobs::part::Part as Content;
use proto::blobs::{BlobsClient, Header, Part};
use rpc_core::{Channel, block_on, sender};
use rpc_transport_verbs::Device;

const SERVER: &str = env!("CARGO_BIN_EXE_blob_server");
const CLIENT: &str = env!("CARGO_BIN_EXE_blob_client");

/// Time limit of a wait for an event that has to occur.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store in a directory of its own, with its server.
struct Store {
    directory: tempfile::TempDir,
    address: String,
    _server: Program,
}

impl Store {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let blobs = directory.path().join("blobs");
        let (server, address) = Program::server(SERVER, &[text(&blobs), "127.0.0.1:0"]);
        Self {
            directory,
            address,
            _server: server,
        }
    }

    /// Runs the client. Returns whether it succeeded, and what it printed.
    fn run(&self, command: &str, name: &str, file: &Path) -> (bool, Vec<String>) {
        let arguments = ["--address", &self.address, command, name, text(file)];
        let (status, lines) = Program::start(CLIENT, &arguments).finish();
        (status.success(), lines)
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns bytes that do not repeat.
fn content(len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

#[test]
fn files_of_any_size_come_back_as_they_were() {
    let store = Store::new();
    let sizes = [0, 1, 4 << 10, 1 << 20, (9 << 20) + 123];
    for size in sizes {
        let (name, original) = (format!("blob-{size}"), content(size));
        let (file, back) = (store.file("original"), store.file("back"));
        fs::write(&file, &original).unwrap();
        let (succeeded, put) = store.run("put", &name, &file);
        assert!(succeeded && put.len() == 1, "{put:?}");
        let (succeeded, got) = store.run("get", &name, &back);
        assert!(succeeded && got.len() == 1, "{got:?}");
        assert!(fs::read(back).unwrap() == original, "{size} bytes");
        // Both sides computed the same digest.
        let described = format!("{name}: {size} bytes, sha256 ");
        let of = |line: &str, verb| line.strip_prefix(verb).unwrap().to_owned();
        let (put, got) = (of(&put[0], "put "), of(&got[0], "got "));
        assert!(put.starts_with(&described), "{put}");
        assert_eq!(put, got);
        let how = if size <= 1 << 20 {
            ", in one message"
        } else {
            ", in parts"
        };
        assert!(put.ends_with(how), "{put}");
    }
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let (_, got) = store.run("get", "blob-0", &store.file("back"));
    assert!(got[0].contains(empty), "{got:?}");
}

#[test]
fn a_blob_that_has_changed_in_the_store_is_not_returned() {
    let store = Store::new();
    for size in [1000, 9 << 20] {
        let (file, back) = (store.file("original"), store.file("back"));
        fs::write(&file, content(size)).unwrap();
        assert!(store.run("put", "blob", &file).0);
        let kept = store.file("blobs").join("blob");
        let mut bytes = fs::read(&kept).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&kept, bytes).unwrap();
        let (succeeded, lines) = store.run("get", "blob", &back);
        assert!(!succeeded && lines.is_empty(), "{lines:?}");
        // Nor is what arrived before the digest was known to be wrong.
        let left: Vec<_> = fs::read_dir(store.directory.path()).unwrap().collect();
        assert_eq!(left.len(), 2, "{left:?}");

        let (_, lines) = store.run("put", "blob", &file);
        assert!(lines[0].starts_with("replaced blob: "), "{lines:?}");
        assert!(store.run("get", "blob", &back).0);
        assert!(fs::read(&back).unwrap() == content(size), "{size} bytes");
        fs::remove_file(back).unwrap();
    }
    // The store keeps one file, and nothing of what was being written.
    let kept = fs::read_dir(store.file("blobs")).unwrap();
    assert_eq!(kept.count(), 1);
}

#[test]
fn what_names_no_blob_is_refused() {
    let store = Store::new();
    let file = store.file("original");
    fs::write(&file, b"hello").unwrap();
    for name in ["", "../outside", "a/b", ".hidden"] {
        assert!(!store.run("put", name, &file).0, "{name}");
        assert!(!store.run("get", name, &store.file("back")).0, "{name}");
    }
    assert!(!store.run("get", "never-put", &store.file("back")).0);
    assert!(!store.file("back").exists());
    let kept = fs::read_dir(store.file("blobs")).unwrap();
    assert_eq!(kept.count(), 0);
}

#[test]
fn what_a_killed_server_was_writing_is_removed_by_the_next_one() {
    let Store {
        directory,
        address,
        _server: server,
    } = Store::new();
    let blobs = directory.path().join("blobs");
    let names = || -> Vec<_> {
        let entries = fs::read_dir(&blobs).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    let (mut parts, messages) = sender();
    let header = Header {
        name: "never-kept".to_owned(),
        ..Header::default()
    };
    let part = Some(Content::Header(header));
    block_on(parts.send(Part { part })).unwrap();
    let putting = thread::spawn(move || {
        let device = Device::open(&device_name()).unwrap();
        block_on(async {
            let channel = Channel::connect(&device, &address).await.unwrap();
            BlobsClient::new(channel).put_parts(messages).await.is_ok()
        })
    });
    let deadline = Instant::now() + PATIENCE;
    while names().is_empty() {
        assert!(Instant::now() < deadline, "nothing is written");
        thread::sleep(Duration::from_millis(1));
    }
    server.kill();
    assert!(!putting.join().unwrap());
    drop(parts);
    assert_eq!(names().len(), 1, "{:?}", names());
    // A file of a process that runs, and one that is no temporary file.
    let (running, other) = (format!(".{}-7", std::process::id()), ".7-x");
    for name in [&*running, other] {
        fs::write(blobs.join(name), b"").unwrap();
    }
    let (_server, _) = Program::server(SERVER, &[text(&blobs), "127.0.0.1:0"]);
    let mut left = names();
    left.sort();
    let mut expected = [running.as_str(), other];
    expected.sort_unstable();
    assert_eq!(left, expected);
}

#[test]
fn the_client_names_the_file_that_it_cannot_use() {
    let store = Store::new();
    let file = store.file("original");
    fs::write(&file, b"hello").unwrap();
    assert!(store.run("put", "blob", &file).0);
    // Nothing can be written to the file that the blob arrives in.
    symlink("/dev/full", store.file("back.unchecked")).unwrap();
    for (command, file, named) in [
        ("get", store.file("back"), "back.unchecked"),
        ("put", store.file("absent"), "absent"),
    ] {
        let output = Command::new(CLIENT)
            .env("VERBLINE_DEVICE", device_name())
            .args(["--address", &store.address, command, "blob", text(&file)])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let named = format!("blob_client: {}: ", text(&store.file(named)));
        assert!(
            !output.status.success() && said.starts_with(&named),
            "{said}"
        );
    }
}

#[test]
fn the_help_says_what_each_argument_is() {
    for command in ["put", "get"] {
        let (_, lines) = Program::start(CLIENT, &[command, "--help"]).finish();
        for argument in ["<NAME>", "<FILE>"] {
            let described = lines.iter().any(|line| {
                let rest = line.trim_start().strip_prefix(argument);
                rest.is_some_and(|rest| !rest.trim().is_empty())
            });
            assert!(described, "{command} {argument}: {lines:?}");
        }
    }
}
