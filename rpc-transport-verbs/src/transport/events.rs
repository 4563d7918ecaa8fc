//! The asynchronous events of a lane's device: the thread that waits for them, what is said of each,
//! and what it ends.
//!
//! | event | ends | said as |
//! | --- | --- | --- |
//! | limit of the shared receive queue | nothing: the [reserve](crate::transport::reserve) is posted | warning |
//! | fatal, request or access error of a queue pair | its connection | error |
//! | error of the completion queue or the shared receive queue, failure of the device | all connections of the lane, and the lane | error |
//! | a port is down, or has another address or other partition keys | nothing by itself | warning |
//! | a port is up, or has another subnet manager | nothing | information |
//! | a queue pair is drained, has taken its last receive, was reached, has another path | nothing | debug |
//! | one that is not known here | nothing | warning |

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use tracing::Level;

use crate::transport::device_event::{Consequence, DeviceEvent, consequence_of};
use crate::transport::failure::LaneFailure;
use crate::transport::mailbox::{Mailbox, Notice};
use crate::transport::queue_pairs::QueuePairs;
use crate::transport::reserve::Stock;
use crate::verbs::{AsyncEvent, Context};

/// The thread, for as long as this lives.
pub(crate) struct EventThread {
    context: Context,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// What the thread would own, in a simulation, which has none.
    #[cfg(feature = "test-util")]
    stepped: Option<Watch>,
}

impl EventThread {
    /// Starts the thread. It arms the limit first of all, so the receives must have been posted.
    pub(crate) fn start(
        context: Context,
        queue_pairs: Arc<QueuePairs>,
        stock: Stock,
        mailbox: Mailbox,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut watch = Watch {
            device: queue_pairs.plan().limits.device.as_str().into(),
            context: context.clone(),
            queue_pairs,
            stock,
            stop: Arc::clone(&stop),
            mailbox,
        };
        #[cfg(feature = "test-util")]
        if crate::hooks::is_simulated() {
            watch.stock.arm();
            return Ok(Self {
                context,
                stop,
                thread: None,
                stepped: Some(watch),
            });
        }
        let thread = thread::Builder::new()
            .name("verbline-events".to_owned())
            .spawn(move || watch.run())?;
        Ok(Self {
            context,
            stop,
            thread: Some(thread),
            #[cfg(feature = "test-util")]
            stepped: None,
        })
    }

    /// What the thread would do now, for a simulation.
    #[cfg(feature = "test-util")]
    pub(crate) fn step(&mut self) {
        let Some(watch) = &mut self.stepped else {
            return;
        };
        let at_once = Some(std::time::Duration::ZERO);
        while let Ok(Some(event)) = watch.context.get_async_event(at_once) {
            for _ in 0..crate::hooks::times_heard() {
                watch.heed(Some(event));
            }
        }
        watch.heed(None);
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        // Release pairs with the thread's Acquire; the interruption is latched, so that it is
        // seen whether the thread is waiting or about to.
        self.stop.store(true, Ordering::Release);
        self.context.interrupt_async_events();
        // After a fork the thread is the parent's, and would be waited for in vain.
        if let Some(thread) = self.thread.take()
            && !self.context.is_forked()
            && thread.join().is_err()
        {
            tracing::error!("the async-event thread has panicked");
        }
    }
}

/// The thread's own.
struct Watch {
    device: Arc<str>,
    context: Context,
    queue_pairs: Arc<QueuePairs>,
    stock: Stock,
    stop: Arc<AtomicBool>,
    mailbox: Mailbox,
}

impl Watch {
    fn run(&mut self) {
        self.stock.arm();
        loop {
            let event = match self.context.get_async_event(None) {
                Ok(event) => event,
                Err(error) => {
                    // Without its events the reserve cannot be posted, and no failure is heard of.
                    self.fail_lane(LaneFailure::Events(error));
                    return;
                }
            };
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.heed(event);
        }
    }

    fn heed(&mut self, event: Option<AsyncEvent>) {
        self.stock.take_back();
        if let Some(event) = event {
            self.handle(event);
        }
        self.stock.arm_if_needed();
    }

    fn handle(&mut self, event: AsyncEvent) {
        let said = DeviceEvent {
            device: Arc::clone(&self.device),
            event,
        };
        match consequence_of(event) {
            Consequence::Refill => {
                // The reserve warns, and says how much it posted.
                tracing::debug!("{said}");
                self.stock.limit_reached();
            }
            Consequence::ConnectionFails(qp_num) => {
                tracing::error!("{said}");
                // Without a transport there is nobody to tell.
                let _ = self.mailbox.put(Notice::QueuePairFailed(qp_num, said));
            }
            Consequence::LastReceiveTaken(qp_num) => {
                tracing::debug!("{said}");
                let _ = self.mailbox.put(Notice::LastReceiveTaken(qp_num));
            }
            Consequence::LaneFails => self.fail_lane(LaneFailure::Device(said)),
            Consequence::AddressChanges => {
                match event {
                    AsyncEvent::PortActive { .. } | AsyncEvent::ClientReregister { .. } => {
                        tracing::info!("{said}");
                    }
                    _ => tracing::warn!("{said}"),
                }
                if let Err(error) = self.queue_pairs.choose_address_again(&self.context) {
                    tracing::warn!(%error, "{} does not say its address; new connections keep to the old one", self.device);
                }
            }
            Consequence::Said(Level::WARN) => tracing::warn!("{said}"),
            Consequence::Said(Level::INFO) => tracing::info!("{said}"),
            Consequence::Said(_) => tracing::debug!("{said}"),
        }
    }

    /// No more queue pairs from this moment on; the poller ends those that there are. Once, however
    /// often a device says it.
    fn fail_lane(&self, failure: LaneFailure) {
        let failure = Arc::new(failure);
        if self.queue_pairs.retire(&self.device, Arc::clone(&failure)) {
            let _ = self.mailbox.put(Notice::LaneFailed(failure));
        }
    }
}

#[cfg(test)]
mod tests {
    use rpc_core::limits::Intents;

    use super::*;
    use crate::device::setup::{self, Opened};
    use crate::device::sizing::Sizing;
    use crate::transport::VerbsTransport;
    use crate::transport::alarm::Alarm;
    use crate::transport::mailbox::{self, Inbox};
    use crate::transport::reserve::{self, ReserveCounts};
    use crate::verbs::{LinkLayer, QpNum, SrqNum};

    const QP: QpNum = QpNum(0x17);

    /// Every event, what follows, and what its sentence has to say: to whom it happened, what it
    /// means, what to do.
    fn cases() -> Vec<(AsyncEvent, Consequence, &'static [&'static str])> {
        use AsyncEvent::*;
        let said = Consequence::Said;
        let connection = Consequence::ConnectionFails(QP);
        let address = Consequence::AddressChanges;
        vec![
            (
                SrqLimitReached { srq: SrqNum(5) },
                Consequence::Refill,
                &["queue 5 of", "lags", "reserve is posted"],
            ),
            (
                QpFatal { qp_num: QP },
                connection,
                &["queue pair", "its connection ends", "Check"],
            ),
            (
                QpRequestError { qp_num: QP },
                connection,
                &[
                    "does not take",
                    "its connection ends",
                    "check that the peer",
                ],
            ),
            (
                QpAccessError { qp_num: QP },
                connection,
                &["rights", "its connection ends", "check who else"],
            ),
            (
                CompletionQueueError { cq: 3 },
                Consequence::LaneFails,
                &[
                    "queue 3 of",
                    "all of this poller's connections",
                    "open the device again",
                ],
            ),
            (
                SrqError { srq: SrqNum(5) },
                Consequence::LaneFails,
                &[
                    "queue 5 of",
                    "all of this poller's connections",
                    "open it again",
                ],
            ),
            (
                DeviceFatal,
                Consequence::LaneFails,
                &[
                    "all connections",
                    "needs a reset",
                    "the process has to open it again",
                ],
            ),
            (
                PortError { port: 2 },
                said(Level::WARN),
                &[
                    "port 2",
                    "may time out",
                    "survive if it is back",
                    "Check the cable",
                ],
            ),
            (
                DeviceSpeedChange { port: 2 },
                said(Level::WARN),
                &["port 2 of", "another speed", "cable"],
            ),
            (PortActive { port: 2 }, address, &["port 2", "is up"]),
            (
                LidChange { port: 2 },
                address,
                &["port 2", "will fail", "new ones"],
            ),
            (
                GidChange { port: 2 },
                address,
                &[
                    "port 2",
                    "whose address went away will fail",
                    "present table",
                ],
            ),
            (
                PkeyChange { port: 2 },
                said(Level::WARN),
                &["port 2", "partition", "will fail"],
            ),
            (
                SmChange { port: 2 },
                said(Level::INFO),
                &["port 2", "subnet manager", "connections stay"],
            ),
            (
                ClientReregister { port: 2 },
                address,
                &["port 2", "register again", "connections stay"],
            ),
            (SqDrained { qp_num: QP }, said(Level::DEBUG), &["drained"]),
            (
                QpLastWqeReached { qp_num: QP },
                Consequence::LastReceiveTaken(QP),
                &["no more receives"],
            ),
            (
                CommunicationEstablished { qp_num: QP },
                said(Level::DEBUG),
                &["before it could send"],
            ),
            (
                PathMigrated { qp_num: QP },
                said(Level::DEBUG),
                &["alternate path"],
            ),
            (
                PathMigrationError { qp_num: QP },
                said(Level::DEBUG),
                &["could not change"],
            ),
            (WorkQueueFatal, said(Level::WARN), &["none of Verbline's"]),
            (
                Unknown(77),
                said(Level::WARN),
                &["event 77", "nothing was done"],
            ),
        ]
    }

    #[test]
    fn every_event_has_its_consequence_and_its_sentence() {
        for (event, consequence, words) in cases() {
            assert_eq!(consequence_of(event), consequence, "{event:?}");
            let said = DeviceEvent::of("rxe0", event).to_string();
            assert!(said.contains("rxe0"), "{said}");
            for word in words {
                assert!(said.contains(word), "{said:?} does not say {word:?}");
            }
        }
    }

    /// What the thread owns, with the mailbox's other end, beside a transport whose own thread goes
    /// on with its own.
    fn watch() -> (VerbsTransport, Watch, Inbox, Arc<ReserveCounts>) {
        let device = Opened::soft_as("soft", LinkLayer::Memory);
        let (intents, sizing) = (Intents::default(), Sizing::default());
        let mut transport = setup::open_lanes(device, Vec::new(), &intents, &sizing).unwrap();
        let lane = transport.lane(0).unwrap();
        let context = lane.context.clone();
        let srq = context.alloc_pd().unwrap().create_srq(16, 1).unwrap();
        let counts = Arc::new(ReserveCounts::default());
        let (_, stock) = reserve::reserve(context.clone(), srq, 4, Vec::new(), Arc::clone(&counts));
        let (mailbox, inbox) = mailbox::mailbox(Alarm::new().unwrap());
        let watch = Watch {
            device: "rxe0".into(),
            context,
            queue_pairs: Arc::clone(&lane.queue_pairs),
            stock,
            stop: Arc::default(),
            mailbox,
        };
        (transport, watch, inbox, counts)
    }

    #[test]
    fn the_poller_is_told_of_what_ends_a_connection_or_the_lane_and_of_nothing_else() {
        let mut limits_reached = 0;
        for (event, consequence, words) in cases() {
            // Anew for each: a lane fails once.
            let (_transport, mut watch, inbox, counts) = watch();
            watch.handle(event);
            limits_reached += counts.events.load(Ordering::Relaxed);
            let said = match (consequence, inbox.take()) {
                (
                    Consequence::ConnectionFails(failed),
                    Some(Notice::QueuePairFailed(qp_num, said)),
                ) if failed == qp_num => said.to_string(),
                (Consequence::LaneFails, Some(Notice::LaneFailed(failure))) => failure.to_string(),
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
            assert!(said.contains("rxe0") && said.contains(words[0]), "{said}");
            watch.handle(event);
            let again = inbox.take();
            assert!(
                consequence != Consequence::LaneFails || again.is_none(),
                "a lane fails once: {again:?}"
            );
        }
        assert_eq!(limits_reached, 1);
    }
}
