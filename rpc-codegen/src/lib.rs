//! rpc-codegen
