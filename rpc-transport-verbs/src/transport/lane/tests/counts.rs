//! The counts that limit the connections of a lane.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rpc_core::transport::Admission;

use super::transport_harness::{AdmitAll, PATIENCE, Side};
use super::{SOFT, side_with};
use crate::connect::handshake::Offer;
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice};

/// A listener admits the next client when the core counts one connection less. By then the lane has
/// to count one less, too: it creates no more queue pairs than it was sized for.
#[test]
fn a_client_whose_handshake_has_ended_counts_until_its_queue_pair_is_destroyed() {
    let mut server = side_with(&[SOFT]);
    let client = side_with(&[SOFT]);
    let queue_pairs = |side: &Side| {
        let mut lanes = side.transport.lanes();
        Arc::clone(&lanes.next().expect("it has one").queue_pairs)
    };
    let (here, there) = (queue_pairs(&server), queue_pairs(&client));
    let qp_init = there.create().unwrap();
    let offer = Offer {
        endpoints: there.endpoints(&qp_init),
        max_frame_len: 4096,
        session: Vec::new(),
    };
    let admission = AdmitAll::with_pollers(1);
    let admitted = admission.admit(b"hello").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (port, key) = (server.transport.port(), LivenessKey::next());
    let welcomed = port.create_queue_pair(&offer, None, admitted, Arc::new(stream), key);
    let notice_sender = welcomed.unwrap().notice_sender;
    let sent = notice_sender.send(Notice::Ended(key, LivenessEnd::Gone));
    assert!(sent.is_ok(), "the lane is there");
    let deadline = Instant::now() + PATIENCE;
    while here.count() > 0 {
        let admitted = admission.connections.load(Ordering::Relaxed);
        assert_eq!(admitted, 1, "the queue pair is there");
        assert!(Instant::now() < deadline);
        server.turn();
    }
    assert_eq!(admission.connections.load(Ordering::Relaxed), 0);
    assert!(server.accepted.is_empty() && server.closed.is_empty());
}
