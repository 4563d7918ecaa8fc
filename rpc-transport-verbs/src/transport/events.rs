//! The asynchronous events of a lane's device: the thread that waits for them, and how each event
//! is handled and logged.
//!
//! | event | closes | log level |
//! | --- | --- | --- |
//! | limit of the shared receive queue | nothing: the [reserve](crate::transport::reserve) is posted | warning |
//! | fatal, request or access error of a queue pair | its connection | warning, with a limit |
//! | error of the completion queue or the shared receive queue, failure of the device | all connections of the lane, and the lane | error |
//! | a port is down, or its addresses, partition keys or speed have changed | nothing by itself | warning |
//! | a port is up, has another subnet manager, or has to be registered again | nothing | information |
//! | a queue pair has drained its sends, taken its last receive, received its first message or migrated its path | nothing | debug |
//! | a failed work queue that is not Verbline's, or an event that this version does not know | nothing | warning |
//!
//! A port that is down closes nothing: calls in flight may time out, and connections survive if the
//! port is up again before their retries are used up. After a port's GIDs or LID have changed, new
//! connections use its current address. There are none while it has lost what the fabric's settings
//! need, such as a partition. A request to register again also causes the address to be
//! read again.
//!
//! A queue pair in the error state that has taken its last receive can be destroyed at once, rather
//! than after 20 ms.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use verbline_verbs::for_transport::start_thread;
use verbline_verbs::{AsyncEvent, Context};

use crate::transport::device_event::{Consequence, DeviceEvent, consequence_of};
use crate::transport::endpoint::{SOFT, TCP};
use crate::transport::failure::LaneFailure;
use crate::transport::notices::{Notice, NoticeSender};
use crate::transport::path::SourceError;
use crate::transport::queue_pairs::QueuePairs;
use crate::transport::reserve::ReservePoster;
use crate::transport::stall_watch::LOOK_PERIOD;

/// The async-event thread, which is stopped when this value is dropped.
pub(crate) struct EventThread {
    context: Context,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The thread's state in a simulation, which runs no thread.
    #[cfg(feature = "test-util")]
    stepped: Option<EventHandler>,
}

impl EventThread {
    /// Starts the thread. The receives must have been posted before, because the thread arms the
    /// limit first.
    pub(crate) fn start(
        context: Context,
        queue_pairs: Arc<QueuePairs>,
        reserve_poster: ReservePoster,
        notice_sender: NoticeSender,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let look_period = look_period(&queue_pairs);
        let mut handler = EventHandler {
            device: queue_pairs.plan().limits.device.as_str().into(),
            context: context.clone(),
            queue_pairs,
            reserve_poster,
            stop: Arc::clone(&stop),
            notice_sender,
            look_period,
        };
        #[cfg(feature = "test-util")]
        if verbline_verbs::for_transport::hooks::is_simulated() {
            handler.reserve_poster.arm();
            return Ok(Self {
                context,
                stop,
                thread: None,
                stepped: Some(handler),
            });
        }
        let thread = start_thread("verbline-events", move || handler.run())?;
        Ok(Self {
            context,
            stop,
            thread: Some(thread),
            #[cfg(feature = "test-util")]
            stepped: None,
        })
    }

    /// Does the work that the thread would do now. For simulations.
    #[cfg(feature = "test-util")]
    pub(crate) fn step(&mut self) {
        let Some(handler) = &mut self.stepped else {
            return;
        };
        let at_once = Some(Duration::ZERO);
        while let Ok(Some(event)) = handler.context.get_async_event(at_once) {
            for _ in 0..verbline_verbs::for_transport::hooks::deliveries() {
                handler.handle_event(Some(event));
            }
        }
        handler.handle_event(None);
    }
}

/// Returns the time between two looks of the poller at its sends. `None` for the software device, which
/// has its own limits for its sends.
fn look_period(queue_pairs: &QueuePairs) -> Option<Duration> {
    let mut addresses = queue_pairs.device_addresses();
    let is_rdma_device = addresses.all(|address| address.kind != SOFT && address.kind != TCP);
    is_rdma_device.then_some(LOOK_PERIOD)
}

impl Drop for EventThread {
    fn drop(&mut self) {
        // After a fork, the thread exists only in the parent process, which must not be interrupted.
        if self.context.is_forked() {
            return std::mem::forget(self.thread.take());
        }
        // Release pairs with the Acquire in the thread. The interruption is latched, so the thread
        // sees it whether it is waiting already or about to wait.
        self.stop.store(true, Ordering::Release);
        self.context.interrupt_async_events();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the async-event thread has panicked");
        }
    }
}

/// The state of the thread.
struct EventHandler {
    device: Arc<str>,
    context: Context,
    queue_pairs: Arc<QueuePairs>,
    reserve_poster: ReservePoster,
    stop: Arc<AtomicBool>,
    notice_sender: NoticeSender,
    /// How often the poller is to look at its sends, if it is: see
    /// [`stall_watch`](crate::transport::stall_watch).
    look_period: Option<Duration>,
}

impl EventHandler {
    fn run(&mut self) {
        self.reserve_poster.arm();
        let mut looked_at = Instant::now();
        loop {
            let left = |period: Duration| period.saturating_sub(looked_at.elapsed());
            let event = match self.context.get_async_event(self.look_period.map(left)) {
                Ok(event) => event,
                Err(error) => {
                    // Without events the reserve cannot be posted, and failures go unnoticed.
                    self.fail_lane(LaneFailure::Events(error));
                    return;
                }
            };
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if self.look_period.is_some_and(|it| looked_at.elapsed() >= it) {
                looked_at = Instant::now();
                self.notice_sender.request_look_at_sends();
            }
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: Option<AsyncEvent>) {
        self.reserve_poster.collect_returned();
        if let Some(event) = event {
            self.apply(event);
        }
        self.reserve_poster.arm_if_needed();
    }

    fn apply(&mut self, event: AsyncEvent) {
        let report = DeviceEvent {
            device: Arc::clone(&self.device),
            event,
        };
        let consequence = consequence_of(event);
        // The failure of a lane is logged once, however often the device reports it.
        if consequence != Consequence::LaneFails {
            report.log(consequence);
        }
        match consequence {
            Consequence::Refill => self.reserve_poster.limit_reached(),
            Consequence::ConnectionFails(qp_num) => {
                // An error means that the transport has been dropped.
                let _ = self
                    .notice_sender
                    .send(Notice::QueuePairFailed(qp_num, report));
            }
            Consequence::LastReceiveTaken(qp_num) => {
                let _ = self.notice_sender.send(Notice::LastReceiveTaken(qp_num));
            }
            Consequence::LaneFails => self.fail_lane(LaneFailure::Device(report)),
            Consequence::AddressChanges(_) => {
                match self.queue_pairs.choose_address_again(&self.context) {
                    Ok(()) => {}
                    Err(error @ SourceError::Address(_)) => tracing::warn!(
                        %error, "the address of {} cannot be read; new connections use the old one", self.device
                    ),
                    Err(error @ SourceError::Setting(_)) => tracing::warn!(
                        %error, "{} has changed, and has no new connections until its settings are possible again", self.device
                    ),
                }
            }
            Consequence::OnlyLogged(_) => {}
        }
    }

    /// Stops the creation of queue pairs and notifies the poller to close the existing connections.
    /// Has an effect only once, however often the device reports the failure.
    fn fail_lane(&self, failure: LaneFailure) {
        let failure = Arc::new(failure);
        if self.queue_pairs.retire(&self.device, Arc::clone(&failure)) {
            let _ = self.notice_sender.send(Notice::LaneFailed(failure));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rpc_core::Intents;
    use tracing::Level;
    use verbline_verbs::{Explanation, LinkLayer, QpNum, SrqNum};

    use super::*;
    use crate::device::opened::Opened;
    use crate::device::setup;
    use crate::device::sizing::Sizing;
    use crate::transport::VerbsTransport;
    use crate::transport::endpoint::ROCE;
    use crate::transport::notices::{self, NoticeReceiver};
    use crate::transport::pending::Pending;
    use crate::transport::reserve::{self, ReserveCounters};
    use crate::transport::wakeup::Wakeup;

    const QP: QpNum = QpNum(0x17);

    /// Every event, with its consequence and with the object that its message must name.
    fn cases() -> [(AsyncEvent, Consequence, &'static str); 22] {
        use AsyncEvent::*;
        let logged = Consequence::OnlyLogged;
        let address = Consequence::AddressChanges;
        let connection = Consequence::ConnectionFails(QP);
        let lane = Consequence::LaneFails;
        let last_receive = Consequence::LastReceiveTaken(QP);
        let (srq, cq, port, qp_num) = (SrqNum(5), 3, 2, QP);
        let (srq_name, cq_name) = ("shared receive queue 5 of", "completion queue 3 of");
        let (qp_name, port_name) = ("queue pair 0x000017 of", "port 2 of");
        [
            (SrqLimitReached { srq }, Consequence::Refill, srq_name),
            (QpFatal { qp_num }, connection, qp_name),
            (QpRequestError { qp_num }, connection, qp_name),
            (QpAccessError { qp_num }, connection, qp_name),
            (CompletionQueueError { cq }, lane, cq_name),
            (SrqError { srq }, lane, srq_name),
            (DeviceFatal, lane, "the device"),
            (QpLastWqeReached { qp_num }, last_receive, qp_name),
            (LidChange { port }, address(Level::WARN), port_name),
            (GidChange { port }, address(Level::WARN), port_name),
            (PortActive { port }, address(Level::INFO), port_name),
            (ClientReregister { port }, address(Level::INFO), port_name),
            (PortError { port }, logged(Level::WARN), port_name),
            (DeviceSpeedChange { port }, logged(Level::WARN), port_name),
            (PkeyChange { port }, address(Level::WARN), port_name),
            (WorkQueueFatal, logged(Level::WARN), "a work queue of"),
            (Unknown(77), logged(Level::WARN), "the device"),
            (SmChange { port }, logged(Level::INFO), port_name),
            (SqDrained { qp_num }, logged(Level::DEBUG), qp_name),
            (
                CommunicationEstablished { qp_num },
                logged(Level::DEBUG),
                qp_name,
            ),
            (PathMigrated { qp_num }, logged(Level::DEBUG), qp_name),
            (PathMigrationError { qp_num }, logged(Level::DEBUG), qp_name),
        ]
    }

    #[test]
    fn every_event_has_its_consequence_and_its_message() {
        for (event, consequence, object) in cases() {
            assert_eq!(consequence_of(event), consequence, "{event:?}");
            let report = DeviceEvent::new("rxe0", event).to_string();
            let name = match event {
                AsyncEvent::Unknown(_) => "event 77",
                _ => event.verbs_name(),
            };
            let Explanation {
                meaning, look_at, ..
            } = event.explanation();
            let beginning = format!("{object} rxe0: {name}. {meaning} {consequence}");
            let rest = report.strip_prefix(&beginning);
            let look_at = format!(". Look at: {look_at}");
            let needs_a_person = matches!(consequence.level(), Level::ERROR | Level::WARN);
            let wanted = if needs_a_person {
                look_at.strip_suffix('.')
            } else {
                Some("")
            };
            assert_eq!(rest, wanted, "{report}");
        }
    }

    /// Returns the state of an async-event thread and the receiver of its notices, on the device of
    /// a transport that has its own async-event thread.
    fn handler() -> (
        VerbsTransport,
        EventHandler,
        NoticeReceiver,
        Arc<ReserveCounters>,
    ) {
        let device = Opened::soft_as("soft", LinkLayer::Memory);
        let (intents, sizing) = (Intents::default(), Sizing::default());
        let mut transport = setup::open_lanes(device, Vec::new(), &intents, &sizing).unwrap();
        let lane = transport.lane(0).unwrap();
        let context = lane.context.clone();
        let srq = context.alloc_pd().unwrap().create_srq(16, 1).unwrap();
        let counters = Arc::new(ReserveCounters::default());
        let (_, reserve_poster) =
            reserve::reserve(context.clone(), srq, 4, Vec::new(), Arc::clone(&counters));
        let (notice_sender, notice_receiver) =
            notices::notice_queue(Wakeup::new().unwrap(), Arc::default());
        let handler = EventHandler {
            device: "rxe0".into(),
            context,
            queue_pairs: Arc::clone(&lane.queue_pairs),
            reserve_poster,
            stop: Arc::default(),
            notice_sender,
            look_period: None,
        };
        (transport, handler, notice_receiver, counters)
    }

    #[test]
    fn the_poller_of_an_rdma_device_is_asked_to_look_at_its_sends_again_and_again() {
        for (kind, layer, period) in [
            (SOFT, LinkLayer::Memory, None),
            (ROCE, LinkLayer::Ethernet, Some(LOOK_PERIOD)),
        ] {
            let device = Opened::soft_as(kind, layer);
            let (intents, sizing) = (Intents::default(), Sizing::default());
            let mut transport = setup::open_lanes(device, Vec::new(), &intents, &sizing).unwrap();
            let lane = transport.lane(0).unwrap();
            assert_eq!(look_period(&lane.queue_pairs), period, "{kind}");
        }
        let (_transport, mut handler, ..) = handler();
        let (pending, stop) = (Arc::new(Pending::default()), Arc::clone(&handler.stop));
        (handler.notice_sender, _) =
            notices::notice_queue(Wakeup::new().unwrap(), Arc::clone(&pending));
        handler.look_period = Some(Duration::from_millis(1));
        let thread = thread::spawn(move || handler.run());
        for _ in 0..3 {
            let start = Instant::now();
            while !pending.has(Pending::SENDS) {
                assert!(start.elapsed() < Duration::from_secs(20), "nobody asks");
                thread::yield_now();
            }
            pending.clear(Pending::SENDS);
        }
        stop.store(true, Ordering::Release);
        thread.join().unwrap();
    }

    #[test]
    fn the_poller_is_told_of_what_ends_a_connection_or_the_lane_and_of_nothing_else() {
        let mut limits_reached = 0;
        for (event, consequence, _) in cases() {
            // A new one for each event, because a lane fails only once.
            let (_transport, mut handler, notice_receiver, counters) = handler();
            handler.apply(event);
            limits_reached += counters.events.load(Ordering::Relaxed);
            let report = match (consequence, notice_receiver.take()) {
                (
                    Consequence::ConnectionFails(failed),
                    Some(Notice::QueuePairFailed(qp_num, report)),
                ) if failed == qp_num => report,
                (Consequence::LaneFails, Some(Notice::LaneFailed(failure))) => match &*failure {
                    LaneFailure::Device(report) => report.clone(),
                    other => panic!("{event:?}: {other:?}"),
                },
                (Consequence::LastReceiveTaken(taken), Some(Notice::LastReceiveTaken(qp_num)))
                    if taken == qp_num =>
                {
                    continue;
                }
                (
                    Consequence::LaneFails
                    | Consequence::ConnectionFails(_)
                    | Consequence::LastReceiveTaken(_),
                    other,
                ) => panic!("{event:?}: {other:?}"),
                (_, None) => continue,
                (_, Some(other)) => panic!("{event:?}: {other:?}"),
            };
            assert_eq!((&*report.device, report.event), ("rxe0", event));
            handler.apply(event);
            let again = notice_receiver.take();
            assert!(
                consequence != Consequence::LaneFails || again.is_none(),
                "a lane fails once: {again:?}"
            );
        }
        assert_eq!(limits_reached, 1);
    }
}
