//! rpc-transport-verbs
