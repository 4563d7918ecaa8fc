//! What the system refuses a process: the error names the call or the limit, whoever asked for what, and
//! blames neither the address nor the other side.

use std::process::{Command, Output};

use crate::program::Program;

const CLIENT: &str = env!("CARGO_BIN_EXE_greeter_client");
const SERVER: &str = env!("CARGO_BIN_EXE_greeter_server");

fn server() -> (Program, String) {
    // Of all devices, whatever is under test.
    let arguments = ["--allow-plaintext", "127.0.0.1:0"];
    Program::server_over("soft,tcp", SERVER, &arguments)
}

/// Runs a program over a device, in a shell after `first`.
fn run(first: &str, device: &str, program: &str, arguments: &[&str]) -> Output {
    let script = format!("{first} exec \"$0\" \"$@\"");
    Command::new("bash")
        .args(["-c", &script, program])
        .args(arguments)
        .env("VERBLINE_DEVICE", device)
        .env("RUST_LOG", "warn")
        .output()
        .unwrap()
}

/// Python that runs the program named after it without the system call of this name, as a profile of
/// seccomp does.
const WITHOUT_A_CALL: &str = r"
import ctypes, os, platform, struct, sys
numbers = {'x86_64': {'memfd_create': 319}, 'aarch64': {'memfd_create': 279}}
number = numbers[platform.machine()][sys.argv[1]]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
program = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
class Filter(ctypes.Structure):
    _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Filter(len(code), ctypes.addressof(program))), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
";

fn run_without(call: &str, device: &str, program: &str, arguments: &[&str]) -> Output {
    Command::new("python3")
        .args(["-c", WITHOUT_A_CALL, call, program])
        .args(arguments)
        .env("VERBLINE_DEVICE", device)
        .env("RUST_LOG", "warn")
        .output()
        .unwrap()
}

/// Returns the error, and the warnings of the log before it.
fn said(output: &Output) -> String {
    let said = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&said).into_owned()
}

/// From the fewest files with which a program starts to the number that suffices.
#[test]
fn a_client_without_files_says_so_and_blames_nobody_else() {
    let (_server, address) = server();
    let (_, port) = address.rsplit_once(':').unwrap();
    let by_name = format!("localhost:{port}");
    for (device, address) in [("soft", &address), ("tcp", &address), ("soft", &by_name)] {
        let mut has_failed = false;
        for files in 6..32 {
            let limit = format!("ulimit -n {files};");
            let output = run(&limit, device, CLIENT, &["Ada", address]);
            if output.status.success() {
                continue;
            }
            has_failed = true;
            let said = said(&output);
            assert!(said.contains("ulimit -n"), "{device}, {files}: {said}");
            for other in [
                "server is running",
                "free port",
                "remote device",
                "spelling",
                "'soft'",
            ] {
                let is_other = other != "'soft'" || device == "tcp";
                assert!(
                    !is_other || !said.contains(other),
                    "{device}, {files}: {said}"
                );
            }
        }
        assert!(has_failed, "some are too few");
    }
}

#[test]
fn a_server_without_files_says_so_and_does_not_advise_about_ports() {
    for device in ["soft", "tcp"] {
        for files in 6..14 {
            let limit = format!("ulimit -n {files};");
            let output = run(&limit, device, SERVER, &["127.0.0.1:0"]);
            let said = said(&output);
            assert!(said.contains("ulimit -n"), "{device}, {files}: {said}");
            assert!(!said.contains("free port"), "{device}, {files}: {said}");
        }
    }
}

#[test]
fn a_refused_memfd_create_is_named_with_the_device_that_was_asked_for() {
    let (_server, address) = server();
    // The device `tcp` does without.
    let client = run_without("memfd_create", "soft", CLIENT, &["Ada", &address]);
    let server = run_without("memfd_create", "soft", SERVER, &["127.0.0.1:0"]);
    for output in [client, server] {
        let said = said(&output);
        for wanted in ["memfd_create", "the device 'soft'", "seccomp"] {
            assert!(said.contains(wanted), "{said}");
        }
    }
}

#[test]
fn an_address_that_another_socket_or_nobody_has_is_named_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (address, wanted) in [
        (&*taken, "Another socket listens there"),
        ("192.0.2.1:0", "No interface of this machine"),
        ("[fe80::1]:0", "add the interface, as in '[fe80::1%eth0]:0'"),
        ("[fe80::1%nothing]:0", "no network interface 'nothing'"),
    ] {
        let output = run("", "soft", SERVER, &[address]);
        let said = said(&output);
        assert!(said.contains(wanted), "{address}: {said}");
    }
}
