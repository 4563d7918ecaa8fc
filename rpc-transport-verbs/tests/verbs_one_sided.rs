//! One-sided operations, and everything that is more than a plain message, on a reliable connection: that the
//! bytes are right. What devices refuse, and how, is the conformance suite's.

mod verbs_side;

use std::time::{Duration, Instant};

use rpc_transport_verbs::verbs::{
    Access, Binding, CompletionOpcode, Element, Elements, ExposedMemory, QueuePairConfig,
    ReceiveRequest, RtrAttributes, RtsAttributes, WindowType, WorkCompletion, WorkRequest,
};
use verbs_side::{HANG, Plan, SLOT_LEN, Side, address, rtr, rts};

fn all_remote() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// Two sides that permit each other everything, with four elements to a request.
fn pair() -> (Side, Side) {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    for side in [&mut left, &mut right] {
        side.qp = side
            .domain
            .create_qp(QueuePairConfig {
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

/// The next completion of a side, which has to be a success.
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

/// Posts a request that is to succeed, and waits until it has.
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

#[test]
fn atomics_return_what_was_there() {
    let (mut left, right) = pair();
    let (here, there) = (exposed(&left, 64), exposed(&right, 64));
    let cell = there.atomic(8).unwrap();
    cell.store(40, std::sync::atomic::Ordering::SeqCst);
    let remote = there.remote(8);
    let add = WorkRequest::fetch_and_add(here.element(0..8).unwrap(), remote, 2);
    let done = carry_out(&mut left, add);
    assert_eq!(done.opcode(), Some(CompletionOpcode::FetchAndAdd));
    finish(&mut left, done);
    assert_eq!(
        here.atomic(0)
            .unwrap()
            .load(std::sync::atomic::Ordering::SeqCst),
        40
    );
    for (expected, is_there) in [(42, 42), (42, 7)] {
        let swap =
            WorkRequest::compare_and_swap(here.element(16..24).unwrap(), remote, expected, 7);
        let done = carry_out(&mut left, swap);
        finish(&mut left, done);
        let was = here
            .atomic(16)
            .unwrap()
            .load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(was, is_there);
    }
    assert_eq!(cell.load(std::sync::atomic::Ordering::SeqCst), 7);
}

#[test]
fn a_write_with_immediate_takes_one_receive_and_leaves_its_bytes_alone() {
    let (mut left, mut right) = pair();
    let there = exposed(&right, 64);
    right.post_recv(1);
    let mut slot = left.slots.pop().unwrap();
    slot[..5].copy_from_slice(b"hello");
    let bytes = Element::new(slot, 5).unwrap();
    let write = WorkRequest::write_with_imm(bytes, there.remote(3), 9);
    let done = carry_out(&mut left, write);
    finish(&mut left, done);
    let received = completion(&mut right);
    assert_eq!(
        (received.opcode(), received.imm(), received.byte_len()),
        (Some(CompletionOpcode::ReceiveRdmaWithImm), Some(9), 5)
    );
    let (slot, len) = right.qp.claim_recv(received).unwrap();
    assert_eq!((len, &slot[..5]), (0, &[0; 5][..]));
    assert_eq!(there.to_vec(3..8).unwrap(), b"hello");
}

#[test]
fn windows_open_and_close_what_their_region_permits() {
    let (mut left, mut right) = pair();
    let there = exposed(&right, SLOT_LEN);
    let here = exposed(&left, 64);
    here.write(0, b"through the window").unwrap();
    let window = right.domain.alloc_mw(WindowType::Type2).unwrap();
    let binding = Binding::new(&there, 100..200, Access::REMOTE_WRITE);
    let key = window.next_key();
    let bind = WorkRequest::bind_window(&window, binding.clone(), key);
    let done = carry_out(&mut right, bind);
    assert_eq!(done.opcode(), Some(CompletionOpcode::BindWindow));
    finish(&mut right, done);
    let write = WorkRequest::write(here.element(0..18).unwrap(), binding.remote(key));
    let done = carry_out(&mut left, write);
    finish(&mut left, done);
    assert_eq!(there.to_vec(100..118).unwrap(), b"through the window");
    // The peer gives the key back with a message.
    right.post_recv(1);
    let message = WorkRequest::send_with_invalidate(Elements::NONE, key);
    let done = carry_out(&mut left, message);
    finish(&mut left, done);
    let received = completion(&mut right);
    assert_eq!(received.invalidated(), Some(key));
    right.qp.claim_recv(received).unwrap();
    // Free again, it can be bound to something else, and be closed by this side.
    let key = window.next_key();
    let binding = Binding::new(&there, 0..8, Access::REMOTE_READ);
    for request in [
        WorkRequest::bind_window(&window, binding, key),
        WorkRequest::local_invalidate(key),
    ] {
        let done = carry_out(&mut right, request);
        finish(&mut right, done);
    }
    let first = right.domain.alloc_mw(WindowType::Type1).unwrap();
    let binding = Binding::new(&there, 8..16, all_remote());
    let key = right.qp.bind_mw(&first, binding.clone(), true).unwrap();
    let done = completion(&mut right);
    finish(&mut right, done);
    let read = WorkRequest::read(here.element(0..8).unwrap(), binding.remote(key));
    let done = carry_out(&mut left, read);
    finish(&mut left, done);
}

#[test]
fn requests_of_all_kinds_end_in_the_order_in_which_they_were_posted() {
    let (mut left, mut right) = pair();
    let (here, there) = (exposed(&left, 1 << 18), exposed(&right, 1 << 18));
    for round in 0..50_u32 {
        right.post_recv(4);
        let long = here.element(0..100_000).unwrap();
        let list = vec![
            WorkRequest::send(left.slots.pop().unwrap()),
            WorkRequest::read(long, there.remote(0)),
            WorkRequest::write(here.element(0..8).unwrap(), there.remote(0)).inline(),
            WorkRequest::fetch_and_add(here.element(8..16).unwrap(), there.remote(1024), 1),
            WorkRequest::send_with_imm(here.element(0..300).unwrap(), round).fenced(),
            WorkRequest::read(here.element(16..24).unwrap(), there.remote(8)),
            WorkRequest::write_with_imm(Elements::NONE, there.remote(0), round),
            WorkRequest::send(left.slots.pop().unwrap()),
        ];
        let mut list: Vec<_> = list.into_iter().map(WorkRequest::signaled).collect();
        let first = left.qp.next_wr_id(0);
        let slots = &mut left.slots;
        left.qp
            .post(&mut list, &mut |slot| slots.push(slot))
            .unwrap();
        let mut opcodes = Vec::new();
        for number in 0..8 {
            let done = completion(&mut left);
            if number == 0 {
                assert_eq!(done.wr_id(), first);
            }
            opcodes.extend(done.opcode());
            finish(&mut left, done);
        }
        use CompletionOpcode as O;
        let expected = [
            O::Send,
            O::RdmaRead,
            O::RdmaWrite,
            O::FetchAndAdd,
            O::Send,
            O::RdmaRead,
            O::RdmaWrite,
            O::Send,
        ];
        assert_eq!(opcodes, expected);
        for imm in [None, Some(round), Some(round), None] {
            let received = completion(&mut right);
            assert_eq!(received.imm(), imm);
            let (slot, _) = right.qp.claim_recv(received).unwrap();
            right.slots.push(slot);
        }
    }
    let count = there
        .atomic(1024)
        .unwrap()
        .load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(count, 50);
}

#[test]
fn reads_do_not_wait_for_a_target_to_poll() {
    let (mut left, right) = pair();
    let (here, there) = (exposed(&left, 64), exposed(&right, 64));
    // Longer than the device takes to see that nobody polls.
    std::thread::sleep(Duration::from_millis(30));
    for number in 0..100 {
        there.write(0, &[number; 8]).unwrap();
        let read = WorkRequest::read(here.element(0..8).unwrap(), there.remote(0));
        let done = carry_out(&mut left, read);
        finish(&mut left, done);
        assert_eq!(here.to_vec(0..8).unwrap(), [number; 8]);
    }
}
