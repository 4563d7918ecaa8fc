//! [`RawPeer`]: one side of a connection without a driver, for tests of what a peer may send.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use rpc_core::for_testing::{Random, admission};
use rpc_core::frame::{FrameHeader, HEADER_LEN};
use rpc_core::session::ClientSession;
use rpc_core::transport::{Chunks, ConnectionId, Event, RemoteSegment, Transport};
use rpc_core::{Limits, MethodSpec};

use crate::faults::Faults;
use crate::loopback::{Loopback, Wires};

/// One side of a connection without a driver. It sends any frames, whether it has credits for them or
/// not, and keeps no rules.
pub struct RawPeer {
    wires: Rc<RefCell<Wires>>,
    transport: RefCell<Loopback>,
    connection: Cell<Option<ConnectionId>>,
    is_closed: Cell<bool>,
    /// Frames that the test has not taken.
    arrived: RefCell<Vec<Vec<u8>>>,
}

impl RawPeer {
    fn new(wires: &Rc<RefCell<Wires>>, limits: Limits) -> Self {
        let transport = Loopback::new(wires, limits, Faults::none(), Random::new(0));
        Self {
            wires: Rc::clone(wires),
            transport: RefCell::new(transport),
            connection: Cell::new(None),
            is_closed: Cell::new(false),
            arrived: RefCell::default(),
        }
    }

    pub(crate) fn client(
        wires: &Rc<RefCell<Wires>>,
        limits: Limits,
        address: Option<SocketAddr>,
        server: &str,
    ) -> Self {
        let max_message_len = u32::try_from(limits.max_message_len);
        let session = ClientSession::new(
            limits.max_in_flight,
            limits.stream_window(),
            max_message_len.expect("a message has less than 4 GiB"),
        );
        let raw = Self::new(wires, limits);
        let mut transport = raw.transport.borrow_mut();
        transport.set_address(address);
        let dialer = transport.dialer(Arc::default());
        let dialed = dialer.dial(server, &session.encode_to_vec(), Duration::ZERO);
        let connected = dialed.and_then(|dialed| transport.adopt(dialed));
        drop(transport);
        let connected = connected.expect("the server admits the client");
        raw.connection.set(Some(connected.connection));
        raw
    }

    pub(crate) fn server(
        wires: &Rc<RefCell<Wires>>,
        limits: Limits,
        name: &str,
        methods: &[&'static MethodSpec],
    ) -> Self {
        let methods = (0..).zip(methods.iter().copied()).collect();
        let admission = admission(&limits, methods);
        let raw = Self::new(wires, limits);
        let endpoint = raw.transport.borrow().index();
        wires.borrow_mut().listen(name, endpoint, admission);
        raw
    }

    /// Sends a frame. Does nothing if the connection has ended.
    pub fn send(&self, header: FrameHeader, body: &[u8]) {
        let mut frame = vec![0; HEADER_LEN];
        header.encode(&mut frame);
        frame.extend(body);
        self.send_bytes(frame);
    }

    /// Sends bytes that may be no frame. Does nothing if the connection has ended.
    pub fn send_bytes(&self, frame: Vec<u8>) {
        let endpoint = self.transport.borrow().index();
        if let Some(connection) = self.connection.get() {
            let mut wires = self.wires.borrow_mut();
            wires.deliver(endpoint, connection, frame);
        }
    }

    /// Lets the peer read bytes, until the connection ends.
    ///
    /// # Panics
    ///
    /// Panics if the connection has ended, or if the peers do not read.
    pub fn expose(&self, bytes: Vec<u8>) -> RemoteSegment {
        let connection = self.connection.get().expect("the connection is open");
        let mut message = Chunks::from(Bytes::from(bytes));
        let mut transport = self.transport.borrow_mut();
        let exposed = transport.expose(connection, &mut message, true);
        exposed.expect("there is memory").segment
    }

    /// Takes the frames that have arrived: header, and the rest.
    ///
    /// # Panics
    ///
    /// Panics if the peer has sent something else.
    pub fn received(&self) -> Vec<(FrameHeader, Vec<u8>)> {
        let frames = self.arrived.take().into_iter().map(|frame| {
            let (header, ..) = FrameHeader::parse(&frame).expect("the peer sends frames");
            (header, frame[HEADER_LEN..].to_vec())
        });
        frames.collect()
    }

    /// Returns true if the peer has closed the connection.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Closes the connection.
    pub fn close(&self) {
        if let Some(connection) = self.connection.take() {
            self.transport.borrow_mut().close(connection);
        }
    }

    /// Takes what has arrived. Returns true if anything has.
    pub(crate) fn step(&self) -> bool {
        let mut transport = self.transport.borrow_mut();
        let mut found_any = false;
        while let Some(event) = transport.poll() {
            found_any = true;
            match event {
                Event::Accepted { connection, .. } => self.connection.set(Some(connection)),
                Event::Closed { .. } => self.is_closed.set(true),
                // A raw peer fetches nothing.
                Event::Fetched { .. } | Event::FetchCancelled { .. } | Event::RoomWanted(_) => {}
                Event::Received { buf, .. } => {
                    self.arrived.borrow_mut().push(buf.clone());
                    transport.release(buf);
                }
            }
        }
        found_any
    }
}
