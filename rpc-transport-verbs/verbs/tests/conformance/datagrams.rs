//! Unreliable datagrams: which arrive, which are dropped silently, and which fail at the sender.

use verbline_verbs::{
    AddressVector, CompletionOpcode, CompletionStatus, Gid, Mtu, PostErrorReason, ProtectionDomain,
    QpNum, QpState, QpType, ReceiveRequest, VerbsError, WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::{Device, Kind};
use super::unreliable_side::{
    HEADER_LEN, Making, Party, QKEY, RECEIVE_OFFSET, Seen, pair, port_address_vector,
};
use super::verbs_side;

pub(crate) const CASES: Section = Section {
    topic: "datagrams",
    cases: &[
        case!(
            a_datagram_arrives_after_forty_bytes_of_header,
            "specification: receive queue; ud_test: Send"
        ),
        case!(
            a_datagram_header_says_where_it_came_from,
            "specification: receive queue; ud_test: SendTrafficClass"
        ),
        case!(
            a_datagram_brings_an_immediate,
            "specification: receive queue"
        ),
        case!(
            datagrams_are_gathered_and_scattered,
            "specification: send queue"
        ),
        case!(
            an_inline_datagram_is_copied_while_it_is_posted,
            "specification: send queue"
        ),
        case!(
            a_datagram_of_an_mtu_arrives_and_one_byte_more_fails_here,
            "specification: status codes; ud_test: SendLargerThanMtu"
        ),
        case!(
            a_datagram_with_another_key_is_dropped,
            "specification: status codes; ud_test: SendInvalidQKey"
        ),
        case!(
            a_key_with_the_highest_bit_stands_for_the_senders_own,
            "specification: status codes"
        ),
        case!(
            a_datagram_to_nobody_is_dropped,
            "specification: status codes; ud_test: SendInvalidQpn"
        ),
        case!(
            a_datagram_that_finds_no_receive_is_dropped,
            "specification: status codes; ud_test: SendRnr, SendRnrUnsignaledBatch"
        ),
        case!(
            a_datagram_longer_than_the_receive_is_dropped_and_takes_none,
            "specification: receive queue; ud_test: SendWithTooSmallRecv"
        ),
        case!(
            a_datagram_is_dropped_in_states_that_do_not_receive,
            "specification: states"
        ),
        case!(
            a_datagram_to_a_connection_is_dropped,
            "specification: responder; ud_test: UdSendToRc"
        ),
        case!(only_sends_are_datagrams, "specification: send queue"),
        case!(a_datagram_needs_a_destination, "specification: send queue"),
        case!(
            an_address_handle_of_another_domain_is_refused,
            "specification: objects"
        ),
        case!(address_handles_are_checked_by_name, "specification: states"),
        case!(
            address_handles_of_soft_lead_to_its_one_port,
            "specification: states"
        ),
    ],
};

fn making() -> Making {
    Making::new(QpType::UnreliableDatagram)
}

fn datagrams() -> (Party, Party) {
    pair(making())
}

fn sent() -> Seen {
    Seen::sent(CompletionOpcode::Send)
}

/// Sends `len` bytes of `fill`, signaled, and checks that they arrive in the posted receive.
fn assert_arrives(from: &mut Party, to: &mut Party, len: usize, fill: u8) {
    let handle = from.handle();
    let request = from.message(0..len, fill).signaled();
    from.post(request.to(&handle, to.qp.qp_num(), QKEY));
    assert_eq!(from.wait_one(), sent());
    assert_eq!(to.wait_one(), Seen::datagram(len, from));
    let payload = RECEIVE_OFFSET + HEADER_LEN;
    assert_eq!(to.bytes(payload..payload + len), vec![fill; len]);
}

/// Sends bytes that do not arrive, and checks that the send succeeds nevertheless.
fn assert_dropped(from: &mut Party, to: &mut Party, qp_num: QpNum, qkey: u32, len: usize) {
    let handle = from.handle();
    let request = from.message(0..len, 0xdd).signaled();
    from.post(request.to(&handle, qp_num, qkey));
    assert_eq!(from.wait_one(), sent());
    to.assert_quiet();
}

fn a_datagram_arrives_after_forty_bytes_of_header(_: &Device) {
    let (mut left, mut right) = datagrams();
    for round in 1..=5 {
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 1000 + HEADER_LEN);
        assert_arrives(&mut left, &mut right, 1000, round);
    }
    // The opposite direction, with an empty message.
    left.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + HEADER_LEN);
    assert_arrives(&mut right, &mut left, 0, 1);
}

fn a_datagram_header_says_where_it_came_from(device: &Device) {
    let (mut left, mut right) = datagrams();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 256);
    let address = AddressVector {
        traffic_class: 0xfc,
        hop_limit: 3,
        ..port_address_vector()
    };
    let handle = left.domain.create_ah(address).unwrap();
    assert_eq!(handle.address(), address);
    let request = left.message(0..10, 1);
    left.post(request.to(&handle, right.qp.qp_num(), QKEY));
    assert_eq!(right.wait_one(), Seen::datagram(10, &left));
    let header = right.bytes(RECEIVE_OFFSET..RECEIVE_OFFSET + HEADER_LEN);
    let hops = device.deviates(&rxe::HOPS_OF_THE_ROUTE, 3, 64);
    if header[0] >> 4 == 6 {
        let class = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) >> 20 & 0xff;
        assert_eq!(class & 0xfc, 0xfc);
        assert_eq!(header[7], hops, "hops");
        assert_eq!(header[8..24], port_address_vector().gid.0);
        assert_eq!(header[24..], port_address_vector().gid.0);
        // The next header: InfiniBand's transport, or UDP with a header of 8 bytes. Then 10 bytes
        // and 2 of padding, headers of 12 and 8 bytes, and a checksum of 4.
        let (next, len) = match device.kind {
            Kind::Soft => (0x1b, 36_u16),
            _ => (17, 44),
        };
        assert_eq!((header[6], &header[4..6]), (next, &len.to_be_bytes()[..]));
    } else {
        // The IPv4 header is in the last 20 bytes.
        assert_ne!(device.kind, Kind::Soft);
        let header = &header[20..];
        assert_eq!(header[0] >> 4, 4);
        assert_eq!(header[1] & 0xfc, 0xfc);
        assert_eq!(header[2..4], 64_u16.to_be_bytes());
        assert_eq!((header[8], header[9]), (hops, 17), "hops and UDP");
        assert_eq!(header[12..16], port_address_vector().gid.0[12..]);
        assert_eq!(header[16..], port_address_vector().gid.0[12..]);
    }
}

fn a_datagram_brings_an_immediate(_: &Device) {
    let (mut left, mut right) = datagrams();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let handle = left.handle();
    let request = WorkRequest::send_with_imm(left.memory.element(0..20).unwrap(), 0xdead_beef);
    left.post(request.signaled().to(&handle, right.qp.qp_num(), QKEY));
    assert_eq!(left.wait_one(), sent());
    let expected = Seen::datagram(20, &left).with_imm(0xdead_beef);
    assert_eq!(right.wait_one(), expected);
}

fn datagrams_are_gathered_and_scattered(_: &Device) {
    let (mut left, mut right) = datagrams();
    left.memory
        .write(0, b"one datagram of three pieces")
        .unwrap();
    // The header is split too.
    let pieces = [
        RECEIVE_OFFSET..RECEIVE_OFFSET + 30,
        RECEIVE_OFFSET + 100..RECEIVE_OFFSET + 115,
        RECEIVE_OFFSET..RECEIVE_OFFSET,
        RECEIVE_OFFSET + 201..RECEIVE_OFFSET + 240,
    ];
    let elements = pieces.map(|piece| right.memory.element(piece).unwrap());
    right.receive_into(ReceiveRequest::new(Vec::from(elements)));
    let pieces = [0..3, 3..3, 3..12, 12..28];
    let elements = Vec::from(pieces.map(|piece| left.memory.element(piece).unwrap()));
    let handle = left.handle();
    let request = WorkRequest::send(elements).signaled();
    left.post(request.to(&handle, right.qp.qp_num(), QKEY));
    assert_eq!(left.wait_one(), sent());
    assert_eq!(right.wait_one(), Seen::datagram(28, &left));
    assert_eq!(
        right.bytes(RECEIVE_OFFSET + 110..RECEIVE_OFFSET + 115),
        b"one d"
    );
    assert_eq!(
        right.bytes(RECEIVE_OFFSET + 201..RECEIVE_OFFSET + 224),
        b"atagram of three pieces"
    );
}

fn an_inline_datagram_is_copied_while_it_is_posted(_: &Device) {
    let (mut left, mut right) = datagrams();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 200);
    let handle = left.handle();
    let request = left.message(0..64, 7).inline().signaled();
    left.post(request.to(&handle, right.qp.qp_num(), QKEY));
    left.memory.write(0, &[8; 64]).unwrap();
    assert_eq!(left.wait_one(), sent());
    assert_eq!(right.wait_one(), Seen::datagram(64, &left));
    let payload = RECEIVE_OFFSET + HEADER_LEN;
    assert_eq!(right.bytes(payload..payload + 64), [7; 64]);
    let limit = left.qp.capabilities().max_inline_data;
    let len = limit + 1;
    let request = left.message(0..len, 7).inline();
    let refused = left.try_post(request.to(&handle, right.qp.qp_num(), QKEY));
    assert_eq!(refused, Err(PostErrorReason::InlineTooLong { len, limit }));
}

fn a_datagram_of_an_mtu_arrives_and_one_byte_more_fails_here(device: &Device) {
    let (mut left, mut right) = datagrams();
    let mtu = verbs_side::address().mtu.bytes() as usize;
    assert!(mtu <= Mtu::Bytes4096.bytes() as usize);
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + mtu + HEADER_LEN);
    assert_arrives(&mut left, &mut right, mtu, 3);

    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 2 * mtu);
    let handle = left.handle();
    let request = left.message(0..mtu + 1, 4);
    let request = request.to(&handle, right.qp.qp_num(), QKEY);
    if device.deviates(&rxe::LONG_DATAGRAMS, true, false) {
        left.post(request);
        let status = CompletionStatus::LocalLength;
        assert_eq!(left.wait_one(), Seen::failed(WorkKind::Send, status));
        assert_eq!(left.state(), QpState::Sqe);
    } else {
        let (len, limit) = (mtu + 1, mtu);
        let refused = PostErrorReason::DatagramTooLong { len, limit };
        assert_eq!(left.try_post(request), Err(refused));
    }
    right.assert_quiet();
}

fn a_datagram_with_another_key_is_dropped(_: &Device) {
    let (mut left, mut right) = datagrams();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let to = right.qp.qp_num();
    assert_dropped(&mut left, &mut right, to, QKEY + 1, 20);
    // The receive is still posted.
    assert_arrives(&mut left, &mut right, 20, 1);
}

fn a_key_with_the_highest_bit_stands_for_the_senders_own(device: &Device) {
    let (mut left, mut right) = datagrams();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let handle = left.handle();
    let request = left.message(0..20, 1);
    left.post(request.to(&handle, right.qp.qp_num(), 0x8000_0000));
    if device.deviates(&rxe::KEYS_AS_THEY_ARE, true, false) {
        assert_eq!(right.wait_one(), Seen::datagram(20, &left));
    } else {
        right.assert_quiet();
    }
}

fn a_datagram_to_nobody_is_dropped(_: &Device) {
    let (mut left, mut right) = datagrams();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let gone = {
        let (gone, _) = datagrams();
        gone.qp.qp_num()
    };
    assert_dropped(&mut left, &mut right, gone, QKEY, 20);
    assert_arrives(&mut left, &mut right, 20, 1);
}

fn a_datagram_that_finds_no_receive_is_dropped(_: &Device) {
    let (mut left, mut right) = datagrams();
    let to = right.qp.qp_num();
    assert_dropped(&mut left, &mut right, to, QKEY, 20);
    // Ten times the depth of the queue, and most requests are unsignaled.
    let handle = left.handle();
    for _ in 0..10 {
        for index in 0..left.making.depth {
            let request = left.message(0..20, 1);
            let is_last = index + 1 == left.making.depth;
            let request = if is_last { request.signaled() } else { request };
            left.post(request.to(&handle, to, QKEY));
        }
        assert_eq!(left.wait_one(), sent());
    }
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    right.assert_quiet();
    assert_arrives(&mut left, &mut right, 20, 1);
}

fn a_datagram_longer_than_the_receive_is_dropped_and_takes_none(device: &Device) {
    let (mut left, mut right) = datagrams();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + HEADER_LEN + 20);
    let to = right.qp.qp_num();
    if device.deviates(&rxe::SHORT_RECEIVES_END, true, false) {
        assert_dropped(&mut left, &mut right, to, QKEY, 21);
        assert_arrives(&mut left, &mut right, 20, 2);
    } else {
        let request = left.aim_at(left.message(0..21, 1), to);
        left.post(request);
        let status = CompletionStatus::LocalQpOperation;
        assert_eq!(right.wait_one(), Seen::failed(WorkKind::Receive, status));
    }
}

fn a_datagram_is_dropped_in_states_that_do_not_receive(_: &Device) {
    let (mut left, _) = datagrams();
    let mut right = Party::new(making());
    let to = right.qp.qp_num();
    assert_dropped(&mut left, &mut right, to, QKEY, 20);
    right.init();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    assert_dropped(&mut left, &mut right, to, QKEY, 20);
    // The queue pair receives from now on: in RTR, RTS and SQD.
    right.rtr(to);
    assert_arrives(&mut left, &mut right, 20, 1);
    right.rts();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    assert_arrives(&mut left, &mut right, 20, 2);
    right.go(QpState::Sqd);
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    assert_arrives(&mut left, &mut right, 20, 3);
    right.go(QpState::Error);
    assert_dropped(&mut left, &mut right, to, QKEY, 20);
}

fn a_datagram_to_a_connection_is_dropped(_: &Device) {
    let (mut left, _) = datagrams();
    let (mut connected, _other) = pair(Making::new(QpType::UnreliableConnection));
    connected.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let to = connected.qp.qp_num();
    assert_dropped(&mut left, &mut connected, to, QKEY, 20);
    let (mut reliable, _other) = verbs_side::connected(verbs_side::Plan::default());
    reliable.post_recv(1);
    let handle = left.handle();
    let request = left.message(0..20, 1).signaled();
    left.post(request.to(&handle, reliable.qp.qp_num(), QKEY));
    assert_eq!(left.wait_one(), sent());
    reliable.assert_quiet();
}

fn only_sends_are_datagrams(_: &Device) {
    let (mut left, right) = datagrams();
    let remote = right.memory.remote(0);
    let handle = left.handle();
    let part = |len| left.memory.element(0..len).unwrap();
    let requests = [
        WorkRequest::write(part(8), remote),
        WorkRequest::write_with_imm(part(8), remote, 1),
        WorkRequest::read(part(8), remote),
        WorkRequest::fetch_and_add(part(8), remote, 1),
        WorkRequest::compare_and_swap(part(8), remote, 1, 2),
        WorkRequest::send_with_invalidate(part(8), remote.key),
        WorkRequest::local_invalidate(remote.key),
    ];
    for request in requests {
        let operation = request.name();
        let refused = left.try_post(request.to(&handle, right.qp.qp_num(), QKEY));
        let qp_type = QpType::UnreliableDatagram;
        let expected = PostErrorReason::NotForType { operation, qp_type };
        assert_eq!(refused, Err(expected));
    }
}

fn a_datagram_needs_a_destination(_: &Device) {
    let (mut left, mut right) = datagrams();
    right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let handle = left.handle();
    let to = right.qp.qp_num();
    let list = vec![
        left.message(0..20, 1).signaled().to(&handle, to, QKEY),
        left.message(0..20, 1),
        left.message(0..20, 1).to(&handle, to, QKEY),
    ];
    let refused = left.post_list(list);
    assert_eq!(refused, Err((1, PostErrorReason::NoDestination)));
    // The request before it was posted.
    assert_eq!(left.wait_one(), sent());
    assert_eq!(right.wait_one(), Seen::datagram(20, &left));
}

fn an_address_handle_of_another_domain_is_refused(_: &Device) {
    let (mut left, right) = datagrams();
    let domain = left.context.alloc_pd().unwrap();
    let handle = domain.create_ah(port_address_vector()).unwrap();
    let request = left.message(0..20, 1).to(&handle, right.qp.qp_num(), QKEY);
    let object = "the address handle";
    let expected = PostErrorReason::ForeignDomain { object };
    assert_eq!(left.try_post(request), Err(expected));
}

/// Checks that the address handle is rejected, because of the field with this name.
fn refuses(domain: &ProtectionDomain, address: AddressVector, name: &str) {
    match domain.create_ah(address) {
        Err(VerbsError::InvalidArgument {
            argument: "address",
            reason,
            ..
        }) => assert!(reason.starts_with(name), "{reason}"),
        other => panic!("{name}: {other:?}"),
    }
}

fn address_handles_are_checked_by_name(_: &Device) {
    let context = verbs_side::open();
    let domain = context.alloc_pd().unwrap();
    refuses(
        &domain,
        AddressVector {
            port: 200,
            ..port_address_vector()
        },
        "port:",
    );
    refuses(
        &domain,
        AddressVector {
            sl: 16,
            ..port_address_vector()
        },
        "sl:",
    );
    refuses(
        &domain,
        AddressVector {
            flow_label: 1 << 20,
            ..port_address_vector()
        },
        "flow_label:",
    );
    let handle = domain.create_ah(port_address_vector()).unwrap();
    let clone = handle.clone();
    let busy = handle.destroy().unwrap_err();
    assert_eq!(busy.call, "destroy_ah");
    drop(clone);
    busy.object.destroy().unwrap();
}

fn address_handles_of_soft_lead_to_its_one_port(device: &Device) {
    device.needs_soft(&rxe::SOFT_OPTION);
    let context = verbs_side::open();
    let domain = context.alloc_pd().unwrap();
    let to = port_address_vector();
    let Gid(mut gid) = to.gid;
    gid[15] ^= 1;
    let gid = Gid(gid);
    refuses(&domain, AddressVector { gid, ..to }, "gid:");
    let sgid_index = 1;
    refuses(&domain, AddressVector { sgid_index, ..to }, "sgid_index:");
    let is_global = false;
    refuses(&domain, AddressVector { is_global, ..to }, "is_global has");
}
