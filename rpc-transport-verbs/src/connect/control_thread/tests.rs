//! The loop of the control thread, step by step.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use rpc_core::transport::{Admitted, Refusal};

use super::handshakes::Stage;
use super::sockets::Source;
use super::*;

struct AdmitNone;

impl Admission for AdmitNone {
    fn admit(&self, _: &[u8]) -> Result<Admitted, Refusal> {
        Err(Refusal {
            reason: "nobody is admitted".to_owned(),
        })
    }
}

fn config() -> Arc<ListenerConfig> {
    Arc::new(ListenerConfig {
        ports: Vec::new(),
        admission: Arc::new(AdmitNone),
    })
}

/// Returns the stages of the clients in their handshakes.
fn stages(sockets: &Sockets) -> Vec<Stage> {
    let sources = sockets.sources.values();
    let stages = sources.filter_map(|source| match source {
        Source::Incoming(client) => Some(client.stage()),
        _ => None,
    });
    stages.collect()
}

#[test]
fn what_a_client_has_sent_is_read_when_it_is_accepted() {
    let (_control, mut sockets) = Control::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let Ok(token) = sockets.add(Source::Listener(listener, config())) else {
        panic!("epoll has room");
    };
    let _silent = TcpStream::connect(address).unwrap();
    sockets.accept(token);
    assert_eq!(stages(&sockets), [Stage::Incoming]);
    let mut other = TcpStream::connect(address).unwrap();
    other.write_all(b"no hello").unwrap();
    sockets.accept(token);
    assert!(stages(&sockets).contains(&Stage::Rejected));
}
