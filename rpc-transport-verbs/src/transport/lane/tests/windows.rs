//! Devices that announce memory windows and have none, or whose windows protect nothing.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bytes::Bytes;
use rpc_core::transport::{
    Chunks, CloseReason, ConnectionId, ExposeError, LongMessages, Transport,
};
use rpc_core_testing::is_alone;
use verbline_verbs::for_transport::WindowFault;
use verbline_verbs::{LinkLayer, SoftOptions};

use super::transport_harness::Side;
use super::{ROCE, Server, exchange, intents};
use crate::device::opened::Opened;
use crate::device::setup;
use crate::device::sizing::Sizing;

/// Windows that the trial takes when the device is opened.
const TRIAL: usize = 5;

/// Windows that it binds.
const TRIAL_BINDINGS: usize = 4;

/// Returns what the work on this thread logs.
fn logged(work: impl FnOnce()) -> String {
    let (mut log, writer) = UnixStream::pair().unwrap();
    let lines = tracing_subscriber::fmt().with_ansi(false);
    tracing::subscriber::with_default(lines.with_writer(Arc::new(writer)).finish(), work);
    std::io::read_to_string(&mut log).unwrap()
}

/// Opens a transport over a device with this fault.
fn side_with(window_fault: WindowFault) -> Side {
    let options = SoftOptions {
        window_fault,
        ..SoftOptions::default()
    };
    let device = Opened::soft_with(ROCE, LinkLayer::Ethernet, options);
    let transport = setup::open_lanes(device, Vec::new(), &intents(), &Sizing::default());
    Side::new(transport.expect("the lane opens"))
}

fn connected(window_fault: WindowFault) -> (Server, Side, (ConnectionId, ConnectionId)) {
    let mut server = Server::with(&[ROCE]);
    let mut client = side_with(window_fault);
    let ids = server.accept(&mut client);
    (server, client, ids)
}

fn expose(side: &mut Side, connection: ConnectionId) -> Result<(), ExposeError> {
    let mut message = Chunks::from(Bytes::from(vec![7; 8192]));
    let exposed = side.transport.expose(connection, &mut message, false)?;
    side.transport.conceal(exposed.key);
    Ok(())
}

/// Exposes a piece once there is memory for it.
fn expose_when_possible(side: &mut Side, connection: ConnectionId) -> Result<(), ExposeError> {
    let exposed = (0..10_000).find_map(|_| {
        side.turn();
        std::thread::sleep(std::time::Duration::from_millis(1));
        match expose(side, connection) {
            Err(ExposeError::NotNow) => None,
            exposed => Some(exposed),
        }
    });
    exposed.expect("there is memory")
}

#[test]
fn windows_that_are_not_there_or_protect_nothing_are_found_when_the_device_is_opened() {
    if !is_alone(
        "transport::lane::tests::windows::windows_that_are_not_there_or_protect_nothing_are_found_when_the_device_is_opened",
    ) {
        return;
    }
    for (fault, why) in [
        (WindowFault::RefusedAfter(0), "and gives none"),
        (WindowFault::RefusedAfter(1), "and gives none"),
        (
            WindowFault::UnbindableAfter(0),
            "a binding ended with MW_BIND_ERR",
        ),
        (WindowFault::Wide, "in front of a memory window"),
        (WindowFault::Shared, "of another queue pair"),
        (WindowFault::Kept, "whose key was invalidated"),
    ] {
        let mut rig = None;
        let log = logged(|| rig = Some(connected(fault)));
        let is_warned = |line: &str| line.contains(" WARN ") && line.contains(why);
        assert!(log.lines().any(is_warned), "{fault:?}: {log}");
        assert!(log.contains("`Sizing::trusted_peers`"), "{fault:?}: {log}");
        let (mut server, mut client, (at_client, at_server)) = rig.unwrap();
        let limits = client.transport.limits();
        assert_eq!(limits.read_depth, 0, "{fault:?}");
        let said = &limits.long_messages;
        assert!(
            said.starts_with("in fragments") && said.contains(why),
            "{fault:?}: {said}"
        );
        let travel = client.transport.long_messages(at_client);
        assert_eq!(travel, LongMessages::Fragments, "{fault:?}");
        exchange(&mut server.side, at_server, &mut client, at_client);
    }
}

#[test]
fn windows_that_work_are_used() {
    let (_server, mut client, (at_client, _)) = connected(WindowFault::RefusedAfter(usize::MAX));
    assert_eq!(client.transport.limits().read_depth, 16);
    let travel = client.transport.long_messages(at_client);
    assert_eq!(travel, LongMessages::Read);
    assert_eq!(expose_when_possible(&mut client, at_client), Ok(()));
}

/// The trial was a success, and the device gives no window after it.
#[test]
fn no_long_message_waits_for_windows_that_a_device_refuses_later() {
    let (_server, mut client, (at_client, _)) = connected(WindowFault::RefusedAfter(TRIAL));
    assert_eq!(client.transport.limits().read_depth, 16);
    for _ in 0..3 {
        let refused = Err(ExposeError::NoWindow { may_come: false });
        assert_eq!(expose(&mut client, at_client), refused);
        client.turn();
    }
}

/// The trial was a success, and the device binds no window after it.
#[test]
fn a_device_that_binds_no_window_later_ends_one_connection() {
    if !is_alone(
        "transport::lane::tests::windows::a_device_that_binds_no_window_later_ends_one_connection",
    ) {
        return;
    }
    let fault = WindowFault::UnbindableAfter(TRIAL_BINDINGS + 1);
    let (mut server, mut client, (first, _)) = connected(fault);
    let (second, at_server) = server.accept(&mut client);
    assert_eq!(expose_when_possible(&mut client, second), Ok(()));
    let mut reason = None;
    let log = logged(|| {
        assert_eq!(expose_when_possible(&mut client, first), Ok(()));
        for _ in 0..10_000 {
            client.turn();
            if !client.closed.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        reason = client.closed.pop();
        for _ in 0..3 {
            let none = Err(ExposeError::NoWindow { may_come: false });
            assert_eq!(expose(&mut client, second), none);
            client.turn();
        }
    });
    let Some((closed, CloseReason::Failed(error))) = reason else {
        panic!("{reason:?}");
    };
    let error = error.to_string();
    assert_eq!(closed, first);
    assert!(
        error.contains("MW_BIND_ERR") && error.contains("in fragments"),
        "{error}"
    );
    let is_of_device = |line: &&str| line.contains("this poller sends long messages in fragments");
    let lines: Vec<&str> = log.lines().filter(is_of_device).collect();
    let [line] = lines[..] else {
        panic!("one warning: {log}");
    };
    assert!(
        line.contains(" WARN ") && line.contains("MW_BIND_ERR"),
        "{line}"
    );
    // The other connection goes on.
    exchange(&mut server.side, at_server, &mut client, second);
}
