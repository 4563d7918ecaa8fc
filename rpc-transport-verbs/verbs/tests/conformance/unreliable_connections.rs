//! Unreliable connections: which messages arrive, and which are dropped silently.

use verbline_verbs::{
    Access, AddressVector, AsyncEvent, Attribute, Binding, CompletionOpcode, Gid, ModifyError,
    PostErrorReason, Psn, QpAttributes, QpState, QpType, ReceiveRequest, RemoteKey, RemoteMemory,
    SendRequest, WindowType, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::{Device, Kind};
use super::unreliable_side::{
    MEMORY_LEN, Making, Party, RECEIVE_OFFSET, Seen, all_access, pair, port_address_vector,
};

pub(crate) const CASES: Section = Section {
    topic: "unreliable connections",
    cases: &[
        case!(
            a_message_on_an_unreliable_connection_arrives,
            "specification: receive queue"
        ),
        case!(
            an_unreliable_message_of_many_packets_arrives_whole,
            "specification: receive queue"
        ),
        case!(
            an_unreliable_message_of_a_slot_arrives,
            "specification: send queue"
        ),
        case!(
            an_unreliable_write_lands_and_tells_nobody,
            "specification: send queue"
        ),
        case!(
            an_unreliable_write_with_immediate_takes_a_receive_and_leaves_its_bytes,
            "specification: receive queue"
        ),
        case!(
            an_unreliable_write_that_is_not_permitted_is_dropped,
            "specification: protection; status codes"
        ),
        case!(
            an_unreliable_write_needs_the_right_of_the_queue_pair,
            "specification: protection"
        ),
        case!(
            an_unreliable_write_of_nothing_needs_no_key,
            "specification: protection"
        ),
        case!(
            an_unreliable_message_that_finds_no_receive_is_dropped,
            "specification: status codes"
        ),
        case!(
            an_unreliable_message_longer_than_the_receive_is_dropped,
            "specification: status codes"
        ),
        case!(
            an_unreliable_connection_begins_with_any_sequence_number,
            "specification: sequence numbers"
        ),
        case!(
            an_unreliable_connection_hears_its_own_peer_alone,
            "specification: responder"
        ),
        case!(
            the_first_message_on_an_unreliable_connection_is_told_of_before_rts,
            "specification: asynchronous events"
        ),
        case!(
            unreliable_connections_know_no_reads_and_no_atomics,
            "specification: send queue"
        ),
        case!(
            unreliable_connections_take_no_destination,
            "specification: send queue"
        ),
        case!(
            windows_are_bound_on_unreliable_connections,
            "specification: memory windows"
        ),
        case!(
            unreliable_connections_of_soft_stay_within_the_process,
            "specification: states"
        ),
    ],
};

fn making() -> Making {
    Making::new(QpType::UnreliableConnection)
}

fn connection() -> (Party, Party) {
    pair(making())
}

fn sent() -> Seen {
    Seen::sent(CompletionOpcode::Send)
}

fn written() -> Seen {
    Seen::sent(CompletionOpcode::RdmaWrite)
}

/// Sends `len` bytes of `fill` to a posted receive and checks that they arrive.
fn assert_arrives(from: &mut Party, to: &mut Party, len: usize, fill: u8) {
    let request = from.message(0..len, fill).signaled();
    from.post(request);
    assert_eq!(from.wait_one(), sent());
    assert_eq!(to.wait_one(), Seen::received(len));
    assert_eq!(
        to.bytes(RECEIVE_OFFSET..RECEIVE_OFFSET + len),
        vec![fill; len]
    );
}

fn a_message_on_an_unreliable_connection_arrives(_: &Device) {
    let (mut left, mut right) = connection();
    for round in 1..=5 {
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        assert_arrives(&mut left, &mut right, 100, round);
    }
    left.receive(RECEIVE_OFFSET..RECEIVE_OFFSET);
    assert_arrives(&mut right, &mut left, 0, 1);

    left.memory.write(0, b"of two pieces").unwrap();
    let pieces = [
        RECEIVE_OFFSET..RECEIVE_OFFSET + 4,
        RECEIVE_OFFSET + 10..RECEIVE_OFFSET + 100,
    ];
    let elements = Vec::from(pieces.map(|piece| right.memory.element(piece).unwrap()));
    right.receive_into(ReceiveRequest::new(elements));
    let elements = Vec::from([0..6, 6..13].map(|piece| left.memory.element(piece).unwrap()));
    left.post(WorkRequest::send_with_imm(elements, 77).signaled());
    assert_eq!(left.wait_one(), sent());
    assert_eq!(right.wait_one(), Seen::received(13).with_imm(77));
    assert_eq!(right.bytes(RECEIVE_OFFSET..RECEIVE_OFFSET + 4), b"of t");
    assert_eq!(
        right.bytes(RECEIVE_OFFSET + 10..RECEIVE_OFFSET + 19),
        b"wo pieces"
    );
}

fn an_unreliable_message_of_many_packets_arrives_whole(_: &Device) {
    let (mut left, mut right) = connection();
    let bytes: Vec<u8> = (0..RECEIVE_OFFSET).map(|at| (at % 251) as u8).collect();
    left.memory.write(0, &bytes).unwrap();
    right.receive(RECEIVE_OFFSET..MEMORY_LEN);
    left.post(WorkRequest::send(left.memory.element(0..RECEIVE_OFFSET).unwrap()).signaled());
    assert_eq!(left.wait_one(), sent());
    assert_eq!(right.wait_one(), Seen::received(RECEIVE_OFFSET));
    assert_eq!(right.bytes(RECEIVE_OFFSET..MEMORY_LEN), bytes);
}

/// The short path of posting, which most requests on reliable connections take.
fn an_unreliable_message_of_a_slot_arrives(_: &Device) {
    let (mut left, mut right) = connection();
    let region = left.domain.register(1 << 12, Access::LOCAL_WRITE).unwrap();
    let mut slots = region.into_slots(1 << 10).unwrap();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 1024);
    right.receive(RECEIVE_OFFSET + 1024..RECEIVE_OFFSET + 2048);
    let mut list: Vec<SendRequest> = Vec::new();
    for fill in [5, 6] {
        let mut slot = slots.pop().unwrap();
        slot[..60].fill(fill);
        list.push(SendRequest::new(slot, 60));
    }
    let second = list.pop().unwrap().inline().signaled();
    list.push(second);
    let mut back = 0;
    left.qp.post_send(&mut list, &mut |_| back += 1).unwrap();
    assert_eq!(back, 1, "the inline one's slot comes back at once");
    assert_eq!(left.wait_one(), sent());
    assert_eq!(right.wait(2), [Seen::received(60); 2]);
    assert_eq!(right.bytes(RECEIVE_OFFSET..RECEIVE_OFFSET + 60), [5; 60]);
    assert_eq!(
        right.bytes(RECEIVE_OFFSET + 1024..RECEIVE_OFFSET + 1084),
        [6; 60]
    );
}

fn an_unreliable_write_lands_and_tells_nobody(_: &Device) {
    let (mut left, mut right) = connection();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    left.memory.write(0, &[9; 2000]).unwrap();
    let remote = right.memory.remote(5000);
    let piece = left.memory.element(0..2000).unwrap();
    left.post(WorkRequest::write(piece, remote).signaled());
    assert_eq!(left.wait_one(), written());
    right.assert_quiet();
    assert_eq!(right.bytes(5000..7000), [9; 2000]);
    assert_eq!(right.bytes(4999..5000), [0]);
    assert_eq!(right.bytes(7000..7001), [0]);
}

fn an_unreliable_write_with_immediate_takes_a_receive_and_leaves_its_bytes(_: &Device) {
    let (mut left, mut right) = connection();
    // The receive's memory is not used, so the receive has none.
    right.receive_into(ReceiveRequest::default());
    left.memory.write(0, &[9; 300]).unwrap();
    let remote = right.memory.remote(5000);
    let piece = left.memory.element(0..300).unwrap();
    left.post(WorkRequest::write_with_imm(piece, remote, 0x0102_0304).signaled());
    assert_eq!(left.wait_one(), written());
    let expected = Seen {
        opcode: Some(CompletionOpcode::ReceiveRdmaWithImm),
        ..Seen::received(300)
    };
    assert_eq!(right.wait_one(), expected.with_imm(0x0102_0304));
    assert_eq!(right.bytes(5000..5300), [9; 300]);

    // Without a receive, the whole operation is dropped.
    left.memory.write(0, &[8; 300]).unwrap();
    let piece = left.memory.element(0..300).unwrap();
    left.post(WorkRequest::write_with_imm(piece, remote, 5).signaled());
    assert_eq!(left.wait_one(), written());
    right.assert_quiet();
    assert_eq!(right.bytes(5000..5300), [9; 300]);
}

fn an_unreliable_write_that_is_not_permitted_is_dropped(_: &Device) {
    let (mut left, mut right) = connection();
    let read_only = right.domain.expose(4096, Access::REMOTE_READ).unwrap();
    let other_domain = right.context.alloc_pd().unwrap();
    let foreign = other_domain.expose(4096, all_access()).unwrap();
    let start = right.memory.remote(0);
    let key = RemoteKey(start.key.0 ^ 0x0101);
    let remotes = [
        ("key", RemoteMemory { key, ..start }),
        ("end", right.memory.remote(MEMORY_LEN - 99)),
        ("start", start.offset(0_u64.wrapping_sub(1))),
        ("rights", read_only.remote(0)),
        ("domain", foreign.remote(0)),
    ];
    left.memory.write(0, &[9; 100]).unwrap();
    for (wrong, remote) in remotes {
        let piece = left.memory.element(0..100).unwrap();
        left.post(WorkRequest::write(piece, remote).signaled());
        assert_eq!(left.wait_one(), written(), "{wrong}");
    }
    right.assert_quiet();
    assert_eq!(right.bytes(0..MEMORY_LEN), vec![0; MEMORY_LEN]);
    assert_eq!(read_only.to_vec(0..4096).unwrap(), [0; 4096]);
    assert_eq!(foreign.to_vec(0..4096).unwrap(), [0; 4096]);
    // Neither queue pair has changed its state.
    assert_eq!((left.state(), right.state()), (QpState::Rts, QpState::Rts));
    right.assert_no_event();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    assert_arrives(&mut left, &mut right, 100, 1);
}

fn an_unreliable_write_needs_the_right_of_the_queue_pair(_: &Device) {
    let (mut left, mut right) = pair(Making {
        access: Access::REMOTE_READ,
        ..making()
    });
    left.memory.write(0, &[9; 100]).unwrap();
    let write = |left: &Party, right: &Party| {
        let piece = left.memory.element(0..100).unwrap();
        WorkRequest::write(piece, right.memory.remote(0)).signaled()
    };
    let request = write(&left, &right);
    left.post(request);
    assert_eq!(left.wait_one(), written());
    right.assert_quiet();
    assert_eq!(right.bytes(0..100), [0; 100]);
    // With the right, the write succeeds.
    let attributes = QpAttributes {
        access: Some(Access::REMOTE_WRITE),
        ..QpAttributes::default()
    };
    right.qp.modify(&attributes).unwrap();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let request = write(&left, &right);
    left.post(request);
    assert_eq!(left.wait_one(), written());
    assert_arrives(&mut left, &mut right, 1, 1);
    assert_eq!(right.bytes(1..100), [9; 99]);
}

fn an_unreliable_write_of_nothing_needs_no_key(_: &Device) {
    let (mut left, mut right) = connection();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let remote = RemoteMemory {
        addr: 12345,
        key: RemoteKey(678),
    };
    left.post(WorkRequest::write_with_imm(Vec::new(), remote, 3).signaled());
    assert_eq!(left.wait_one(), written());
    let expected = Seen {
        opcode: Some(CompletionOpcode::ReceiveRdmaWithImm),
        ..Seen::received(0)
    };
    assert_eq!(right.wait_one(), expected.with_imm(3));
}

fn an_unreliable_message_that_finds_no_receive_is_dropped(_: &Device) {
    let (mut left, mut right) = connection();
    let request = left.message(0..100, 0xdd).signaled();
    left.post(request);
    assert_eq!(left.wait_one(), sent());
    right.assert_quiet();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    right.assert_quiet();
    assert_arrives(&mut left, &mut right, 100, 1);
}

fn an_unreliable_message_longer_than_the_receive_is_dropped(device: &Device) {
    let (mut left, mut right) = connection();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 99);
    let request = left.message(0..100, 0xdd).signaled();
    left.post(request);
    assert_eq!(left.wait_one(), sent());
    device.needs(device.kind != Kind::Rxe, &rxe::UC_TOO_LONG);
    right.assert_quiet();
    assert_arrives(&mut left, &mut right, 99, 1);
}

/// Sequence numbers detect gaps within a message. A new message is accepted with any sequence
/// number.
fn an_unreliable_connection_begins_with_any_sequence_number(_: &Device) {
    let (mut left, mut right) = (Party::new(making()), Party::new(making()));
    left.init();
    right.init();
    let (left_num, right_num) = (left.qp.qp_num(), right.qp.qp_num());
    left.rtr(right_num);
    right.rtr(left_num);
    let attributes = QpAttributes {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(7)),
        ..QpAttributes::default()
    };
    left.qp.modify(&attributes).unwrap();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 5000);
    assert_arrives(&mut left, &mut right, 5000, 1);
}

fn an_unreliable_connection_hears_its_own_peer_alone(device: &Device) {
    let (mut left, mut right) = connection();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let mut stranger = Party::new(making());
    stranger.init();
    stranger.rtr(right.qp.qp_num());
    stranger.rts();
    let request = stranger.message(0..100, 0xdd).signaled();
    stranger.post(request);
    assert_eq!(stranger.wait_one(), sent());
    // On other devices, packets do not identify their sender either.
    let is_other = device.kind == Kind::Card;
    if !device.deviates(&rxe::SENDERS_ARE_ADDRESSES, is_other, true) {
        right.assert_quiet();
        assert_arrives(&mut left, &mut right, 100, 1);
    } else {
        assert_eq!(right.wait_one(), Seen::received(100));
        assert_eq!(
            right.bytes(RECEIVE_OFFSET..RECEIVE_OFFSET + 100),
            [0xdd; 100]
        );
    }

    // Nor does it receive anything in states that do not receive.
    let request = left.message(0..100, 0xdd).signaled();
    right.go(QpState::Reset);
    left.post(request);
    assert_eq!(left.wait_one(), sent());
    right.init();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let request = left.message(0..100, 0xdd).signaled();
    left.post(request);
    assert_eq!(left.wait_one(), sent());
    right.assert_quiet();
    right.rtr(left.qp.qp_num());
    assert_arrives(&mut left, &mut right, 100, 2);
}

fn the_first_message_on_an_unreliable_connection_is_told_of_before_rts(device: &Device) {
    let (mut left, mut right) = (Party::new(making()), Party::new(making()));
    left.init();
    right.init();
    let (left_num, right_num) = (left.qp.qp_num(), right.qp.qp_num());
    left.rtr(right_num);
    right.rtr(left_num);
    left.rts();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    assert_arrives(&mut left, &mut right, 100, 1);
    if device.deviates(&rxe::FEW_EVENTS, true, false) {
        let qp_num = right_num;
        assert_eq!(
            right.event(),
            AsyncEvent::CommunicationEstablished { qp_num }
        );
    }
    assert_arrives(&mut left, &mut right, 100, 2);
    right.assert_no_event();
}

fn unreliable_connections_know_no_reads_and_no_atomics(_: &Device) {
    let (mut left, right) = connection();
    let remote = right.memory.remote(0);
    let part = |len| left.memory.element(0..len).unwrap();
    let requests = [
        WorkRequest::read(part(8), remote),
        WorkRequest::fetch_and_add(part(8), remote, 1),
        WorkRequest::compare_and_swap(part(8), remote, 1, 2),
        WorkRequest::send_with_invalidate(part(8), remote.key),
        WorkRequest::local_invalidate(remote.key),
    ];
    for request in requests {
        let operation = request.name();
        let qp_type = QpType::UnreliableConnection;
        let expected = PostErrorReason::NotForType { operation, qp_type };
        assert_eq!(left.try_post(request), Err(expected));
    }
}

fn unreliable_connections_take_no_destination(_: &Device) {
    let (mut left, right) = connection();
    let handle = left.handle();
    let request = left.message(0..8, 1).to(&handle, right.qp.qp_num(), 1);
    let qp_type = QpType::UnreliableConnection;
    let expected = PostErrorReason::UselessDestination { qp_type };
    assert_eq!(left.try_post(request), Err(expected));
}

fn windows_are_bound_on_unreliable_connections(device: &Device) {
    let (mut left, mut right) = connection();
    let bound = Seen::sent(CompletionOpcode::BindWindow);
    let window = right.domain.alloc_mw(WindowType::Type2).unwrap();
    let binding = || Binding::new(&right.memory, 1000..2000, Access::REMOTE_WRITE);
    let key = window.next_key();
    let request = WorkRequest::bind_window(&window, binding(), key).signaled();
    let remote = binding().remote(key);
    right.post(request);
    assert_eq!(right.wait_one(), bound);
    left.memory.write(0, &[7; 200]).unwrap();
    // The second range exceeds the window.
    let beyond = device.deviates(&rxe::WINDOW_BOUNDS, 0, 7);
    for offset in [0, 900] {
        let piece = left.memory.element(0..200).unwrap();
        left.post(WorkRequest::write(piece, remote.offset(offset)).signaled());
        assert_eq!(left.wait_one(), written());
    }
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 10);
    assert_arrives(&mut left, &mut right, 10, 1);
    assert_eq!(right.bytes(1010..1200), [7; 190]);
    assert_eq!(right.bytes(1900..2100), [beyond; 200]);

    let window = right.domain.alloc_mw(WindowType::Type1).unwrap();
    let binding = Binding::new(&right.memory, 3000..3100, Access::REMOTE_WRITE);
    let key = right.qp.bind_mw(&window, binding, true).unwrap();
    assert_eq!(right.wait_one(), bound);
    let remote = RemoteMemory {
        addr: right.memory.address() + 3000,
        key,
    };
    let piece = left.memory.element(0..100).unwrap();
    left.post(WorkRequest::write(piece, remote).signaled());
    assert_eq!(left.wait_one(), written());
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 10);
    assert_arrives(&mut left, &mut right, 10, 1);
    assert_eq!(right.bytes(3010..3100), [7; 90]);
}

fn unreliable_connections_of_soft_stay_within_the_process(device: &Device) {
    device.needs_soft(&rxe::SOFT_OPTION);
    let mut left = Party::new(making());
    left.init();
    let before = left.qp.query().unwrap();
    let Gid(mut other) = port_address_vector().gid;
    other[15] ^= 1;
    let address = AddressVector {
        gid: Gid(other),
        ..port_address_vector()
    };
    let to = left.qp.qp_num();
    match left.try_rtr(to, address) {
        Err(ModifyError::Value {
            from: QpState::Init,
            to: QpState::Rtr,
            attribute: Attribute::Address,
            reason,
            ..
        }) => assert!(reason.starts_with("gid:"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(left.qp.query().unwrap(), before);
    // Connected to itself, it receives its own messages.
    left.rtr(to);
    left.rts();
    left.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let request = left.message(0..100, 1);
    left.post(request);
    assert_eq!(left.wait_one(), Seen::received(100));
}
