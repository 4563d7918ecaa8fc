//! Network cards: who made the card under test, and what others have published about cards of its
//! kind. None was tried here, so a difference from the specification is listed and fails nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use verbline_verbs::{Context, QueuePairConfig, WindowType};

use super::SECTIONS;

/// The kind of a card, by the driver of its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    Mlx5,
    Mlx4,
    Irdma,
    BnxtRe,
    Hns,
    Efa,
}

impl Provider {
    pub(crate) const ALL: [Self; 6] = [
        Self::Mlx5,
        Self::Mlx4,
        Self::Irdma,
        Self::BnxtRe,
        Self::Hns,
        Self::Efa,
    ];

    /// Returns its name in rdma-core.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mlx5 => "mlx5",
            Self::Mlx4 => "mlx4",
            Self::Irdma => "irdma",
            Self::BnxtRe => "bnxt_re",
            Self::Hns => "hns",
            Self::Efa => "efa",
        }
    }

    /// Returns the kind of a device that is listed in this directory (`/sys/class/infiniband`), if
    /// anything about it is known.
    pub(crate) fn of_listed(directory: &Path, device: &str) -> Option<Self> {
        let driver = std::fs::read_link(directory.join(device).join("device/driver")).ok()?;
        match driver.file_name()?.to_str()? {
            "mlx5_core" => Some(Self::Mlx5),
            "mlx4_core" => Some(Self::Mlx4),
            // Its cards belong to a driver of Ethernet.
            "ice" | "i40e" | "idpf" | "irdma" => Some(Self::Irdma),
            "bnxt_en" | "bnxt_re" => Some(Self::BnxtRe),
            "hns3" | "hns_roce_hw_v2" => Some(Self::Hns),
            "efa" => Some(Self::Efa),
            _ => None,
        }
    }
}

/// What others have published about cards of one kind.
pub(crate) struct Known {
    provider: Provider,
    pub(crate) key: &'static str,
    what: &'static str,
    source: &'static str,
    /// The functions of the cases that then differ. Empty if none does, or if the suite finds out by
    /// itself that the device lacks something.
    cases: &'static [&'static str],
}

/// Returns the difference that explains why this case fails on cards of this kind.
pub(crate) fn known(provider: Option<Provider>, function: &str) -> Option<&'static Known> {
    KNOWN
        .iter()
        .find(|known| Some(known.provider) == provider && known.cases.contains(&function))
}

/// Returns a sentence for each case that is named here and does not exist.
pub(crate) fn problems() -> Vec<String> {
    let cases = SECTIONS.iter().flat_map(|section| section.cases);
    let cases: BTreeSet<_> = cases.map(|case| case.function).collect();
    let named = KNOWN
        .iter()
        .flat_map(|known| known.cases.iter().map(|case| (known.key, case)));
    named
        .filter(|(_, case)| !cases.contains(**case))
        .map(|(key, case)| format!("{key} is about the case {case}, which does not exist"))
        .collect()
}

/// What the device under test cannot create. Its attributes may say otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lacks {
    pub(crate) shared_receive_queues: bool,
    pub(crate) reliable_connections: bool,
    pub(crate) windows: bool,
}

impl Lacks {
    /// Tries each of them.
    pub(crate) fn find(context: &Context) -> Self {
        let domain = context.alloc_pd().unwrap();
        let cq = context.create_cq(16).unwrap();
        Self {
            shared_receive_queues: domain.create_srq(16, 1).is_err(),
            reliable_connections: domain.create_qp(QueuePairConfig::new(&cq, &cq)).is_err(),
            windows: domain.alloc_mw(WindowType::Type2).is_err(),
        }
    }

    /// Returns the reason why a case is not supported that failed with this message.
    pub(crate) fn explain(self, message: &str) -> Option<&'static str> {
        [
            (self.shared_receive_queues, "create_srq", "no-shared-queues"),
            (
                self.reliable_connections,
                "create_qp",
                "no-reliable-connections",
            ),
            (self.windows, "alloc_mw", "no-windows"),
        ]
        .into_iter()
        .find(|(lacks, call, _)| *lacks && message.contains(call))
        .map(|(_, _, key)| key)
    }
}

/// Returns the section of the report about network cards.
pub(crate) fn section() -> String {
    let mut out = ABOUT.to_owned();
    for known in KNOWN {
        let cases: Vec<_> = known
            .cases
            .iter()
            .map(|case| case.replace('_', "-"))
            .collect();
        writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            known.provider.name(),
            known.key,
            known.what,
            known.source,
            cases.join(", ")
        )
        .unwrap();
    }
    out
}

const ABOUT: &str = "
## Network cards

No card was tried. `make test-rdma DEVICE=mlx5_0` runs the suite on one. A difference from the specification then is
**differs**: it is listed at the end with its message, and fails nothing; please send us that report. What others have
published is below: where a case that it names differs, the outcome is a deviation with that reason. What a card cannot
create is *not supported*: `no-windows`, `no-shared-queues`, `no-reliable-connections`. google is
`internal/introspection_*.h` of google/rdma-unit-test (1f368ab), rdma-core is 691953d8d; both were read, not run.

| card | reason | what is known | source | cases |
| --- | --- | --- | --- | --- |
";

macro_rules! known {
    ($($provider:ident: $key:literal, $what:literal, $source:literal, [$($case:literal),*];)*) => {
        /// What is known, in the order of the report.
        pub(crate) const KNOWN: &[Known] = &[$(Known {
            provider: Provider::$provider,
            key: $key,
            what: $what,
            source: $source,
            cases: &[$($case),*],
        }),*];
    };
}

known! {
    Mlx5: "mlx5-window-atomics",
        "Atomics through memory windows are not supported.",
        "google, SupportsRcRemoteMwAtomic",
        ["a_window_is_for_queue_pairs_of_its_domain_alone", "atomics_go_through_windows",
         "an_atomic_through_a_window_that_begins_anywhere_has_to_be_aligned_in_memory"];
    Mlx5: "mlx5-buffers-messages",
        "Messages are buffered until their receiver is ready; while the peer is in ERR, no request completes.",
        "google, BuffersMessagesWhenNotReadyToReceive; …RemoteQpInErrorState of Send, Read, Write and atomics",
        ["a_peer_that_is_not_ready_is_silent_until_the_retries_are_used_up",
         "a_second_binding_fails_its_owner_and_the_reads_of_another_thread_get_no_answer"];
    Mlx5: "mlx5-unsignaled-bindings",
        "An unsignaled binding that fails does not complete.",
        "google, UnsignaledBindError of both types",
        ["an_unsignaled_binding_that_fails_completes"];
    Mlx5: "mlx5-zero-based",
        "Regions whose addresses begin at zero seem not to work.",
        "google, RdmaAccessTest.ZeroBasedAccess",
        ["the_addresses_of_a_zero_based_region_begin_at_zero"];
    Mlx5: "mlx5-layer-checks",
        "The card does not check the range of a binding, the length of an atomic's result, or whether a queue to be armed has a channel. The layer does, so the cases pass.",
        "google, BindExceedFront, BindExceedRear, FetchAddInvalidSize, CompareSwapInvalidSize, RequestNotificationOnCqWithoutCompChannel",
        [];
    Mlx4: "mlx4-empty-reads",
        "A READ without bytes ends with LOC_QP_OP_ERR.",
        "google, ReadZeroByte, ReadZeroByteOutsideMr, ReadZeroByteInvalidRKey, BufferMwTest",
        ["a_read_without_bytes_succeeds", "a_read_without_bytes_is_not_checked",
         "nothing_at_all_can_be_read_and_written_through_a_window"];
    Mlx4: "mlx4-buffers-messages",
        "Messages are buffered until their receiver is ready.",
        "google, BuffersMessagesWhenNotReadyToReceive",
        ["a_peer_that_is_not_ready_is_silent_until_the_retries_are_used_up"];
    Mlx4: "mlx4-full-queue",
        "A queue pair pauses while its completion queue is full.",
        "google, FullCqIdlesQp",
        ["a_completion_queue_that_overruns_is_dead_and_takes_its_queue_pairs_along",
         "queue_pairs_that_share_an_overrun_queue_fail_together",
         "sends_that_overrun_their_completion_queue_are_told",
         "unreliable_messages_that_overrun_a_completion_queue_fail_its_queue_pairs"];
    Mlx4: "mlx4-windows",
        "The device may say wrongly that it has windows of type 2B. Limits of address handles, windows and queue pairs are not exact.",
        "google, the constructor masks the flag; DeviceLimitTest",
        [];
    Irdma: "irdma-reset",
        "A queue pair that was reset cannot be used again.",
        "google, ReuseQp",
        ["reset_forgets_everything_without_a_completion_and_the_way_up_is_free"];
    Irdma: "irdma-datagrams",
        "The traffic class is not passed on; messages between a connection and a datagram queue pair, and datagrams that are too long, behave otherwise.",
        "google, SendTrafficClass, RcSendToUd, UdSendToRc, SendWithTooSmallRecv",
        ["a_datagram_header_says_where_it_came_from",
         "a_message_of_a_reliable_connection_to_a_datagram_queue_pair_gets_no_answer",
         "a_datagram_to_a_connection_is_dropped",
         "a_datagram_longer_than_the_receive_is_dropped_and_takes_none"];
    Irdma: "irdma-atomics",
        "The result of an atomic goes into one element only.",
        "google, FetchAddSplitSgl",
        ["the_result_may_go_into_two_elements"];
    Irdma: "irdma-invalidate-anywhere",
        "A window can be invalidated through queue pairs that it was not bound through.",
        "google, CrossQpInvalidate",
        ["a_local_invalidate_through_another_queue_pair_fails"];
    Irdma: "irdma-srq-domain",
        "A queue pair takes receives of a shared queue of another domain.",
        "google, QpSrqPdMismatchWriteWithImm",
        ["a_shared_queue_of_another_domain_is_refused_or_checked_by_its_own"];
    Irdma: "irdma-zero-based",
        "Addresses that begin at zero do not work.",
        "google, ZeroBasedAccess, ReadZeroBased",
        ["the_addresses_of_a_zero_based_region_begin_at_zero",
         "the_addresses_of_a_zero_based_window_begin_at_zero"];
    Irdma: "irdma-refused-requests",
        "A refused READ or atomic may end with RETRY_EXC_ERR, and there are no regions without bytes. Which cases differ is not known.",
        "google, GeneratesRetryExcOnConnTimeout",
        [];
    Irdma: "irdma-shared-queues",
        "There are no shared receive queues before the third generation.",
        "rdma-core, providers/irdma/umain.c: create_srq is newer than version 63; the kernel's irdma_query_device sets no max_srq",
        [];
    BnxtRe: "bnxt-re-windows",
        "The library has no memory windows, though the kernel says so. Messages of up to 96 bytes inline.",
        "rdma-core, providers/bnxt_re/main.c and bnxt_re-abi.h",
        [];
    Hns: "hns-windows",
        "The library has no memory windows since version 63.",
        "rdma-core, providers/hns/hns_roce_u.c",
        [];
    Efa: "efa-datagrams-alone",
        "Datagrams and a connection of its own kind (SRD) alone: no reliable connections, no shared receive queues, no windows, no atomics.",
        "rdma-core, providers/efa/verbs.c and efa.c",
        [];
}
