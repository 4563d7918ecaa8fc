//! Addresses as users write them: `host:port`.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Returns the socket addresses of `host:port`.
///
/// # Errors
///
/// Returns an error of the kind `InvalidInput` if this is no host and port, or that of the resolver.
pub(crate) fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Some((scheme, rest)) = address.split_once("://") {
        // What follows is often a path.
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        let error = format!("write it without {scheme}://, as '{authority}'");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    address.to_socket_addrs().map(Iterator::collect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_refused_with_the_address_to_write_instead() {
        for (url, wanted) in [
            ("http://127.0.0.1:50051", "'127.0.0.1:50051'"),
            ("https://db.example:7/x?y", "'db.example:7'"),
            ("grpc://[::1]:7", "'[::1]:7'"),
        ] {
            let error = resolve(url).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().ends_with(wanted), "{error}");
        }
        let resolved = resolve("127.0.0.1:50051").unwrap();
        assert_eq!(resolved, ["127.0.0.1:50051".parse().unwrap()]);
        assert!(resolve("127.0.0.1").is_err());
    }
}
