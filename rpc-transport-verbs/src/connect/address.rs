//! Addresses as users write them: `host:port`.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Checks that this is `host:port`, without looking the host up.
///
/// # Errors
///
/// Returns an error of the kind `InvalidInput`, which says how to write the address.
pub(crate) fn check(address: &str) -> io::Result<()> {
    let wrong = |remedy: String| Err(io::Error::new(io::ErrorKind::InvalidInput, remedy));
    if let Some((scheme, rest)) = address.split_once("://") {
        // What follows is often a path.
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        return wrong(format!("write it without {scheme}://, as '{authority}'"));
    }
    match address.rsplit_once(':') {
        // The last colon is one within an IPv6 address.
        Some((_, end)) if !end.ends_with(']') => match end.parse::<u16>() {
            Ok(_) => Ok(()),
            Err(_) => wrong(format!(
                "'{end}' is not a port, which is a number up to 65535"
            )),
        },
        _ => wrong(format!("add the port, as in '{address}:50051'")),
    }
}

/// Returns the socket addresses of `host:port`.
///
/// # Errors
///
/// Returns an error of the kind `InvalidInput` if this is no host and port, or that of the resolver.
pub(crate) fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    check(address)?;
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
    }

    #[test]
    fn an_address_without_a_good_port_is_refused_with_what_to_write() {
        for (address, wanted) in [
            ("127.0.0.1", "add the port, as in '127.0.0.1:50051'"),
            ("[::1]", "add the port, as in '[::1]:50051'"),
            ("", "add the port, as in ':50051'"),
            (
                "localhost:http",
                "'http' is not a port, which is a number up to 65535",
            ),
            (
                "127.0.0.1:99999",
                "'99999' is not a port, which is a number up to 65535",
            ),
        ] {
            let error = check(address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), wanted);
        }
        check("[::1]:0").unwrap();
        check("db-1.example:50051").unwrap();
    }
}
