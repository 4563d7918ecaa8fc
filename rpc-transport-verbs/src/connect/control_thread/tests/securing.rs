//! Clients whose connection is secured first, while another thread has a step of that, or has had it.

use std::time::SystemTime;

use super::super::securer::SecuringStep;
use super::*;
use crate::connect::control_stream::tests::{Framed, record};
use crate::transport::security::{
    FIRST_BYTE, MAX_WAITING, Secured, SecurityError, SecurityHandshake, SecurityProgress,
    ServerSecurity,
};

/// A server's security whose handshakes wait for ever: the tests say what comes of a step.
#[derive(Debug)]
struct Toy;

impl ServerSecurity for Toy {
    fn begin(&self) -> Result<Box<dyn SecurityHandshake>, SecurityError> {
        Ok(Box::new(Self))
    }

    fn demands_certificates(&self) -> bool {
        false
    }

    fn expires(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

impl SecurityHandshake for Toy {
    fn advance(
        self: Box<Self>,
        _: &mut Vec<u8>,
        _: &mut Vec<u8>,
    ) -> Result<SecurityProgress, SecurityError> {
        Ok(SecurityProgress::Waits(self))
    }
}

/// A client that has sent these bytes, and its end of the connection.
fn client(said: &[u8]) -> (IncomingClient, TcpStream) {
    let config = Arc::new(ListenerConfig {
        ports: Vec::new(),
        admission: Arc::new(AdmitNone),
        security: Some(Arc::new(Toy)),
        takes_plain: false,
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let (here, peer) = listener.accept().unwrap();
    configure_socket(&here).unwrap();
    there.write_all(said).unwrap();
    let client = IncomingClient::new(here, peer, 1, config);
    wait_for_bytes(&client);
    (client, there)
}

fn wait_for_bytes(client: &IncomingClient) {
    let flags = rustix::event::PollFlags::IN;
    let mut files = [rustix::event::PollFd::new(&**client.stream(), flags)];
    assert_eq!(rustix::event::poll(&mut files, None).unwrap(), 1);
}

/// A client whose first step another thread has.
fn away() -> (IncomingClient, TcpStream) {
    let (mut client, there) = client(&[FIRST_BYTE, 1, 2, 3]);
    match client.handle_event(EventFlags::IN) {
        NextAction::Secure { arrived, .. } => assert_eq!(arrived, [FIRST_BYTE, 1, 2, 3]),
        _ => panic!("it begins to be secured"),
    }
    (client, there)
}

fn step(progress: Result<SecurityProgress, SecurityError>) -> SecuringStep {
    SecuringStep {
        progress,
        arrived: Vec::new(),
        to_send: b"said by the layer".to_vec(),
    }
}

fn done() -> Result<SecurityProgress, SecurityError> {
    Ok(SecurityProgress::Done(Secured {
        layer: Box::new(Framed),
        certificate: None,
    }))
}

/// All that the client is told before the end.
fn told(client: IncomingClient, mut there: TcpStream) -> Vec<u8> {
    drop(client);
    let mut all = Vec::new();
    there.read_to_end(&mut all).unwrap();
    all
}

#[test]
fn a_client_whose_step_another_thread_has_is_not_read_and_its_end_is_noticed() {
    let (mut client, mut there) = away();
    assert_eq!(client.watched(), EventFlags::empty());
    there.write_all(b"more").unwrap();
    assert!(matches!(
        client.handle_event(EventFlags::IN),
        NextAction::Wait
    ));
    for end in [EventFlags::HUP, EventFlags::ERR] {
        assert!(matches!(client.handle_event(end), NextAction::Close));
    }
    // What has come meanwhile is handled after the step.
    let waits = SecurityProgress::Waits(Box::new(Toy));
    assert!(matches!(client.secured(step(Ok(waits))), NextAction::Wait));
    assert_eq!(client.watched(), EventFlags::IN);
    match client.handle_event(EventFlags::IN) {
        NextAction::Secure { arrived, .. } => assert_eq!(arrived, b"more"),
        _ => panic!("the next step"),
    }
}

#[test]
fn a_client_that_is_rejected_meanwhile_hears_nothing_of_its_step() {
    for progress in [done(), Err("refused".into())] {
        let (mut client, there) = away();
        client.make_room("others need the room");
        assert_eq!(client.stage(), Stage::Rejected);
        assert!(matches!(client.secured(step(progress)), NextAction::Wait));
        assert_eq!(client.watched(), EventFlags::IN, "until it closes");
        assert!(matches!(
            client.handle_event(EventFlags::IN),
            NextAction::Wait
        ));
        assert_eq!(told(client, there), b"");
    }
}

#[test]
fn a_client_that_is_refused_by_the_layer_hears_its_words_and_nothing_in_the_clear() {
    let (mut client, there) = away();
    client.secured(step(Err("its certificate has expired".into())));
    assert_eq!(client.stage(), Stage::Rejected);
    assert_eq!(told(client, there), b"said by the layer");

    let (mut client, there) = away();
    let mut step = step(Ok(SecurityProgress::Waits(Box::new(Toy))));
    step.arrived = vec![0; MAX_WAITING + 1];
    client.secured(step);
    assert_eq!(client.stage(), Stage::Rejected);
    assert_eq!(told(client, there), b"said by the layer");
}

/// What has come with the end of the handshake needs no further event, and the answer is in records.
#[test]
fn a_secured_client_is_answered_in_records() {
    let (mut client, there) = away();
    let arrived = record(b"no hello of Verbline");
    client.secured(SecuringStep {
        arrived,
        ..step(done())
    });
    assert!(client.is_secured());
    assert_eq!(client.stage(), Stage::Rejected);
    let told = told(client, there);
    let (of_layer, records) = told.split_at(b"said by the layer".len());
    assert_eq!(of_layer, b"said by the layer");
    assert_eq!(&records[2..6], b"VBLN", "the refusal, behind a length");
    assert!(records.ends_with(&[0xff; 2]), "the end of the records");
}

#[test]
fn a_client_without_tls_is_told_what_to_do() {
    let (mut client, there) = client(b"VBLN");
    client.handle_event(EventFlags::IN);
    assert_eq!(client.stage(), Stage::Rejected);
    let told = told(client, there);
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("with TLS only"), "{told}");
}
