// Each row allows two files more than there are now. `make figures` prints both numbers.

/// Folders in which files call each other in a circle, with the most files that the largest may have.
pub const CIRCLES: &[Ceiling] = &[
    at_most(4, "rpc-transport-verbs", "connect::control_thread"),
    at_most(4, "verbline-verbs", "provider::rdma"),
    at_most(9, "rpc-transport-verbs", "transport"),
];

/// Types whose methods stand in many files, with the most files.
pub const TYPES: &[Ceiling] = &[
    at_most(7, "verbline-verbs", "provider::rdma::memory::ProtectionDomain"),
    at_most(7, "verbline-verbs", "provider::rdma::queue_pair::QueuePair"),
    at_most(7, "rpc-transport-verbs", "transport::VerbsTransport"),
    at_most(11, "rpc-transport-verbs", "transport::lane::Lane"),
    at_most(7, "verbline-verbs", "context::Context"),
    at_most(10, "verbline-verbs", "protection_domain::ProtectionDomain"),
    at_most(8, "verbline-verbs", "queue_pair::QueuePair"),
];
