//! Multicast groups: which queue pairs receive the messages sent to a group.

use verbline_verbs::{
    AddressVector, CompletionOpcode, Gid, QpAttributes, QpNum, QpType, VerbsError,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::unreliable_side::{
    Making, Party, QKEY, RECEIVE_OFFSET, Seen, pair, port_address_vector,
};

pub(crate) const CASES: Section = Section {
    topic: "multicast",
    cases: &[
        case!(
            all_in_a_group_hear_what_is_sent_to_it,
            "specification: datagrams"
        ),
        case!(
            who_is_not_in_a_group_hears_nothing_of_it,
            "specification: datagrams"
        ),
        case!(
            groups_are_joined_and_left_by_datagrams_alone,
            "specification: objects"
        ),
    ],
};

/// Returns a group for this test run only, on IPv4 networks, as the guest's addresses are.
fn group(number: u8) -> Gid {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 239, 255, 77, number]);
    Gid(gid)
}

fn group_address_vector(group: Gid) -> AddressVector {
    AddressVector {
        gid: group,
        ..port_address_vector()
    }
}

fn up() -> Party {
    let mut party = Party::new(Making::new(QpType::UnreliableDatagram));
    party.init();
    party.rtr(party.qp.qp_num());
    party.rts();
    party
}

/// Sends 30 bytes to the group, with the Q_Key that all members have.
fn send_to(from: &mut Party, group: Gid, to: QpNum, fill: u8) {
    let handle = from.domain.create_ah(group_address_vector(group)).unwrap();
    let request = from.message(0..30, fill).signaled();
    from.post(request.to(&handle, to, QKEY));
}

fn sent() -> Seen {
    Seen::sent(CompletionOpcode::Send)
}

fn all_in_a_group_hear_what_is_sent_to_it(device: &Device) {
    device.needs_soft(&rxe::MULTICAST_NEEDS_IP);
    let mut sender = up();
    let mut members = [up(), up(), up()];
    for (number, member) in members.iter_mut().enumerate() {
        member.qp.attach_multicast(group(1), 0).unwrap();
        // Attaching again has no effect.
        member.qp.attach_multicast(group(1), 0).unwrap();
        let start = RECEIVE_OFFSET + number;
        member.receive(start..start + 100);
        member.receive(start..start + 100);
    }
    send_to(&mut sender, group(1), QpNum::MULTICAST, 5);
    assert_eq!(sender.wait_one(), sent());
    for (number, member) in members.iter_mut().enumerate() {
        assert_eq!(member.wait_one(), Seen::datagram(30, &sender));
        let start = RECEIVE_OFFSET + number;
        assert_eq!(member.bytes(start + 40..start + 70), [5; 30]);
        assert_eq!(member.bytes(start + 24..start + 40), group(1).0, "to whom");
        assert_eq!(
            member.bytes(start + 8..start + 24),
            port_address_vector().gid.0
        );
    }
    // A member also receives its own messages.
    let [first, rest @ ..] = &mut members;
    send_to(first, group(1), QpNum::MULTICAST, 6);
    let mut seen = first.wait(2);
    seen.retain(|seen| *seen != sent());
    assert_eq!(seen, [Seen::datagram(30, first)]);
    for member in rest {
        assert_eq!(member.wait_one(), Seen::datagram(30, first));
    }
}

fn who_is_not_in_a_group_hears_nothing_of_it(device: &Device) {
    device.needs_soft(&rxe::MULTICAST_NEEDS_IP);
    let mut sender = up();
    let (mut member, mut other_key, mut gone, mut stranger) = (up(), up(), up(), up());
    for party in [&mut member, &mut other_key, &mut gone] {
        party.qp.attach_multicast(group(2), 0).unwrap();
    }
    stranger.qp.attach_multicast(group(3), 0).unwrap();
    gone.qp.detach_multicast(group(2), 0).unwrap();
    let attributes = QpAttributes {
        qkey: Some(QKEY + 1),
        ..QpAttributes::default()
    };
    other_key.qp.modify(&attributes).unwrap();
    {
        // It leaves the group when it is dropped.
        let mut short_lived = up();
        short_lived.qp.attach_multicast(group(2), 0).unwrap();
    }
    for party in [&mut member, &mut other_key, &mut gone, &mut stranger] {
        party.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    }
    // Only the multicast queue pair number addresses the group.
    let to = member.qp.qp_num();
    send_to(&mut sender, group(2), to, 4);
    assert_eq!(sender.wait_one(), sent());
    member.assert_quiet();
    send_to(&mut sender, group(2), QpNum::MULTICAST, 5);
    assert_eq!(sender.wait_one(), sent());
    assert_eq!(member.wait_one(), Seen::datagram(30, &sender));
    for party in [&mut other_key, &mut gone, &mut stranger] {
        party.assert_quiet();
    }
}

fn groups_are_joined_and_left_by_datagrams_alone(_: &Device) {
    let named = |result: Result<(), VerbsError>, name: &str| match result {
        Err(VerbsError::InvalidArgument { argument, .. }) => assert_eq!(argument, name),
        other => panic!("{name}: {other:?}"),
    };
    let mut party = up();
    named(
        party.qp.attach_multicast(port_address_vector().gid, 0),
        "gid",
    );
    named(party.qp.detach_multicast(group(4), 0), "gid");
    let (mut connected, _other) = pair(Making::new(QpType::UnreliableConnection));
    named(connected.qp.attach_multicast(group(4), 0), "qp_type");
    named(connected.qp.detach_multicast(group(4), 0), "qp_type");
}
