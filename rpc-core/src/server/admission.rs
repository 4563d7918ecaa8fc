//! [`ServerAdmission`]: admits clients while there are receives for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prost::Message;

use crate::catch_panic::catch_panic;
use crate::limits::Limits;
use crate::method::MethodSpec;
use crate::peer::{Peer, TrustForwarded};
use crate::protocol::frame::CallId;
use crate::protocol::session::{
    Agreed, ClientSession, ServerSession, clamp_in_flight, stated_message_len,
};
use crate::protocol::shares::Shares;
use crate::stats::Counter;
use crate::status::Status;
use crate::transport::{Admission, Admitted, ConnectionQuota, Refusal};

/// The program's decision about a client, by what is known of it.
pub(crate) type AdmitPeer = dyn Fn(&Peer) -> Result<(), Status> + Send + Sync;

/// Accepts clients as long as a poller has receives for them, on the poller with the fewest
/// connections.
pub(crate) struct ServerAdmission {
    methods: Vec<(u16, &'static MethodSpec)>,
    max_in_flight: u32,
    window: u32,
    stream_window: u32,
    max_message_len: u32,
    max_streams: u32,
    max_connections: usize,
    /// Limit over all pollers.
    max_total: Option<usize>,
    connections: Vec<Arc<AtomicUsize>>,
    trust_forwarded: TrustForwarded,
    admit: Option<Arc<AdmitPeer>>,
    /// Number of clients rejected. Written only by the listener's thread.
    pub(super) refused: Arc<Counter>,
}

impl ServerAdmission {
    pub(crate) fn new(
        limits: &Limits,
        methods: Vec<(u16, &'static MethodSpec)>,
        pollers: usize,
    ) -> Self {
        let shares = Shares::from_limits(limits);
        Self {
            methods,
            max_in_flight: clamp_in_flight(limits.max_in_flight),
            window: shares.initial_window,
            stream_window: limits.stream_window(),
            max_message_len: stated_message_len(limits),
            max_streams: limits.max_streams,
            max_connections: shares.connections as usize,
            max_total: None,
            trust_forwarded: TrustForwarded::default(),
            admit: None,
            connections: (0..pollers).map(|_| Arc::default()).collect(),
            refused: Arc::default(),
        }
    }

    pub(crate) fn limit_connections(&mut self, total: Option<usize>) {
        self.max_total = total;
    }

    pub(crate) fn trust_forwarded(&mut self, trust: TrustForwarded) {
        self.trust_forwarded = trust;
    }

    pub(crate) fn admit_by(&mut self, admit: Option<Arc<AdmitPeer>>) {
        self.admit = admit;
    }

    fn ask(&self, peer: &Peer) -> Result<(), Refusal> {
        let Some(admits) = &self.admit else {
            return Ok(());
        };
        let answer = catch_panic(|| admits(peer)).unwrap_or_else(|panic| {
            log_limited!(warn, "the function of `admit` panicked: {panic}");
            Err(Status::internal("its decision about this client failed"))
        });
        answer.map_err(|status| Refusal {
            reason: match status.message() {
                "" => format!("the server does not admit this client: {}", status.code()),
                message => format!("the server does not admit this client: {message}"),
            },
        })
    }
}

impl Admission for ServerAdmission {
    fn permits(&self, peer: &Peer) -> Result<(), Refusal> {
        self.ask(peer).inspect_err(|_| {
            self.refused.add(1);
        })
    }

    fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
        self.try_admit(session).inspect_err(|_| {
            self.refused.add(1);
        })
    }

    fn has_room(&self) -> bool {
        let counts = || {
            let counts = self.connections.iter();
            counts.map(|count| count.load(Ordering::Acquire))
        };
        self.max_total
            .is_none_or(|limit| counts().sum::<usize>() < limit)
            && counts().any(|count| count < self.max_connections)
    }
}

impl ServerAdmission {
    fn try_admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
        let (client, version) = ClientSession::accept(session)?;
        let counts = self.connections.iter();
        let total: usize = counts.map(|count| count.load(Ordering::Acquire)).sum();
        if let Some(limit) = self.max_total
            && total >= limit
        {
            return Err(Refusal {
                reason: format!(
                    "the server has reached its limit of {limit} connections: raise `max_connections` on \
                     the server"
                ),
            });
        }
        let least_loaded = (0..)
            .zip(&self.connections)
            .min_by_key(|(_, count)| count.load(Ordering::Acquire));
        let Some((poller, count)) = least_loaded else {
            return Err(Refusal {
                reason: "the server has no pollers".to_owned(),
            });
        };
        // Only the listener's thread admits, so the count does not grow between this check and the
        // increment.
        if count.load(Ordering::Acquire) >= self.max_connections {
            return Err(Refusal {
                reason: format!(
                    "the server's pollers have reached their limit of {} connections each: raise \
                     `connections` on the server",
                    self.max_connections
                ),
            });
        }
        let quota = ConnectionQuota::acquire(count);
        let max_in_flight = client.max_in_flight.min(self.max_in_flight);
        let agreed = Agreed {
            max_in_flight,
            max_streams: self.max_streams.clamp(1, CallId::MAX_INDEX),
            initial_credits: self.window.min(max_in_flight),
        };
        let offer = ServerSession::new(
            version,
            &agreed,
            self.stream_window,
            self.max_message_len,
            &self.methods,
        );
        Ok(Admitted {
            trust_forwarded: self.trust_forwarded.clone(),
            ..Admitted::new(poller, session.to_vec(), offer.encode_to_vec(), quota)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(pollers: usize) -> ServerAdmission {
        let limits = Limits {
            receives_posted: 256,
            max_connections: 8,
            max_in_flight: 8,
            ..Limits::default()
        };
        ServerAdmission::new(&limits, Vec::new(), pollers)
    }

    #[test]
    fn a_client_of_another_frame_layout_is_refused_with_both_versions_and_counted() {
        let admission = admission(1);
        let mut session = ClientSession::new(8, 1, 1);
        (session.version, session.oldest_version) = (5, 5);
        let Refusal { reason } = admission.admit(&session.encode_to_vec()).unwrap_err();
        let names_both = reason.contains("client speaks version 5")
            && reason.contains("server speaks version 4");
        assert!(names_both, "{reason}");
        assert_eq!(admission.refused.get(), 1);
    }

    #[test]
    fn connections_beyond_the_hard_limit_are_refused_until_one_goes_whichever_poller_has_it() {
        let mut admission = admission(2);
        admission.limit_connections(Some(3));
        let session = ClientSession::new(8, 1, 1).encode_to_vec();
        let mut admitted: Vec<_> = (0..3)
            .map(|_| admission.admit(&session).expect("there is capacity"))
            .collect();
        let pollers: Vec<_> = admitted.iter().map(|client| client.poller).collect();
        assert_eq!(pollers, [0, 1, 0]);
        assert!(!admission.has_room());
        let refusal = admission.admit(&session).unwrap_err();
        assert!(
            refusal.reason.contains("limit of 3 connections"),
            "{refusal}"
        );
        assert!(refusal.reason.contains("`max_connections`"), "{refusal}");
        admitted.remove(1);
        assert!(admission.has_room());
        assert_eq!(admission.admit(&session).unwrap().poller, 1);
    }
}
