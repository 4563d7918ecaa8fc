#![allow(clippy::all, missing_docs, unused)]
use rpc_transport_verbs::verbs::*;
use std::hint::black_box;
struct Side {
    context: Context,
    cq: CompletionQueue,
    qp: QueuePair,
    srq: SharedReceiveQueue,
    free: Vec<Slot>,
}
impl Side {
    fn open() -> Self {
        let context = Context::open("soft").unwrap();
        let domain = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let srq = domain.create_srq(64, 1).unwrap();
        let mut c = QueuePairConfig::new(&cq, &cq);
        c.max_inline_data = 200;
        c.max_send_wr = 128;
        c.srq = Some(&srq);
        let qp = domain.create_qp(c).unwrap();
        let free = domain
            .register(64 * 256, Access::LOCAL_WRITE)
            .unwrap()
            .into_slots(256)
            .unwrap();
        Self {
            context,
            cq,
            qp,
            srq,
            free,
        }
    }
}
#[inline(never)]
fn exchange_empty(s: &mut Side, n: u64) {
    for _ in 0..n {
        assert!(black_box(s.cq.poll_one()).unwrap().is_none());
    }
}
#[inline(never)]
fn exchange_post(s: &mut Side, m: &[u8], signaled: bool) {
    s.qp.post_inline(m, signaled).unwrap();
}
#[inline(never)]
fn exchange_bell(s: &mut Side) {
    s.qp.ring_doorbell().unwrap();
}
#[inline(never)]
fn exchange_receive(s: &mut Side) -> Option<WorkCompletion> {
    s.cq.poll_one().unwrap()
}
#[inline(never)]
fn baseline_none() {}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n: u64 = a[1].parse().unwrap();
    let mut x = Side::open();
    let mut y = Side::open();
    let address = x.context.choose_address(AddressWish::default()).unwrap();
    let psn = Psn::new(1);
    for (l, r) in [(0, 1), (1, 0)] {
        let num = if r == 1 { y.qp.qp_num() } else { x.qp.qp_num() };
        let s = if l == 0 { &mut x } else { &mut y };
        let remote = RemoteEndpoint {
            gid: address.gid,
            lid: address.lid,
            qp_num: num,
            psn,
        };
        s.qp.to_init(address.port, Access::NONE).unwrap();
        s.qp.to_rtr(RtrAttributes {
            sgid_index: address.gid_index,
            ..RtrAttributes::new(remote)
        })
        .unwrap();
    }
    for s in [&mut x, &mut y] {
        s.qp.to_rts(RtsAttributes::new(psn)).unwrap();
        s.srq.post_recv(&mut s.free, 32).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    let m = [7u8; 88];
    exchange_empty(&mut y, n);
    for i in 0..n {
        let signaled = i % 32 == 31;
        exchange_post(&mut x, &m, signaled);
        exchange_bell(&mut x);
        let c = loop {
            if let Some(c) = exchange_receive(&mut y) {
                break c;
            }
        };
        let (slot, len) = y.srq.claim(c).unwrap();
        assert_eq!(len, 88);
        y.free.push(slot);
        y.srq.post_recv(&mut y.free, 1).unwrap();
        while let Some(c) = x.cq.poll_one().unwrap() {
            x.qp.complete_send(c, &mut |_| ()).unwrap();
        }
    }
}
