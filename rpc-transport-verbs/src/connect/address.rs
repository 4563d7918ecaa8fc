//! Addresses as users write them: `host:port`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::catch_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use verbline_verbs::for_transport::start_thread;

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

/// Returns the host of `host:port`: a name, or an IP address without brackets and without the interface of
/// this machine.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = inside.unwrap_or(host);
    host.split_once('%').map_or(host, |(address, _)| address)
}

/// Returns the socket addresses of `host:port`, however long the system's name service takes.
///
/// # Errors
///
/// Returns an error of the kind `InvalidInput` if this is no host and port, or that of the resolver.
pub(crate) fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    check(address)?;
    match literal(address)? {
        Some(address) => Ok(vec![address]),
        None => look_up(address),
    }
}

/// Like [`resolve`], but returns after `time`.
///
/// # Errors
///
/// As for [`resolve`]; of the kind `TimedOut` after that time.
pub(crate) fn resolve_within(address: &str, time: Duration) -> io::Result<Vec<SocketAddr>> {
    check(address)?;
    match literal(address)? {
        Some(address) => Ok(vec![address]),
        None => LookUp::of(address, look_up)?.wait(time),
    }
}

/// Returns the socket address if the host is one, and not a name.
fn literal(address: &str) -> io::Result<Option<SocketAddr>> {
    let Ok(parsed) = address.parse() else {
        return Ok(None);
    };
    match parsed {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{} is an address of each network that this machine is on: add the interface, as in \
                     '[{}%eth0]:{}'",
                    v6.ip(),
                    v6.ip(),
                    v6.port()
                ),
            ))
        }
        _ => Ok(Some(parsed)),
    }
}

/// Asks the system's name service, which may block for longer than any time limit.
fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    // With brackets, the standard library takes the host of `[fe80::1%eth0]:50051` as a name.
    let bracketed = address.strip_prefix('[').and_then(|rest| {
        let (host, port) = rest.split_once("]:")?;
        Some((host, port.parse::<u16>().ok()?))
    });
    let found = match bracketed {
        Some(host_and_port) => host_and_port.to_socket_addrs(),
        None => address.to_socket_addrs(),
    };
    found.map(Iterator::collect).map_err(|error| {
        // The name service cannot be asked without a file, and does not say so.
        let lack = File::open("/dev/null").err();
        let lack = lack.filter(is_lack_of_files);
        let interface = bracketed.and_then(|(host, _)| host.split_once('%'));
        match (lack, interface) {
            (Some(lack), _) => lack,
            (None, Some((_, interface))) => io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("this machine has no network interface '{interface}'"),
            ),
            (None, None) => error,
        }
    })
}

fn is_lack_of_files(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

/// A question to the name service that all threads of the process wait for which have the same one. So
/// a name service that does not answer holds one thread for each name.
#[derive(Default)]
struct LookUp {
    found: Mutex<Option<io::Result<Vec<SocketAddr>>>>,
    is_done: Condvar,
}

impl LookUp {
    /// Returns the question for this address, and asks it by `look_up` unless another thread has.
    fn of(
        address: &str,
        look_up: fn(&str) -> io::Result<Vec<SocketAddr>>,
    ) -> io::Result<Arc<Self>> {
        static OPEN: Mutex<BTreeMap<String, Arc<LookUp>>> = Mutex::new(BTreeMap::new());
        // Nothing panics under the lock between two changes of the map.
        let lock = || OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = lock();
        if let Some(asked) = open.get(address) {
            return Ok(Arc::clone(asked));
        }
        let (asked, address) = (Arc::new(Self::default()), address.to_owned());
        let (answered, name) = (Arc::clone(&asked), address.clone());
        start_thread("verbline-resolve", move || {
            let panicked = |_| Err(io::Error::other("the name service has panicked"));
            let found = catch_unwind(|| look_up(&name)).unwrap_or_else(panicked);
            // A later question is a new one.
            lock().remove(&name);
            answered.answer(found);
        })?;
        open.insert(address, Arc::clone(&asked));
        Ok(asked)
    }

    fn lock(&self) -> MutexGuard<'_, Option<io::Result<Vec<SocketAddr>>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, found: io::Result<Vec<SocketAddr>>) {
        *self.lock() = Some(found);
        self.is_done.notify_all();
    }

    fn wait(&self, time: Duration) -> io::Result<Vec<SocketAddr>> {
        let waited = self
            .is_done
            .wait_timeout_while(self.lock(), time, |found| found.is_none());
        let (found, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*found {
            None => Err(io::ErrorKind::TimedOut.into()),
            Some(Ok(addresses)) => Ok(addresses.clone()),
            // Errors of the system cannot be cloned.
            Some(Err(error)) => Err(match error.raw_os_error() {
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => io::Error::new(error.kind(), error.to_string()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_has_no_brackets_and_no_interface() {
        for (address, host) in [
            ("db.example:50051", "db.example"),
            ("192.0.2.1:1", "192.0.2.1"),
            ("[2001:db8::1]:1", "2001:db8::1"),
            ("[fe80::1%eth0]:1", "fe80::1"),
        ] {
            assert_eq!(host_of(address), host);
        }
    }

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
    fn an_interface_belongs_to_a_link_local_address_by_name_or_number() {
        let ports = |address: &str| {
            let found = resolve_within(address, Duration::MAX).unwrap();
            assert_eq!(found, resolve(address).unwrap());
            found
        };
        let [SocketAddr::V6(by_name)] = ports("[fe80::1%lo]:7")[..] else {
            panic!("it is one address");
        };
        assert!(by_name.scope_id() > 0);
        assert_eq!(ports("[fe80::1%1]:7"), ["[fe80::1%1]:7".parse().unwrap()]);
        for (address, wanted) in [
            (
                "[fe80::1%nothing]:7",
                "this machine has no network interface 'nothing'",
            ),
            ("[fe80::1]:7", "add the interface, as in '[fe80::1%eth0]:7'"),
        ] {
            for error in [resolve(address), resolve_within(address, Duration::MAX)] {
                let error = error.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
                assert!(error.to_string().ends_with(wanted), "{error}");
            }
        }
    }

    /// The name service does not answer within the time, and answers later.
    #[test]
    fn a_question_is_asked_once_and_its_wait_ends_in_time() {
        let question = LookUp::default();
        let late = question.wait(Duration::from_millis(10)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let address = "192.0.2.1:7".parse().unwrap();
        std::thread::scope(|scope| {
            let waiting = [(); 3].map(|()| scope.spawn(|| question.wait(Duration::MAX)));
            question.answer(Ok(vec![address]));
            for waiting in waiting {
                assert_eq!(waiting.join().unwrap().unwrap(), [address]);
            }
        });
        let localhost = resolve_within("localhost:7", Duration::MAX).unwrap();
        assert!(
            localhost
                .iter()
                .all(|found| found.port() == 7 && found.ip().is_loopback())
        );
    }

    #[test]
    fn a_question_whose_thread_panics_has_an_answer_and_is_asked_again() {
        let ask = |look_up| {
            LookUp::of("panics:7", look_up)
                .unwrap()
                .wait(Duration::from_secs(20))
        };
        let error = ask(|_| panic!("the name service panics")).unwrap_err();
        assert_eq!(error.to_string(), "the name service has panicked");
        let address = "192.0.2.1:7".parse().unwrap();
        assert_eq!(
            ask(|_| Ok(vec!["192.0.2.1:7".parse().unwrap()])).unwrap(),
            [address]
        );
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
