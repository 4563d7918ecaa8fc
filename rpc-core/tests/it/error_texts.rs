//! The sentences of public errors: each names the object, the reason and, where the user can do
//! something, the remedy. Their wording is free.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::transport::{ConnectError, FabricError, VersionRange};
use rpc_core::{ChannelError, ServerError};
use rustix::io::Errno;

const ADDRESS: &str = "192.0.2.7:4242";

fn connect_errors() -> Vec<(ConnectError, &'static [&'static str])> {
    let address = || ADDRESS.to_owned();
    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
    let reason = || "the reason".to_owned();
    vec![
        (
            ConnectError::Address {
                address: address(),
                source: refused(),
            },
            &["refused", "host:port"],
        ),
        (
            ConnectError::Unresolved {
                address: address(),
                source: refused(),
            },
            &["refused", "host name", "could not be resolved"],
        ),
        (
            ConnectError::Unreachable {
                address: address(),
                source: refused(),
            },
            &["refused", "running", "port"],
        ),
        (
            ConnectError::NotVerbline {
                address: address(),
                reason: reason(),
            },
            &["the reason", "Verbline", "compatible versions"],
        ),
        (
            ConnectError::Version {
                address: address(),
                local: VersionRange::only(11),
                remote: VersionRange {
                    oldest: 12,
                    newest: 13,
                },
            },
            &["version 11", "versions 12 to 13", "upgrade"],
        ),
        (
            ConnectError::Refused {
                address: address(),
                reason: reason(),
            },
            &["the reason", "refused"],
        ),
        (
            ConnectError::TimedOut {
                address: address(),
                timeout: Duration::from_secs(5),
                reached: "no response arrived".to_owned(),
            },
            &["5s", "handshake", "no response arrived"],
        ),
        (
            ConnectError::Device {
                address: address(),
                source: reason().into(),
            },
            &["the reason", "local device"],
        ),
    ]
}

fn assert_says(error: &dyn Error, wanted: &[&str]) {
    let text = error.to_string();
    for word in wanted {
        assert!(text.contains(word), "'{word}' is missing: {text}");
    }
    // A `main` that returns an error prints it with `Debug`.
    assert_eq!(format!("{error:?}"), text);
}

/// Programs print a chain: the sentence of the error, and then that of each source.
fn assert_chain_repeats_nothing(error: &dyn Error) {
    let text = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        let repeated = source.to_string();
        assert!(
            !text.contains(&repeated),
            "'{repeated}' is repeated: {text}"
        );
        below = source.source();
    }
}

#[test]
fn errors_of_connecting_name_the_address_the_reason_and_the_remedy() {
    for (error, wanted) in connect_errors() {
        assert_says(&error, &[wanted, &[ADDRESS]].concat());
        assert_chain_repeats_nothing(&error);
    }
}

#[test]
fn errors_of_channels_name_the_reason_and_the_remedy() {
    for (error, wanted) in connect_errors() {
        let error = ChannelError::Connect(Arc::new(error));
        assert_says(&error, &[wanted, &[ADDRESS]].concat());
        assert_chain_repeats_nothing(&error);
    }
    let refused = io::Error::from(io::ErrorKind::OutOfMemory);
    let thread = ChannelError::from(refused);
    assert_says(&thread, &["thread", "memory"]);
    assert_chain_repeats_nothing(&thread);
    let none = ChannelError::NoConnection { connections: 200 };
    assert_says(&none, &["200", "raise `connections`"]);
}

/// The number of the error decides, whatever failed: what helps, and who lacks something.
#[test]
fn the_remedy_is_that_of_the_systems_error() {
    #[derive(Debug, thiserror::Error)]
    #[error("create_qp: {0}")]
    struct Verb(#[source] io::Error);
    #[derive(Debug, thiserror::Error)]
    #[error("{0}. Raise the limit of locked memory")]
    struct WithAdvice(#[source] io::Error);
    let of = |errno: Errno| io::Error::from(errno);
    let address = || ADDRESS.to_owned();
    let listen = |errno| {
        let source = of(errno);
        let address = address();
        FabricError::Listen { address, source }.to_string()
    };
    let connect = |errno| {
        let source = of(errno);
        let address = address();
        ConnectError::Unreachable { address, source }.to_string()
    };
    let resolve = |errno| {
        let source = of(errno);
        let address = address();
        ConnectError::Unresolved { address, source }.to_string()
    };
    let device = |errno| {
        let source = Verb(of(errno)).into();
        let (device, action) = ("soft".to_owned(), "cannot be opened".to_owned());
        FabricError::Device {
            device,
            action,
            source,
        }
        .to_string()
    };
    let set_up = |errno| {
        let source = Verb(of(errno)).into();
        let address = address();
        ConnectError::Device { address, source }.to_string()
    };
    let thread = |errno| ServerError::Thread(of(errno)).to_string();
    let channel = |errno| ChannelError::Thread(of(errno)).to_string();
    type Sentence<'a> = &'a dyn Fn(Errno) -> String;
    let all: [Sentence<'_>; 7] = [
        &listen, &connect, &resolve, &device, &set_up, &thread, &channel,
    ];
    let of_limits = [
        (Errno::MFILE, "ulimit -n"),
        (Errno::NFILE, "fs.file-max"),
        (Errno::NOMEM, "vm.max_map_count"),
        (Errno::NOBUFS, "tcp_mem"),
    ];
    for (errno, wanted) in of_limits {
        for sentence in all {
            let text = sentence(errno);
            assert!(text.contains(wanted), "{text}");
            for other in ["free port", "is running", "spelling", "is right"] {
                assert!(!text.contains(other), "it is not that: {text}");
            }
        }
    }
    let others: [(Sentence<'_>, Errno, &str); 13] = [
        (&listen, Errno::ADDRINUSE, "use a free port"),
        (&listen, Errno::ADDRNOTAVAIL, "No interface of this machine"),
        (&listen, Errno::ACCESS, "CAP_NET_BIND_SERVICE"),
        (&listen, Errno::PERM, "seccomp"),
        (&listen, Errno::AFNOSUPPORT, "of this family"),
        (&connect, Errno::CONNREFUSED, "server is running"),
        (&connect, Errno::ADDRNOTAVAIL, "ip_local_port_range"),
        (&connect, Errno::HOSTUNREACH, "No route"),
        (&connect, Errno::PERM, "firewall"),
        (&connect, Errno::AFNOSUPPORT, "of this family"),
        (&resolve, Errno::NOENT, "spelling"),
        (&device, Errno::NOSYS, "seccomp"),
        (&set_up, Errno::ACCESS, "seccomp"),
    ];
    for (sentence, errno, wanted) in others {
        let text = sentence(errno);
        assert!(text.contains(wanted), "{text}");
    }
    // From a driver, these are no limits of threads or of files that are watched; nor from a socket.
    for errno in [Errno::AGAIN, Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
        for sentence in [&device as Sentence<'_>, &set_up] {
            let text = sentence(errno);
            assert!(text.ends_with(&of(errno).to_string()), "{text}");
        }
    }
    // An error with advice of its own gets no other.
    let source = WithAdvice(of(Errno::NOMEM)).into();
    let error = ConnectError::Device {
        address: address(),
        source,
    };
    assert!(error.to_string().ends_with("locked memory"), "{error}");
}

#[test]
fn errors_of_starting_name_the_object_the_reason_and_the_remedy() {
    let listen = FabricError::Listen {
        address: ADDRESS.to_owned(),
        source: io::Error::from(io::ErrorKind::AddrInUse),
    };
    assert_says(&listen, &[ADDRESS, "in use", "free port"]);
    assert_chain_repeats_nothing(&listen);
    let intent = FabricError::Intent {
        setting: "connections",
        value: 4711,
        reason: "the device has 16".to_owned(),
    };
    assert_says(&intent, &["connections", "4711", "the device has 16"]);
    let pin = FabricError::Pin {
        core: 77,
        source: io::Error::from(io::ErrorKind::InvalidInput),
    };
    assert_says(&pin, &["77", "invalid", "`cores`"]);
    let duplicate = ServerError::DuplicateService { name: "demo.Echo" };
    assert_says(&duplicate, &["demo.Echo", "different name"]);
}
