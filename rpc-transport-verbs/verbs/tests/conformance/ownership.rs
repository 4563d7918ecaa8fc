//! Dependencies between objects: destroying an object that is in use fails with an error, and
//! dropped objects are destroyed in an order that the device accepts.

use verbline_verbs::{
    Access, CompletionStatus as C, MemoryWindow, ProtectionDomain, QpState, WindowType, WorkRequest,
};

use super::case::{Section, case};
use super::device::Device;
use super::end::{End, Options, create, everything, own_port, pair, rc, to};
use super::verbs_side;

pub(crate) const CASES: Section = Section {
    topic: "destruction",
    cases: &[
        case!(
            an_unused_domain_is_destroyed,
            "specification: destruction; pd_test: AllocPd"
        ),
        case!(
            a_domain_with_a_region_is_in_use,
            "specification: destruction; pd_test: MrRefCount"
        ),
        case!(
            a_domain_with_a_window_is_in_use,
            "specification: destruction; pd_test: MwRefCount; mw_test: DeallocPdWithOutstandingMw"
        ),
        case!(
            a_domain_with_an_address_handle_is_in_use,
            "specification: destruction; pd_test: AhRefCount"
        ),
        case!(
            a_domain_with_a_queue_pair_is_in_use,
            "specification: destruction; pd_test: QpRefCount; qp_test: DeallocPdWithOutstandingQp"
        ),
        case!(
            a_domain_with_a_shared_receive_queue_is_in_use,
            "specification: destruction; pd_test: SrqRefCount"
        ),
        case!(
            a_completion_queue_with_a_queue_pair_is_in_use,
            "specification: destruction; qp_test: QueueRefs"
        ),
        case!(
            a_shared_receive_queue_with_a_queue_pair_is_in_use,
            "specification: destruction"
        ),
        case!(
            a_region_that_a_request_in_flight_names_is_in_use,
            "specification: destruction"
        ),
        case!(
            a_region_is_free_when_its_requests_have_completed,
            "specification: destruction"
        ),
        case!(
            a_channel_outlives_its_last_handle_while_a_queue_has_it,
            "specification: destruction; comp_channel_test: CreateDestroy; cq_test: WithChannel"
        ),
        case!(
            a_queue_pair_can_be_destroyed_in_each_state,
            "specification: destruction; qp_test: DestroyFromReset, DestroyFromInit"
        ),
        case!(
            a_queue_pair_that_is_destroyed_completes_nothing_more,
            "specification: destruction"
        ),
        case!(
            a_completion_of_a_destroyed_queue_pair_can_be_polled_and_names_nothing,
            "specification: destruction"
        ),
        case!(
            objects_may_be_dropped_in_any_order,
            "specification: destruction"
        ),
        case!(
            objects_outlive_the_handle_of_their_context,
            "specification: destruction"
        ),
    ],
};

fn domain() -> (End, ProtectionDomain) {
    let end = End::new(rc());
    let domain = end.context.alloc_pd().unwrap();
    (end, domain)
}

/// Checks that the domain is in use exactly as long as the object exists.
fn keeps_its_domain<T>(make: impl FnOnce(&End, &ProtectionDomain) -> T) {
    let (end, domain) = domain();
    let object = make(&end, &domain);
    let busy = domain.dealloc().unwrap_err();
    assert!(busy.to_string().contains("dealloc_pd"), "{busy}");
    drop(object);
    busy.object.dealloc().unwrap();
}

fn an_unused_domain_is_destroyed(_: &Device) {
    let (end, domain) = domain();
    domain.dealloc().unwrap();
    for _ in 0..100 {
        end.context.alloc_pd().unwrap().dealloc().unwrap();
    }
}

fn a_domain_with_a_region_is_in_use(_: &Device) {
    keeps_its_domain(|_, domain| domain.register(4096, Access::LOCAL_WRITE).unwrap());
    keeps_its_domain(|_, domain| domain.expose(4096, everything()).unwrap());
    keeps_its_domain(|_, domain| {
        let region = domain.register(4096, Access::LOCAL_WRITE).unwrap();
        region.into_slots(1024).unwrap().remove(2)
    });
}

fn a_domain_with_a_window_is_in_use(_: &Device) {
    for window_type in [WindowType::Type1, WindowType::Type2] {
        keeps_its_domain(|_, domain| domain.alloc_mw(window_type).unwrap());
    }
}

fn a_domain_with_an_address_handle_is_in_use(_: &Device) {
    keeps_its_domain(|_, domain| domain.create_ah(own_port()).unwrap());
}

fn a_domain_with_a_queue_pair_is_in_use(_: &Device) {
    keeps_its_domain(|end, domain| create(domain, &end.cq, None, rc()));
}

fn a_domain_with_a_shared_receive_queue_is_in_use(_: &Device) {
    keeps_its_domain(|_, domain| domain.create_srq(16, 1).unwrap());
}

fn a_completion_queue_with_a_queue_pair_is_in_use(_: &Device) {
    let end = End::new(rc());
    let cq = end.context.create_cq(16).unwrap();
    let qp = create(&end.domain, &cq, None, rc());
    let busy = cq.destroy().unwrap_err();
    drop(qp);
    busy.object.destroy().unwrap();
}

fn a_shared_receive_queue_with_a_queue_pair_is_in_use(_: &Device) {
    let end = End::new(rc());
    let srq = end.domain.create_srq(16, 4).unwrap();
    let qp = create(&end.domain, &end.cq, Some(&srq), rc());
    let busy = srq.destroy().unwrap_err();
    drop(qp);
    busy.object.destroy().unwrap();
}

fn a_region_that_a_request_in_flight_names_is_in_use(_: &Device) {
    let (mut left, mut right) = pair(rc());
    let region = right.expose(4096, everything(), 0);
    right.recv_into(vec![region.element(0..64).unwrap()]);
    let region = region.deregister().unwrap_err().object;
    left.succeed(WorkRequest::send(left.at(0..64)));
    right.expect_recv(C::Success);
    region.deregister().unwrap();
}

fn a_region_is_free_when_its_requests_have_completed(_: &Device) {
    let (mut left, right) = pair(rc());
    let region = left.expose(4096, everything(), 0);
    left.post(WorkRequest::write(
        region.element(0..64).unwrap(),
        right.remote(0),
    ));
    left.post(WorkRequest::read(
        region.element(64..128).unwrap(),
        right.remote(0),
    ));
    let region = region.deregister().unwrap_err().object;
    // The completion of this request covers the two before it.
    left.succeed(WorkRequest::write(left.at(0..8), right.remote(0)));
    region.deregister().unwrap();
}

fn a_channel_outlives_its_last_handle_while_a_queue_has_it(_: &Device) {
    let end = End::new(rc());
    for _ in 0..50 {
        let channel = end.context.create_comp_channel().unwrap();
        let cq = end.context.create_cq_with_channel(16, &channel).unwrap();
        drop(channel);
        cq.arm(false).unwrap();
        cq.destroy().unwrap();
    }
}

fn a_queue_pair_can_be_destroyed_in_each_state(_: &Device) {
    let states = [
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Error,
    ];
    End::new(rc()).qp.destroy(&mut drop);
    for state in states {
        let mut end = End::new(rc());
        let own = end.qp.qp_num();
        super::end::init(&mut end.qp, rc());
        if !matches!(state, QpState::Init | QpState::Error) {
            super::end::rtr(&mut end.qp, own, rc());
        }
        if matches!(state, QpState::Rts | QpState::Sqd) {
            super::end::rts(&mut end.qp, rc());
        }
        if matches!(state, QpState::Sqd | QpState::Error) {
            end.qp.modify(&to(state)).unwrap();
        }
        assert_eq!(end.state(), state);
        if state != QpState::Error {
            end.recv(0..64);
        }
        let End { qp, mut cq, .. } = end;
        qp.destroy(&mut drop);
        assert_eq!(cq.poll(&mut Vec::new(), 8).unwrap(), 0, "{state}");
    }
}

fn a_queue_pair_that_is_destroyed_completes_nothing_more(_: &Device) {
    let (mut left, right) = pair(rc());
    left.recv(0..64);
    // The peer has no receive for it, so it stays in flight.
    left.post(WorkRequest::send(left.at(0..8)).signaled());
    let End { qp, mut cq, .. } = left;
    qp.destroy(&mut drop);
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(cq.poll(&mut Vec::new(), 8).unwrap(), 0);
    assert_eq!(right.state(), QpState::Rts);
}

/// Some devices remove the completion from the queue; others leave it there.
fn a_completion_of_a_destroyed_queue_pair_can_be_polled_and_names_nothing(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    left.post(WorkRequest::send(left.at(0..8)).signaled());
    right.expect_recv(C::Success);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut next = left.another();
    let End { qp, mut cq, .. } = left;
    let old = qp.qp_num();
    qp.destroy(&mut drop);
    let mut completions = Vec::new();
    cq.poll(&mut completions, 8).unwrap();
    assert_ne!(next.qp_num(), old);
    for completion in completions {
        assert_eq!(completion.qp_num(), old);
        let error = next.complete_send(completion, &mut drop).unwrap_err();
        assert_eq!(error.qp_num, old);
    }
}

fn objects_may_be_dropped_in_any_order(_: &Device) {
    // Each object is once the first to be dropped, and once the last.
    for first in 0..8 {
        let (mut left, right) = pair(Options { srq_wr: 16, ..rc() });
        left.recv(0..64);
        let window: MemoryWindow = left.domain.alloc_mw(WindowType::Type2).unwrap();
        let way = left.way();
        let End {
            qp,
            srq,
            cq,
            channel,
            memory,
            domain,
            context,
            ..
        } = left;
        let mut objects: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(qp),
            Box::new(srq),
            Box::new(cq),
            Box::new(channel),
            Box::new((memory, window)),
            Box::new(way),
            Box::new(domain),
            Box::new(context),
        ];
        objects.rotate_left(first);
        objects.into_iter().for_each(drop);
        drop(right);
    }
}

fn objects_outlive_the_handle_of_their_context(_: &Device) {
    let context = verbs_side::open();
    let domain = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(16).unwrap();
    drop(context);
    let memory = domain.expose(4096, everything()).unwrap();
    let mut qp = create(&domain, &cq, None, rc());
    let own = qp.qp_num();
    super::end::init(&mut qp, rc());
    super::end::rtr(&mut qp, own, rc());
    super::end::rts(&mut qp, rc());
    let write = WorkRequest::write(memory.element(0..8).unwrap(), memory.remote(8));
    qp.post_one(write.signaled()).unwrap();
    let mut completions = Vec::new();
    let start = std::time::Instant::now();
    while cq.poll(&mut completions, 1).unwrap() == 0 {
        assert!(start.elapsed() < verbs_side::HANG);
    }
    assert!(completions[0].is_success());
}
