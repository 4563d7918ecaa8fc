//! The data of one-sided operations and scatter/gather lists is correct at every length at which
//! the software device switches methods: in a ring slot, as descriptors, in staging memory, in
//! pieces. The conformance suite covers what the operations mean and which requests are rejected.

use std::time::Instant;

use verbline_verbs::{
    Access, CompletionOpcode, Elements, ExposedMemory, QueuePairConfig, ReceiveRequest,
    RtrAttributes, RtsAttributes, WorkCompletion, WorkRequest,
};

use crate::verbs_side::{HANG, Plan, Side, address, open, rtr, rts};

fn all_remote() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// Creates two sides that grant each other all access rights, with four elements per request.
fn pair() -> (Side, Side) {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    for side in [&mut left, &mut right] {
        side.qp = side
            .domain
            .create_qp(QueuePairConfig {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
                ..QueuePairConfig::new(&side.cq, &side.cq)
            })
            .unwrap();
        side.qp.to_init(address().port, all_remote()).unwrap();
    }
    let (l, r) = (left.endpoint(), right.endpoint());
    for (side, remote) in [(&mut left, r), (&mut right, l)] {
        let attributes = RtrAttributes {
            max_dest_rd_atomic: 4,
            ..rtr(remote)
        };
        side.qp.to_rtr(attributes).unwrap();
    }
    for side in [&mut left, &mut right] {
        let attributes = RtsAttributes {
            max_rd_atomic: 4,
            ..rts()
        };
        side.qp.to_rts(attributes).unwrap();
    }
    (left, right)
}

fn exposed(side: &Side, len: usize) -> ExposedMemory {
    let access = all_remote() | Access::LOCAL_WRITE | Access::MW_BIND;
    side.domain.expose(len, access).unwrap()
}

/// Waits for the next completion of a side, which has to be a success.
fn completion(side: &mut Side) -> WorkCompletion {
    let start = Instant::now();
    let mut completions = Vec::new();
    loop {
        side.cq.poll(&mut completions, 1).unwrap();
        if let Some(completion) = completions.pop() {
            assert!(completion.is_success(), "{}", completion.status());
            return completion;
        }
        assert!(start.elapsed() < HANG, "nothing came");
        std::thread::yield_now();
    }
}

/// Posts a request, and waits until it succeeds.
fn carry_out(side: &mut Side, request: WorkRequest) -> WorkCompletion {
    let wr_id = side.qp.post_one(request.signaled()).unwrap();
    let completion = completion(side);
    assert_eq!(completion.wr_id(), wr_id);
    completion
}

fn finish(side: &mut Side, completion: WorkCompletion) {
    let slots = &mut side.slots;
    let give_back = &mut |slot| slots.push(slot);
    side.qp.complete_send(completion, give_back).unwrap();
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed) as u8).collect()
}

#[test]
fn writes_and_reads_of_every_length_move_the_bytes_while_the_target_does_nothing() {
    let (mut left, right) = pair();
    let most = 1 << 20;
    let (here, there) = (exposed(&left, most), exposed(&right, most));
    for (seed, len) in [
        0, 1, 8, 63, 227, 228, 229, 240, 241, 4096, 65_535, 65_536, 65_537, most,
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = pattern(len, seed);
        here.write(0, &bytes).unwrap();
        let write = WorkRequest::write(here.element(0..len).unwrap(), there.remote(0));
        let done = carry_out(&mut left, write);
        assert_eq!(done.opcode(), Some(CompletionOpcode::RdmaWrite));
        finish(&mut left, done);
        assert!(
            there.to_vec(0..len).unwrap() == bytes,
            "{len} bytes written"
        );
        there.write(0, &pattern(len, seed + 1)).unwrap();
        let read = WorkRequest::read(here.element(0..len).unwrap(), there.remote(0));
        let done = carry_out(&mut left, read);
        assert_eq!(done.opcode(), Some(CompletionOpcode::RdmaRead));
        finish(&mut left, done);
        assert!(
            here.to_vec(0..len).unwrap() == pattern(len, seed + 1),
            "{len} bytes read"
        );
    }
}

#[test]
fn elements_are_gathered_and_scattered_in_their_order() {
    let (mut left, mut right) = pair();
    let (here, there) = (exposed(&left, 8192), exposed(&right, 8192));
    for scale in [1, 100] {
        let bytes = pattern(40 * scale, 3);
        here.write(0, &bytes).unwrap();
        let cuts = [
            0..10 * scale,
            10 * scale..10 * scale,
            10 * scale..40 * scale,
        ];
        let elements: Elements = cuts
            .iter()
            .cloned()
            .map(|cut| here.element(cut).unwrap())
            .collect();
        let receives = [0..5 * scale, 1000..1000 + 35 * scale];
        let receives = receives.map(|cut| there.element(cut).unwrap());
        let request = ReceiveRequest::new(Elements::from_iter(receives));
        right.qp.post_recv_elements(&mut vec![request]).unwrap();
        let send = WorkRequest::send_with_imm(elements, 0xfeed_beef).solicited();
        let done = carry_out(&mut left, send);
        assert_eq!(done.opcode(), Some(CompletionOpcode::Send));
        finish(&mut left, done);
        let received = completion(&mut right);
        assert_eq!(received.imm(), Some(0xfeed_beef));
        let (_, len) = right.qp.claim_recv_elements(received).unwrap();
        assert_eq!(len, 40 * scale);
        let mut got = there.to_vec(0..5 * scale).unwrap();
        got.extend(there.to_vec(1000..1000 + 35 * scale).unwrap());
        assert!(got == bytes);
    }
}

/// An inline WRITE of some lengths fits a slot, but not behind its address. It takes a piece of the ring's
/// buffer then, and waits while the messages there fill it.
#[test]
fn an_inline_write_overwrites_no_message_that_waits_to_be_received() {
    let (mut left, mut right) = pair();
    let (here, there) = (exposed(&left, 4096), exposed(&right, 4096));
    let mut send = |len: usize, fill: u8| {
        here.write(0, &vec![fill; len]).unwrap();
        let message = WorkRequest::send_with_imm(here.element(0..len).unwrap(), 0).inline();
        left.qp.post_one(message).unwrap();
    };
    right.add_slots(33);
    right.post_recv(33);
    for len in [576, 512] {
        send(len, 1);
        right.wait_one();
    }
    for fill in 2..33 {
        send(1024, fill);
    }
    here.write(0, &[99; 235]).unwrap();
    let write = WorkRequest::write(here.element(0..235).unwrap(), there.remote(0)).inline();
    let wr_id = left.qp.post_one(write.signaled()).unwrap();
    let received: Vec<_> = right.wait(31).iter().map(|done| done.first).collect();
    assert_eq!(received, (2..33).collect::<Vec<_>>());
    let done = completion(&mut left);
    assert_eq!(done.wr_id(), wr_id);
    finish(&mut left, done);
    assert_eq!(there.to_vec(0..235).unwrap(), [99; 235]);
}

/// What the transport tries before it relies on windows. A device whose windows fail is no error: its
/// long messages travel in fragments.
#[test]
fn windows_that_protect_memory_pass_the_trial() {
    open().try_windows(address()).unwrap();
}
