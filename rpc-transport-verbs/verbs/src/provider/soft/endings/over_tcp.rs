//! Queue pairs over TCP that end in the middle of a message. The peer is a socket of the test, so that
//! the message stops where the case needs it.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::*;
use crate::provider::soft::context::tcp_link::Outbound;
use crate::provider::soft::hostile::node;
use crate::provider::soft::hostile_tcp::{ATTACKER, attach, attacker, tcp_context};
use crate::provider::soft::wire::header::{Header, Message, Request};
use crate::types::RemoteOperation;
use crate::{Binding, CompletionStatus, RemoteMemory, WindowType};

/// An end whose peer is the test.
struct Half {
    end: End,
    socket: OwnedFd,
    /// What the end has sent, from the first byte of a message on.
    sent: Vec<u8>,
    /// The sequence number of the first request that the test acknowledges with nothing that it sends.
    unacked: u32,
}

/// Runs a case over TCP with both kinds of completion queues.
fn in_both_ways(case: impl Fn(Plan)) {
    in_every_way(|plan| {
        if plan.carrier == Carrier::Tcp {
            case(plan);
        }
    });
}

impl Half {
    fn new(plan: Plan) -> Self {
        let (theirs, ours) = UnixStream::pair().expect("a pair of sockets");
        Self::through(plan, theirs.into(), ours.into())
    }

    /// Connects through a socket that takes little, and messages in part.
    fn through_a_small_socket(plan: Plan) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let theirs = TcpStream::connect(address).expect("a connection");
        let (ours, _) = listener.accept().expect("its other end");
        ours.set_nonblocking(true).expect("a socket has the flag");
        theirs.set_nodelay(true).expect("TCP has the option");
        set_socket_send_buffer_size(&ours, 4096).expect("a socket has a size");
        set_socket_recv_buffer_size(&theirs, 4096).expect("a socket has a size");
        Self::through(plan, theirs.into(), ours.into())
    }

    fn through(plan: Plan, theirs: OwnedFd, ours: OwnedFd) -> Self {
        let mut end = End::on(tcp_context(), "the end", plan);
        end.go_to_rtr((attacker(), QpNum(ATTACKER)));
        end.go_to_rts();
        let socket = attach(end.qp.qp_num(), theirs, ours);
        Self {
            end,
            socket,
            sent: Vec::new(),
            unacked: PSN,
        }
    }

    fn write(&self, bytes: &[u8]) {
        let len = send(&self.socket, bytes, SendFlags::NOSIGNAL).expect("it is open");
        assert_eq!(len, bytes.len());
    }

    /// Sends the header of a message, and `now` of its `len` bytes.
    fn begin(&self, message: Message, len: u32, sequence: u32, now: usize) {
        let header = Header {
            message,
            len,
            sequence,
            acked: self.unacked,
        };
        self.write(&[header.encode().as_bytes(), &vec![7; now]].concat());
    }

    /// Polls until something is so.
    fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "it does not come to that");
            self.end.poll();
        }
    }

    /// Waits until a message has arrived in part.
    fn until_half_arrived(&mut self) {
        self.until(|half| half.end.qp.arriving_message().is_some());
    }

    /// Adds some of what the end has sent. Returns false at the end of the connection.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => false,
            Ok((_, len)) => {
                self.sent.extend(&bytes[..len]);
                true
            }
            Err(error) => error == rustix::io::Errno::AGAIN,
        }
    }

    /// Takes the next message that the end has sent, if all of it is there.
    fn take(&mut self) -> Option<Header> {
        let (header, len) = Header::parse(&self.sent).expect("a header")?;
        let whole = len + header.len as usize;
        if self.sent.len() < whole {
            return None;
        }
        self.sent.drain(..whole);
        Some(header)
    }

    /// Waits for the next message of the end. Returns the sequence number of the first request that it does
    /// not acknowledge.
    fn next_acked(&mut self) -> u32 {
        let mut next = None;
        self.until(|half| {
            half.read();
            next = half.take();
            next.is_some()
        });
        next.expect("it has come").acked
    }

    /// Waits until the end has sent this many requests.
    fn until_requested(&mut self, count: usize) {
        let mut requests = 0;
        self.until(|half| {
            half.read();
            while let Some(header) = half.take() {
                requests += usize::from(matches!(header.message, Message::Request(_)));
            }
            requests == count
        });
    }

    /// Waits until the end has refused the request with this sequence number.
    fn until_refused(&mut self, sequence: u32, status: CompletionStatus) {
        let status = status.code() as u8;
        self.until(|half| {
            half.read();
            while let Some(header) = half.take() {
                if header.message == (Message::Refused { status }) {
                    assert_eq!(header.sequence, sequence);
                    return true;
                }
            }
            false
        });
    }

    fn outbound<T>(&self, look: impl FnOnce(&Outbound) -> T) -> T {
        let number = self.end.qp.qp_num().0;
        let (domain, qp_index) = node().find_queue_pair(number).expect("it is there");
        let state = domain.enter().expect("this process has not forked");
        let qp = state.queue_pairs.get(qp_index as usize);
        let link = qp.and_then(|qp| qp.link.tcp());
        look(&link.expect("a link").outbound)
    }

    /// Requests READs and reads no response, until the socket is full in the middle of one. Returns the
    /// number of READs.
    fn fill_the_socket(&mut self, memory: RemoteMemory) -> u32 {
        let mut reads = 0;
        self.until(|half| {
            match half.outbound(|outbound| (outbound.is_blocked, outbound.partial.is_some())) {
                (_, true) => return true,
                (true, false) => drop(half.read()),
                (false, false) => {
                    half.begin(read(memory, 4000), 0, PSN + reads, 0);
                    reads += 1;
                }
            }
            false
        });
        reads
    }

    fn waiting_responses(&self) -> usize {
        self.outbound(|outbound| outbound.responses.len())
    }
}

fn request(operation: RemoteOperation, read_len: u32) -> Message {
    Message::Request(Request {
        operation,
        read_len,
        outstanding: 1,
        is_solicited: false,
        is_ack_requested: true,
    })
}

fn read(memory: RemoteMemory, len: u32) -> Message {
    request(RemoteOperation::Read(memory), len)
}

/// Its receive has been taken out of the queue, so it is the first to complete.
#[test]
fn a_receive_whose_message_is_arriving_is_flushed_first() {
    in_both_ways(|plan| {
        let mut half = Half::new(plan);
        half.end.receive(3);
        half.end.post([half.end.send().signaled(), half.end.send()]);
        half.until_requested(2);
        half.begin(request(RemoteOperation::Send, 0), 64, PSN, 32);
        half.until_half_arrived();
        half.end.qp.to_error().expect("ERROR");
        expect([(
            &mut half.end,
            &[
                "receive 0: WorkRequestFlushed",
                "send 0: WorkRequestFlushed",
                "send 1: WorkRequestFlushed",
                "receive 1: WorkRequestFlushed",
                "receive 2: WorkRequestFlushed",
            ],
        )]);
    });
}

#[test]
fn a_shared_receive_whose_message_is_arriving_is_flushed_before_the_last_event() {
    in_both_ways(|plan| {
        let mut half = Half::new(Plan {
            is_srq: true,
            ..plan
        });
        half.end.receive(3);
        half.end.post([half.end.send()]);
        half.until_requested(1);
        half.begin(request(RemoteOperation::Send, 0), 64, PSN, 32);
        half.until_half_arrived();
        half.end.qp.to_error().expect("ERROR");
        expect([(
            &mut half.end,
            &[
                // The newest is taken first.
                "receive 2: WorkRequestFlushed",
                "send 0: WorkRequestFlushed",
                "event QpLastWqeReached",
            ],
        )]);
    });
}

#[test]
fn a_connection_that_ends_in_the_middle_of_a_message_fails_the_oldest_send_after_its_receive() {
    in_both_ways(|plan| {
        let mut half = Half::new(plan);
        half.end.receive(2);
        half.end.post([half.end.send().signaled(), half.end.send()]);
        half.until_requested(2);
        half.begin(request(RemoteOperation::Send, 0), 64, PSN, 32);
        half.until_half_arrived();
        shutdown(&half.socket, Shutdown::Both).expect("it is open");
        expect([(
            &mut half.end,
            &[
                "receive 0: WorkRequestFlushed",
                "send 0: RetryExceeded",
                "send 1: WorkRequestFlushed",
                "receive 1: WorkRequestFlushed",
            ],
        )]);
    });
}

/// The rest of the message finds no memory: it is refused, and the receive that it has taken is flushed.
#[test]
fn a_write_whose_memory_is_deregistered_in_its_middle_is_refused() {
    in_both_ways(|plan| {
        let mut half = Half::new(plan);
        half.end.receive(3);
        half.end.post([half.end.send().signaled(), half.end.send()]);
        half.until_requested(2);
        let memory = half.end.domain.expose(64, exposed_access());
        let memory = memory.expect("a region");
        let write = RemoteOperation::WriteWithImm(memory.remote(0), 5);
        half.begin(request(write, 0), 64, PSN, 32);
        half.until_half_arrived();
        memory.deregister().expect("nothing uses it");
        half.write(&[7; 32]);
        half.until_refused(PSN, CompletionStatus::RemoteAccess);
        expect([(
            &mut half.end,
            &[
                "event QpAccessError",
                "receive 0: WorkRequestFlushed",
                "send 0: WorkRequestFlushed",
                "send 1: WorkRequestFlushed",
                "receive 1: WorkRequestFlushed",
                "receive 2: WorkRequestFlushed",
            ],
        )]);
    });
}

/// One waits for its response, and one, not sent yet, for the one before it.
#[test]
fn a_refusal_is_sent_though_this_sides_requests_wait() {
    in_both_ways(|plan| {
        let mut half = Half::new(plan);
        half.end.receive(1);
        let read = WorkRequest::read(half.end.bytes(64), half.end.memory.remote(0));
        half.end.post([read, half.end.send().fenced()]);
        half.until_requested(1);
        let nowhere = RemoteMemory {
            addr: 8,
            ..half.end.memory.remote(0)
        };
        half.begin(request(RemoteOperation::Write(nowhere), 0), 8, PSN, 8);
        half.until_refused(PSN, CompletionStatus::RemoteAccess);
        expect([(
            &mut half.end,
            &[
                "event QpAccessError",
                "send 0: WorkRequestFlushed",
                "send 1: WorkRequestFlushed",
                "receive 0: WorkRequestFlushed",
            ],
        )]);
    });
}

/// An acknowledgement completes the request at the peer. So what this side sends while a payload arrives
/// acknowledges only the requests before it.
#[test]
fn a_message_is_acknowledged_once_all_of_it_has_arrived() {
    in_both_ways(|plan| {
        let mut half = Half::new(plan);
        half.end.receive(1);
        half.begin(request(RemoteOperation::Send, 0), 64, PSN, 32);
        half.until_half_arrived();
        half.end.post([half.end.send()]);
        assert_eq!(half.next_acked(), PSN);
        half.write(&[7; 32]);
        assert_eq!(half.next_acked(), PSN + 1);
        expect([(&mut half.end, &["receive 0: Success"])]);
    });
}

/// The READ was permitted when it was requested. None of its bytes has been sent, so the peer is told.
#[test]
fn a_read_whose_memory_is_deregistered_before_its_response_is_refused() {
    in_both_ways(|plan| {
        let mut half = Half::through_a_small_socket(plan);
        half.end.receive(2);
        let reads = half.fill_the_socket(half.end.memory.remote(0));
        half.end.post([half.end.send().signaled()]);
        let memory = half.end.domain.expose(4096, exposed_access());
        let memory = memory.expect("a region");
        let waiting = half.waiting_responses();
        half.begin(read(memory.remote(0), 4000), 0, PSN + reads, 0);
        half.until(|half| half.waiting_responses() > waiting);
        memory.deregister().expect("nothing uses it");
        half.until_refused(PSN + reads, CompletionStatus::RemoteAccess);
        expect([(
            &mut half.end,
            &[
                "event QpAccessError",
                "send 0: WorkRequestFlushed",
                "receive 0: WorkRequestFlushed",
                "receive 1: WorkRequestFlushed",
            ],
        )]);
    });
}

/// A part of a message cannot be followed by anything but its rest, so the peer is not told: it finds the
/// end of the connection.
#[test]
fn a_read_whose_memory_is_deregistered_in_the_middle_of_its_response_ends_the_connection() {
    in_both_ways(|plan| {
        let mut half = Half::through_a_small_socket(plan);
        half.end.receive(2);
        let memory = half.end.domain.expose(4096, exposed_access());
        let memory = memory.expect("a region");
        half.fill_the_socket(memory.remote(0));
        half.end.post([half.end.send().signaled()]);
        memory.deregister().expect("nothing uses it");
        half.until(|half| !half.read());
        while let Some(header) = half.take() {
            assert_eq!(header.message, Message::Response);
        }
        expect([(
            &mut half.end,
            &[
                "event QpAccessError",
                "send 0: WorkRequestFlushed",
                "receive 0: WorkRequestFlushed",
                "receive 1: WorkRequestFlushed",
            ],
        )]);
    });
}

/// The same with a window, which this side invalidates itself: that succeeds, and is the last to do so.
#[test]
fn a_read_whose_window_is_invalidated_in_the_middle_of_its_response_ends_the_connection() {
    in_both_ways(|plan| {
        let mut half = Half::through_a_small_socket(plan);
        half.end.receive(2);
        let window = half.end.domain.alloc_mw(WindowType::Type2);
        let window = window.expect("a window");
        // Far more than the socket takes.
        let long = half.end.domain.expose(1 << 20, exposed_access());
        let long = long.expect("a region");
        let binding = Binding::new(&long, 0..1 << 20, remote_access());
        let (key, memory) = (window.next_key(), binding.remote(window.next_key()));
        half.end
            .post([WorkRequest::bind_window(&window, binding, key).signaled()]);
        expect([(&mut half.end, &["send 0: Success"])]);
        half.begin(read(memory, 1 << 20), 0, PSN, 0);
        half.until(|half| half.outbound(|outbound| outbound.partial.is_some()));
        let invalidate = WorkRequest::local_invalidate(key).signaled();
        half.end.post([invalidate, half.end.send().signaled()]);
        half.until(|half| !half.read());
        assert_eq!(half.take(), None, "it ends in the middle of the response");
        expect([(
            &mut half.end,
            &[
                "send 1: Success",
                "event QpAccessError",
                "send 2: WorkRequestFlushed",
                "receive 0: WorkRequestFlushed",
                "receive 1: WorkRequestFlushed",
            ],
        )]);
    });
}

/// What the requester of such a READ sees: the same as if the peer had gone. On a network device it would
/// be `RemoteAccess`.
#[test]
fn a_connection_that_ends_in_the_middle_of_a_response_fails_the_read_as_a_peer_that_is_gone() {
    in_both_ways(|plan| {
        let mut half = Half::new(plan);
        half.end.receive(1);
        let read = WorkRequest::read(half.end.bytes(64), half.end.memory.remote(0));
        half.end
            .post([half.end.send().signaled(), read, half.end.send()]);
        half.until_requested(3);
        half.unacked = PSN + 2;
        half.begin(Message::Response, 64, PSN + 1, 32);
        expect([(&mut half.end, &["send 0: Success"])]);
        shutdown(&half.socket, Shutdown::Both).expect("it is open");
        expect([(
            &mut half.end,
            &[
                "send 1: RetryExceeded",
                "send 2: WorkRequestFlushed",
                "receive 0: WorkRequestFlushed",
            ],
        )]);
    });
}
