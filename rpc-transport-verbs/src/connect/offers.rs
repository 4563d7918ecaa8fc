//! The devices that a client offers to a server: a queue pair on each lane, with one or two endpoints.

use std::sync::Arc;
use std::time::Duration;

use rpc_core::transport::limit_reached;
use verbline_verbs::log_limited;

use super::handshake::{Challenge, Endpoint, Welcome, choice};
use crate::transport::endpoint::{DeviceAddress, SOFT, TCP};
use crate::transport::queue_pairs::{Plaintext, QpInit, QueuePairError, QueuePairs};

/// A lane on which a client offers a queue pair.
pub(super) struct DialingLane {
    pub(super) number: u32,
    pub(super) queue_pairs: Arc<QueuePairs>,
    /// What travels over TCP is encrypted, and the server has proved who it is.
    pub(super) is_secured: bool,
}

impl DialingLane {
    /// Returns true if an endpoint of this kind may be offered. TCP is not unless it is secured, or the
    /// program or the environment has named or allowed it: whoever listens at the server's address would
    /// get the calls.
    fn may_offer(&self, kind: &str, which: Offers) -> bool {
        let is_wanted = match kind {
            SOFT => which.shared_memory,
            TCP => which.tcp,
            _ => true,
        };
        is_wanted && self.queue_pairs.plaintext().permits(kind, self.is_secured)
    }

    /// Returns why no device may be offered, if none may, and what to do about it.
    pub(super) fn why_nothing_is_offered(&self) -> &'static str {
        match (self.queue_pairs.plaintext(), self.is_secured) {
            (Plaintext::Nowhere, false) => {
                "this side's device has `require_encryption`, and no `with_client_tls`: add it"
            }
            (Plaintext::Nowhere, true) => {
                "this side's device has `require_encryption`, and only tcp encrypts its data, with TLS: name tcp, too"
            }
            _ => {
                "calls over tcp would not be encrypted: call `with_client_tls` on this side's device, or `allow_plaintext()`"
            }
        }
    }

    /// Returns true if any device is offered.
    pub(super) fn offers_any(&self, which: Offers) -> bool {
        let mut addresses = self.queue_pairs.device_addresses();
        addresses.any(|address| self.may_offer(address.kind, which))
    }

    /// Returns true if TCP would be offered, and these offers leave it out.
    pub(super) fn withholds_tcp(&self, which: Offers) -> bool {
        let with_tcp = Offers { tcp: true, ..which };
        let mut addresses = self.queue_pairs.device_addresses();
        !which.tcp && addresses.any(|a| a.kind == TCP && self.may_offer(TCP, with_tcp))
    }
}

/// Which devices are offered to a server. Those of RDMA always are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offers {
    /// Not if the two processes belong to different users of a host.
    pub(super) shared_memory: bool,
    /// Not to a server that was connected over another device.
    pub(super) tcp: bool,
}

/// A lane's queue pair, offered to the server.
pub(super) struct LaneOffer<'a> {
    pub(super) lane: &'a DialingLane,
    pub(super) qp_init: QpInit,
    which: Offers,
}

impl LaneOffer<'_> {
    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        let mut endpoints = self.lane.queue_pairs.endpoints(&self.qp_init);
        endpoints.retain(|endpoint| self.lane.may_offer(&endpoint.kind, self.which));
        endpoints
    }

    fn device_addresses(&self) -> impl Iterator<Item = DeviceAddress<'_>> {
        let addresses = self.lane.queue_pairs.device_addresses();
        addresses.filter(|address| self.lane.may_offer(address.kind, self.which))
    }
}

/// Returns the offer that the endpoint with this index belongs to, by its place in the list, and the
/// endpoint's address.
fn offered<'a>(offers: &'a [LaneOffer<'_>], index: usize) -> Option<(usize, DeviceAddress<'a>)> {
    let places = offers.iter().enumerate();
    let mut all = places.flat_map(|(place, offer)| {
        offer
            .device_addresses()
            .map(move |address| (place, address))
    });
    all.nth(index)
}

/// Creates one queue pair on each lane, in the order of the lanes, and leaves out lanes that fail.
/// Returns the first lane's error if all fail.
pub(super) fn offers(
    lanes: &[DialingLane],
    which: Offers,
) -> Result<Vec<LaneOffer<'_>>, QueuePairError> {
    let mut offers = Vec::new();
    let mut first_error = None;
    for lane in lanes {
        match lane.queue_pairs.create() {
            Ok(qp_init) => offers.push(LaneOffer {
                lane,
                qp_init,
                which,
            }),
            Err(error) => {
                let device = lane.queue_pairs.device_address().device;
                log_limited!(warn, for device, device, %error, "a device cannot create a queue pair and is not offered to the server");
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if offers.is_empty() => Err(error),
        _ => Ok(offers),
    }
}

/// Proves to the server that the GID of an offered endpoint is this process's. Takes about this
/// time at most.
pub(super) fn prove(
    offers: &[LaneOffer<'_>],
    challenge: &Challenge,
    time: Duration,
) -> Result<(), ProofError> {
    let index = challenge.client_endpoint;
    let soft = offered(offers, index).filter(|(_, address)| address.kind == SOFT);
    let (place, _) = soft.ok_or(ProofError::Endpoint { index })?;
    let LaneOffer { lane, qp_init, .. } = &offers[place];
    let claimed = lane
        .queue_pairs
        .claim(qp_init, challenge.gid, challenge.nonce, time);
    claimed.map_err(|source| {
        let remedy = limit_reached(&source).or_else(|| instead_of_shared_memory(offers));
        let remedy = remedy.map(|remedy| format!(". {remedy}"));
        ProofError::Device {
            source,
            remedy: remedy.unwrap_or_default(),
        }
    })
}

/// Returns what helps if shared memory cannot be had, unless TCP is offered too.
fn instead_of_shared_memory(offers: &[LaneOffer<'_>]) -> Option<&'static str> {
    let mut offered = offers.iter().flat_map(LaneOffer::device_addresses);
    if offered.any(|address| address.kind == TCP) {
        return None;
    }
    let withholds_tcp = |offer: &LaneOffer<'_>| offer.lane.withholds_tcp(offer.which);
    Some(match offers.iter().any(withholds_tcp) {
        true => TCP_IS_WITHHELD,
        false if offers.iter().any(|offer| offer.lane.is_secured) => NAME_TCP,
        false => ALLOW_PLAINTEXT,
    })
}

/// What holds for a channel that may use TCP, and does not offer it.
pub(super) const TCP_IS_WITHHELD: &str = "This channel was connected over another device before, so it does not \
     offer TCP, over which whoever listens at the address would get its calls: if the server has moved to where \
     only TCP leads, connect a new channel";

const NAME_TCP: &str = "Without shared memory, calls can travel over TCP, which is encrypted here: name tcp on this \
     side's device, as in VERBLINE_DEVICE=soft,tcp";

const ALLOW_PLAINTEXT: &str = "Without shared memory, `allow_plaintext()` on this side's device offers TCP, \
     which is not encrypted; so does VERBLINE_DEVICE=soft,tcp, if the device has no TLS";

/// Why this side cannot prove its GID.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProofError {
    #[error(
        "the server demands a proof for number {index} of the offered devices, which is not a software device"
    )]
    Endpoint { index: usize },
    #[error(
        "it cannot be proven to the server that this process has the GID that it offers: {source}{remedy}"
    )]
    Device {
        source: QueuePairError,
        remedy: String,
    },
}

/// Returns the offer that the server at `server` chose, or a message that says why its choice is invalid.
pub(super) fn chosen<'a>(
    mut offers: Vec<LaneOffer<'a>>,
    server: &str,
    welcome: &Welcome,
    version: u32,
) -> Result<LaneOffer<'a>, String> {
    let list = choice::list(offers.iter().flat_map(LaneOffer::device_addresses));
    let remote = &welcome.endpoint;
    let index = welcome.client_endpoint;
    let chosen = offered(&offers, index).filter(|(_, address)| address.kind == remote.kind);
    let Some((place, address)) = chosen else {
        return Err(format!(
            "it chose its device {} of kind {} for number {index} of the offered devices, which are {list}",
            remote.device, remote.kind
        ));
    };
    log_limited!(
        info,
        for server,
        server,
        device = address.device,
        kind = remote.kind,
        remote_device = remote.device,
        offered = list,
        rejected = %welcome.rejected,
        version,
        "connected over the first of the server's devices that both sides have"
    );
    Ok(offers.swap_remove(place))
}
