//! Calls over TCP: who may come, what the connection for the calls begins with, and what happens
//! when it is cut.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::transport::{Admission, Admitted, Fabric, Refusal, Transport};
use rpc_core::{
    Caller, Channel, Code, Idempotency, Intents, LocalPoller, MethodKind, MethodSpec, Methods,
    Request, Response, Server, ServerHandle, Service, Status,
};
use rpc_transport_verbs::Device;

use crate::other_address::connect_from;
use crate::transport_harness::{AdmitAll, PATIENCE, Side};

const WHO: MethodSpec = method("test.Asked/Who");
const ECHO: MethodSpec = method("test.Asked/Echo");

const fn method(path: &'static str) -> MethodSpec {
    MethodSpec::new(
        path,
        MethodKind::Unary,
        Idempotency::Unknown,
        "bytes",
        "bytes",
    )
}

/// Says who calls, and what was said.
struct Asked;

impl Service for Asked {
    fn name(&self) -> &'static str {
        "test.Asked"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&WHO, |request: Request<Vec<u8>>| async move {
            let peer = request.peer().expect("it is known");
            let loopback = peer.address().ip().is_loopback();
            let who = format!("{} {:?} {loopback}", peer.device().unwrap(), peer.user_id());
            Ok::<_, Status>(Response::new(who.into_bytes()))
        });
        methods.unary(&ECHO, |request: Request<Vec<u8>>| async move {
            Ok::<_, Status>(Response::new(request.into_inner()))
        });
    }
}

fn intents() -> Intents {
    Intents {
        max_message_len: 64 << 20,
        ..Intents::default()
    }
}

fn serve(device: &Device) -> ServerHandle {
    let server = Server::builder(device).intents(intents());
    let server = server.add_service(Asked).bind("127.0.0.1:0");
    server.unwrap().spawn()
}

fn ask(
    device: &Device,
    address: &str,
    method: &'static MethodSpec,
    message: Vec<u8>,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let poller = LocalPoller::builder(device).intents(intents()).build();
    let poller = poller.unwrap();
    let channel = poller.connect(address)?;
    let reply = channel.unary::<Vec<u8>, Vec<u8>>(method, Request::new(message));
    Ok(poller.block_on(reply)?.into_inner())
}

fn who(client: &Device, server: &Device) -> Result<String, Box<dyn Error>> {
    let server = serve(server);
    let address = server.local_addr().to_string();
    let who = ask(client, &address, &WHO, Vec::new());
    let of_long = ask(client, &address, &WHO, vec![0; 100_000]);
    server.shutdown().unwrap();
    let who = who?;
    assert_eq!(of_long?, who, "a long request comes from the same peer");
    Ok(String::from_utf8(who).unwrap())
}

fn device(names: &str) -> Device {
    Device::open(names).unwrap()
}

#[test]
fn the_first_device_of_the_server_that_both_have_is_used_and_the_handler_learns_it() {
    let user = rustix::process::geteuid().as_raw();
    let soft = format!("soft Some({user}) true");
    let tcp = "tcp None true".to_owned();
    for (client, server, expected) in [
        ("soft", "soft", &soft),
        ("tcp", "tcp", &tcp),
        ("soft,tcp", "soft,tcp", &soft),
        ("soft,tcp", "tcp,soft", &tcp),
        ("tcp,soft", "soft,tcp", &soft),
        ("tcp", "soft,tcp", &tcp),
        ("soft,tcp", "tcp", &tcp),
        ("soft", "soft,tcp", &soft),
    ] {
        let who = who(&device(client), &device(server)).unwrap();
        assert_eq!(&who, expected, "{client} at {server}");
    }
}

#[test]
fn a_server_takes_connections_over_tcp_only_if_it_says_so() {
    // The best devices contain tcp, which nobody has named, unless the environment does.
    if std::env::var("VERBLINE_DEVICE").is_err() {
        let error = who(&device("tcp"), &Device::best().unwrap()).unwrap_err();
        assert!(error.to_string().contains("allow_plaintext()"), "{error}");
    }
    let error = who(&device("tcp"), &device("soft")).unwrap_err();
    assert!(error.to_string().contains("allow_plaintext()"), "{error}");
    let allowed = device("soft").allow_plaintext();
    assert_eq!(allowed.name(), "soft,tcp");
    assert_eq!(who(&device("tcp"), &allowed).unwrap(), "tcp None true");
    // A device that is named is not replaced.
    let error = who(&device("soft"), &device("tcp")).unwrap_err();
    assert!(
        error.to_string().contains("the client offers soft"),
        "{error}"
    );
}

/// Whoever listens at a server's address gets the calls that come over TCP: another user of the host can
/// take a port while its server does not run. A client that nobody told to use TCP gives it none.
#[test]
fn whoever_has_the_port_of_a_server_gets_no_call_of_a_client_that_does_not_allow_plaintext() {
    if let Ok(device_and_address) = std::env::var(SERVER_OF_ANOTHER_USER) {
        // This is the other process.
        let (name, address) = device_and_address.split_once(' ').unwrap();
        let server = Server::builder(&device(name)).intents(intents());
        let server = server.add_service(Asked).bind(address).unwrap();
        // Not by `println`, which the test harness may capture.
        let line = format!("LISTENS {}\n", server.local_addr());
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        return server.run().unwrap();
    }
    if std::env::var("VERBLINE_DEVICE").is_ok() {
        // The environment names the devices, and `tcp` may be among them: another process has none that
        // does.
        let mut unnamed = Command::new(THIS_PROGRAM);
        unnamed
            .args(["--exact", WHOEVER])
            .env_remove("VERBLINE_DEVICE");
        let output = unnamed.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let best = Device::best().unwrap();
    // At the first connect.
    let (other, address) = AnotherUser::serves("tcp", "127.0.0.1:0");
    let error = ask(&best, &address, &ECHO, Vec::new()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("no kind of device in common"), "{error}");
    assert!(error.contains("allow_plaintext()"), "{error}");
    let allowed = best.clone().allow_plaintext();
    assert_eq!(ask(&allowed, &address, &ECHO, vec![1]).unwrap(), [1]);
    drop(other);

    // When a channel that was connected over another device connects again: not even if it may use TCP, and
    // not at the poller that was never connected.
    for device in [&best, &allowed] {
        let is_allowed = std::ptr::eq(device, &allowed);
        let server = serve(&best);
        let address = server.local_addr().to_string();
        let channel = Channel::builder(device, &address).intents(intents());
        let channel = channel.pollers(2).connect_lazy().unwrap();
        let who = |timeout| {
            let request = Request::new(Vec::new())
                .wait_for_ready(true)
                .with_timeout(timeout);
            rpc_core::block_on(channel.unary::<Vec<u8>, Vec<u8>>(&WHO, request))
        };
        let patience = Duration::from_secs(30);
        let before = who(patience).unwrap().into_inner();
        server.shutdown().unwrap();
        // Until both pollers have met the other process, the errors are of what was at the address before.
        let errors = |words: &str| {
            let mut found = Vec::new();
            let until = Instant::now() + patience;
            while found.len() < 4 {
                let error = who(Duration::from_millis(500)).unwrap_err().to_string();
                assert!(Instant::now() < until, "{error}");
                if error.contains(words) {
                    found.push(error);
                }
            }
            found
        };
        let (other, _) = AnotherUser::serves("tcp", &address);
        for error in errors("no kind of device in common") {
            let says_why = error.contains("connect a new channel");
            assert_eq!(says_why, is_allowed, "{error}");
        }
        drop(other);
        if can_be_another_user() {
            let (other, _) = AnotherUser::serves("soft", &address);
            for error in errors("it cannot be proven") {
                let says_why = error.contains("connect a new channel");
                assert_eq!(says_why, is_allowed, "{error}");
                assert_eq!(error.contains("allow_plaintext()"), !is_allowed, "{error}");
            }
            drop(other);
        }
        let server = Server::builder(&best).intents(intents()).add_service(Asked);
        let server = server.bind(&address).unwrap().spawn();
        assert_eq!(who(patience).unwrap().into_inner(), before);
        server.shutdown().unwrap();
    }
}

const SERVER_OF_ANOTHER_USER: &str = "SERVER_OF_ANOTHER_USER";

const WHOEVER: &str = "over_tcp::whoever_has_the_port_of_a_server_gets_no_call_of_a_client_that_does_not_allow_plaintext";

/// This program, whoever may enter the folder that it lies in.
const THIS_PROGRAM: &str = "/proc/self/exe";

fn can_be_another_user() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        const WHY: &str =
            "NOT RUN: the part over shared memory starts another user's process, so it needs root";
        assert!(std::env::var_os("CI").is_none(), "{WHY}");
        // Not by `eprintln`, which the test harness captures.
        let _ = writeln!(std::io::stderr(), "{WHY}");
    }
    is_root
}

/// A server's process of another user, or of this one without the rights to start such a process: over
/// TCP, the two look the same. It is killed on drop.
struct AnotherUser(Child);

impl AnotherUser {
    fn serves(device: &str, address: &str) -> (Self, String) {
        let mut other = Command::new(THIS_PROGRAM);
        other.args(["--exact", WHOEVER, "--nocapture"]);
        other.env(SERVER_OF_ANOTHER_USER, format!("{device} {address}"));
        if rustix::process::geteuid().is_root() {
            const NOBODY: u32 = 65534;
            other.uid(NOBODY);
        }
        let mut other = Self(other.stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(other.0.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let address = lines.find_map(|line| Some(line.split_once("LISTENS ")?.1.to_owned()));
        (other, address.expect("the other process listens"))
    }
}

impl Drop for AnotherUser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Another poller of the channel is connected over another device while the handshake goes on.
#[test]
fn a_handshake_over_tcp_is_given_up_if_another_poller_was_connected_over_another_device() {
    struct ConnectsAnother(Arc<AtomicBool>, Arc<AdmitAll>);
    impl Admission for ConnectsAnother {
        fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
            self.0.store(true, Ordering::Relaxed);
            self.1.admit(session)
        }
    }
    let tcp = device("tcp");
    let server = Side::open(&tcp, &intents());
    let was_protected = Arc::<AtomicBool>::default();
    let admission = ConnectsAnother(Arc::clone(&was_protected), AdmitAll::with_pollers(1));
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = vec![tcp.port(&server.transport)];
    let listener = tcp.listen(socket, ports, Arc::new(admission)).unwrap();
    let address = listener.local_addr().to_string();
    let client = Side::open(&device("soft,tcp"), &intents());
    let dialer = client.transport.dialer(was_protected);
    let error = dialer.dial(&address, b"hello", PATIENCE).unwrap_err();
    assert!(
        error.to_string().contains("connect a new channel"),
        "{error}"
    );
}

/// The variable is the operator's word: a program that allows plaintext adds nothing to its list.
#[test]
fn the_program_adds_no_device_to_those_that_the_environment_names() {
    if let Ok(names) = std::env::var(SERVER_OF_ENVIRONMENT) {
        // This is the other process, whose environment names `soft`.
        let best = Device::best().unwrap().allow_plaintext();
        assert_eq!(best.name(), names);
        let error = who(&device("tcp"), &best).unwrap_err();
        assert!(error.to_string().contains("VERBLINE_DEVICE"), "{error}");
        return;
    }
    let this = std::env::current_exe().unwrap();
    let name = "over_tcp::the_program_adds_no_device_to_those_that_the_environment_names";
    let mut other = Command::new(this);
    other.args(["--exact", name]).env("VERBLINE_DEVICE", "soft");
    let output = other.env(SERVER_OF_ENVIRONMENT, "soft").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

const SERVER_OF_ENVIRONMENT: &str = "SERVER_OF_ENVIRONMENT";

/// Forwards connections to a server, and remembers the first bytes of each.
struct Proxy {
    address: String,
    /// The first bytes of each connection, in the order in which they were accepted.
    first_bytes: Arc<Mutex<Vec<Vec<u8>>>>,
    /// The bytes that later connections for calls carry to the server before they are cut.
    left: Arc<AtomicUsize>,
    /// What the proxy answers on connections for calls, instead of forwarding them.
    answer: Arc<Mutex<Option<Vec<u8>>>>,
}

const LINK: &[u8] = b"VBLK";

impl Proxy {
    fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let this = Self {
            address: listener.local_addr().unwrap().to_string(),
            first_bytes: Arc::default(),
            left: Arc::new(AtomicUsize::new(usize::MAX)),
            answer: Arc::default(),
        };
        let (first_bytes, left) = (Arc::clone(&this.first_bytes), Arc::clone(&this.left));
        let answer = Arc::clone(&this.answer);
        thread::spawn(move || {
            let mut answered = Vec::new();
            for client in listener.incoming() {
                let mut client = client.unwrap();
                if let Some(answer) = &*answer.lock().unwrap() {
                    let mut magic = [0; LINK.len()];
                    if client.peek(&mut magic).is_ok() && magic == LINK {
                        client.write_all(answer).unwrap();
                        answered.push(client);
                        continue;
                    }
                }
                let server = TcpStream::connect(&server).unwrap();
                let (first_bytes, left) = (Arc::clone(&first_bytes), Arc::clone(&left));
                let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || forward(from, to, |_| true));
                let mut is_link = None;
                thread::spawn(move || {
                    forward(client, server, |bytes| {
                        let is_link = *is_link.get_or_insert_with(|| {
                            first_bytes.lock().unwrap().push(bytes.to_vec());
                            bytes.starts_with(LINK)
                        });
                        let before = left.load(Ordering::Relaxed);
                        if is_link && before != usize::MAX {
                            left.store(before.saturating_sub(bytes.len()), Ordering::Relaxed);
                        }
                        !is_link || before >= bytes.len()
                    });
                });
            }
        });
        this
    }

    /// Returns the first bytes of the connections for calls.
    fn link_hellos(&self) -> Vec<Vec<u8>> {
        let all = self.first_bytes.lock().unwrap();
        let is_link = |bytes: &&Vec<u8>| bytes.starts_with(LINK);
        all.iter().filter(is_link).cloned().collect()
    }
}

/// Forwards bytes as long as `may_go_on` permits, then closes both connections.
fn forward(mut from: TcpStream, mut to: TcpStream, mut may_go_on: impl FnMut(&[u8]) -> bool) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(len) = from.read(&mut bytes) {
        if len == 0 || !may_go_on(&bytes[..len]) || to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Returns what the server says on a connection that begins with these bytes, before it closes it.
fn answer_to(address: &str, said: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(said).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns a refusal with this reason, as a server sends it.
fn refusal(reason: &[u8]) -> Vec<u8> {
    let sentence = [&[0x0a, reason.len() as u8][..], reason].concat();
    let message = [&[0x22, sentence.len() as u8][..], &sentence].concat();
    let refusal = [
        b"VBLN\0\x02\0\0\0",
        &[message.len() as u8][..],
        &[0, 2, 0, 2],
        &message,
    ];
    refusal.concat()
}

#[test]
fn a_secret_serves_once_and_no_other_opens_a_connection_for_calls() {
    let tcp = device("tcp");
    let server = serve(&tcp);
    let address = server.local_addr().to_string();
    let proxy = Proxy::to(address.clone());
    let said = b"hello".to_vec();
    assert_eq!(
        ask(&tcp, &proxy.address, &ECHO, said.clone()).unwrap(),
        said
    );
    let [hello] = &proxy.link_hellos()[..] else {
        panic!("one connection for calls");
    };
    assert_eq!(answer_to(&address, hello), "", "it was used before");
    let mut wrong = hello.clone();
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(answer_to(&address, &wrong), "", "it was never given");
    let mut other = hello.clone();
    other[5] = 2;
    let answer = answer_to(&address, &other);
    let both = "the connection for calls speaks version 2, the server speaks version 1: upgrade the older side";
    assert!(answer.contains(both), "{answer}");
    assert_eq!(ask(&tcp, &address, &ECHO, said.clone()).unwrap(), said);
    server.shutdown().unwrap();
}

/// The connection for calls reaches somebody else, who refuses it, or answers as if it were the server.
#[test]
fn a_client_whose_calls_reach_another_process_is_told_so_and_keeps_no_connection() {
    let tcp = device("tcp");
    let server = serve(&tcp);
    let proxy = Proxy::to(server.local_addr().to_string());
    let echo = |timeout| {
        let poller = LocalPoller::new(&tcp)?;
        let channel = poller.connect(&proxy.address)?;
        let request = Request::new(b"hello".to_vec()).with_timeout(timeout);
        let reply = channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request);
        Ok::<_, Box<dyn Error>>(poller.block_on(reply)?.into_inner())
    };
    let patience = Duration::from_secs(30);
    // As another server that makes room for others.
    *proxy.answer.lock().unwrap() = Some(refusal(b"too many handshakes"));
    let error = echo(patience).unwrap_err();
    assert!(error.to_string().contains("too many handshakes"), "{error}");
    // As a queue pair that accepts the connection. The server knows that it is not its own.
    *proxy.answer.lock().unwrap() = Some(b"VBLT\x01\0\x01\0\0\0\0\0".to_vec());
    let error = echo(patience).unwrap_err();
    let error = error.downcast_ref::<rpc_core::CallError>().expect("a call");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    *proxy.answer.lock().unwrap() = None;
    assert_eq!(echo(patience).unwrap(), b"hello");
    server.shutdown().unwrap();
}

/// A server that ends a handshake closes the connection for calls without a word, because its secret
/// is valid no more. The client reports the reason that it was sent on the other connection.
#[test]
fn a_client_whose_handshake_was_ended_while_it_dialed_for_its_calls_is_told_why() {
    let tcp = device("tcp");
    let server = serve(&tcp);
    let address = server.local_addr();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap().to_string();
    let ending = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(address).unwrap();
        let mut bytes = [0; 4096];
        let len = client.read(&mut bytes).unwrap();
        server.write_all(&bytes[..len]).unwrap();
        let len = server.read(&mut bytes).unwrap();
        client.write_all(&bytes[..len]).unwrap();
        let (mut link, _) = listener.accept().unwrap();
        link.read_exact(&mut [0; 24]).unwrap();
        drop(link);
        // The network has delayed it.
        thread::sleep(Duration::from_millis(10));
        client.write_all(&refusal(b"try again")).unwrap();
        client
    });
    let error = ask(&tcp, &between, &ECHO, Vec::new()).unwrap_err();
    drop(ending.join().unwrap());
    let error = error.to_string();
    assert!(error.contains("try again"), "{error}");
    assert!(!error.contains("load balancer"), "{error}");
    server.shutdown().unwrap();
}

/// A stranger has the server prepare a queue pair for each connection that it takes, and dials none
/// of them.
#[test]
fn hellos_of_one_address_keep_no_client_of_another_one_out() {
    // On a slow machine, the stranger's handshakes may end before the clients have come.
    let in_time = (0..5).any(|_| clients_come_beside_a_stranger());
    assert!(in_time, "no attempt was within the time of a stage");
}

/// Returns false if it took so long that the stranger's handshakes may have ended by themselves.
fn clients_come_beside_a_stranger() -> bool {
    const CONNECTIONS: u32 = 8;
    let tcp = device("tcp");
    let intents = Intents {
        connections: CONNECTIONS,
        ..intents()
    };
    let server = Server::builder(&tcp).intents(intents).add_service(Asked);
    let server = server.bind("127.0.0.1:0").unwrap().spawn();
    let address = server.local_addr();
    let proxy = Proxy::to(address.to_string());
    ask(&tcp, &proxy.address, &ECHO, Vec::new()).unwrap();
    let hello = proxy.first_bytes.lock().unwrap()[0].clone();
    let mut welcomed = Vec::new();
    let started = Instant::now();
    while welcomed.len() < CONNECTIONS as usize {
        let mut stream = connect_from(2, address);
        stream.write_all(&hello).unwrap();
        let mut answer = [0; 4096];
        let len = stream.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..len]);
        // The connection of the first client may not have ended yet.
        match answer.contains("raise") {
            false => welcomed.push(stream),
            true => thread::sleep(Duration::from_millis(5)),
        }
        if started.elapsed() >= STAGE {
            return false;
        }
    }
    // As many clients as the stranger then has connections left.
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS / 2 {
        let poller = LocalPoller::new(&tcp).unwrap();
        let channel = poller.connect(&address.to_string()).unwrap();
        let request = Request::new(b"hello".to_vec());
        let reply = channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request);
        assert_eq!(poller.block_on(reply).unwrap().into_inner(), b"hello");
        clients.push((channel, poller));
    }
    if started.elapsed() >= STAGE {
        return false;
    }
    let mut told = Vec::new();
    welcomed[0].read_to_end(&mut told).unwrap();
    let told = String::from_utf8_lossy(&told);
    assert!(
        told.contains("its unfinished handshakes with this host are the most"),
        "{told}"
    );
    drop(clients);
    server.shutdown().unwrap();
    true
}

/// As many clients as a server takes connect, and make no call. Those that come later are from the same
/// address, and get the places of the oldest; a client that has made a call keeps its own.
#[test]
fn connections_without_a_call_yield_to_new_clients_of_the_same_address() {
    const CONNECTIONS: u32 = 8;
    let tcp = device("tcp");
    let intents = Intents {
        connections: CONNECTIONS,
        ..intents()
    };
    let server = Server::builder(&tcp).intents(intents).add_service(Asked);
    let server = server.bind("127.0.0.1:0").unwrap().spawn();
    let address = server.local_addr().to_string();
    let connect = || {
        let poller = LocalPoller::new(&tcp).unwrap();
        let channel = poller.connect(&address)?;
        Ok::<_, Box<dyn Error>>((channel, poller))
    };
    let call = |(channel, poller): &(_, LocalPoller)| {
        let channel: &rpc_core::LocalChannel = channel;
        let request = Request::new(b"hello".to_vec());
        let reply = channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request);
        poller.block_on(reply).map(Response::into_inner)
    };
    let first = connect().unwrap();
    call(&first).unwrap();
    let mut silent: Vec<_> = (1..CONNECTIONS).map(|_| connect().unwrap()).collect();
    let mut calling = vec![first];
    for _ in 1..CONNECTIONS {
        let client = connect().unwrap();
        assert_eq!(call(&client).unwrap(), b"hello");
        calling.push(client);
    }
    for client in &calling {
        assert_eq!(call(client).unwrap(), b"hello");
    }
    // All have made calls: none yields, and a new client is told so at once.
    let began = Instant::now();
    let refusal = connect().unwrap_err().to_string();
    assert!(refusal.contains("raise `connections`"), "{refusal}");
    assert!(began.elapsed() < STAGE, "it waited");
    for client in silent.drain(..) {
        let error = call(&client).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
    }
    drop(calling);
    server.shutdown().unwrap();
}

/// The time limit of a stage of a handshake on the server.
const STAGE: Duration = Duration::from_secs(5);

/// The connection for calls is cut in the middle of a long message, again and again: each call ends
/// once, and the channel is connected anew.
#[test]
fn a_connection_that_is_cut_in_a_long_message_ends_its_call_and_is_made_anew() {
    let tcp = device("tcp");
    let server = serve(&tcp);
    let proxy = Proxy::to(server.local_addr().to_string());
    let channel = Channel::builder(&tcp, &proxy.address)
        .intents(intents())
        .connect_lazy()
        .unwrap();
    let call = |message: Vec<u8>| {
        let request = Request::new(message)
            .wait_for_ready(true)
            .with_timeout(Duration::from_secs(30));
        rpc_core::block_on(channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request))
    };
    let long = vec![7; 8 << 20];
    for left in [100, 5_000, 70_000, 1 << 20, 5 << 20] {
        assert_eq!(call(b"short".to_vec()).unwrap().into_inner(), b"short");
        proxy.left.store(left, Ordering::Relaxed);
        let error = call(long.clone()).unwrap_err();
        proxy.left.store(usize::MAX, Ordering::Relaxed);
        assert_eq!(error.code(), Code::Unavailable, "{left} bytes: {error}");
    }
    assert_eq!(call(long.clone()).unwrap().into_inner(), long);
    drop(channel);
    server.shutdown().unwrap();
}
