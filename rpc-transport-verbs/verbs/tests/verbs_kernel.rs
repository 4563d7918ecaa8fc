//! Features that only the kernel's RDMA devices have: limits on locked memory, device files, ports
//! that go down, GIDs with network devices, and objects in the kernel.
//!
//! These tests need the device that `VERBLINE_DEVICE` names (`make test-rdma`). Without it they
//! count as ignored, not as passed; run with `--include-ignored`, they fail. Some of them change
//! the system as root: run these only in the guest, which is discarded afterwards
//! (`not-on-kernel-verbs.txt` lists them).

mod verbs_side;

use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use verbline_verbs::{
    Access, AddressVector, AddressWish, AsyncEvent, Binding, Context, Gid, GidType, ModifyError,
    NodeType, OpenError, PartitionKey, PhysicalState, PortState, Psn, QpNum, QpState, QpType,
    QueuePairConfig, RemoteEndpoint, RtrAttributes, TransportType, VerbsError, WindowType, devices,
};
use verbs_side::{HANG, Plan, Side, address, connected, create_qp, device, endpoint, rtr, rts};

/// Returns the device, which must be one of the kernel's.
fn kernel_device() -> &'static str {
    let listed = Path::new("/sys/class/infiniband").join(device());
    assert!(
        device() != "soft" && listed.exists(),
        "VERBLINE_DEVICE has to name an RDMA device of the kernel; '{}' is none",
        device()
    );
    device()
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Restores a file's contents when it is dropped.
struct Restored {
    path: PathBuf,
    words: String,
}

impl Restored {
    fn write(path: &str, words: &str) -> Self {
        let before = fs::read_to_string(path).unwrap();
        fs::write(path, words).unwrap();
        Self {
            path: path.into(),
            words: before,
        }
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.words);
    }
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn an_unknown_device_is_refused_with_the_names_that_would_do() {
    let device = kernel_device();
    let error = Context::open("verbline_has_none").unwrap_err();
    let OpenError::UnknownDevice { name, known } = &error else {
        panic!("{error}");
    };
    assert_eq!(name, "verbline_has_none");
    let known: Vec<_> = known.split(", ").collect();
    assert!(
        known.contains(&device) && known.contains(&"soft"),
        "{error}"
    );
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn registering_beyond_the_limit_of_locked_memory_names_it_and_says_how_to_raise_it() {
    const LIMITED: &str = "VERBS_KERNEL_LIMITED";
    kernel_device();
    if std::env::var_os(LIMITED).is_none() {
        // Runs this test again, with 64 KiB.
        let output = Command::new("../../.ci/with-memlock")
            .arg("64")
            .arg(std::env::current_exe().unwrap())
            .args(["--include-ignored", "--exact"])
            .arg("registering_beyond_the_limit_of_locked_memory_names_it_and_says_how_to_raise_it")
            .env(LIMITED, "64")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    let domain = Context::open(device()).unwrap().alloc_pd().unwrap();
    let _within = domain.register(32 << 10, Access::LOCAL_WRITE).unwrap();
    let error = domain.register(1 << 20, Access::LOCAL_WRITE).unwrap_err();
    let VerbsError::MemoryLocked { len, limit, source } = &error else {
        panic!("{error}");
    };
    assert_eq!(*len, 1 << 20);
    assert!(limit.starts_with("64 KiB"), "{limit}");
    assert_eq!(source.kind(), io::ErrorKind::OutOfMemory);
    let text = error.to_string();
    for word in ["1024 KiB", "64 KiB", "in use", "ulimit -l", "LimitMEMLOCK="] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // A failed registration leaves nothing behind.
    let _again = domain.register(16 << 10, Access::LOCAL_WRITE).unwrap();
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn a_completion_queue_too_deep_names_the_most_that_there_is() {
    let context = Context::open(kernel_device()).unwrap();
    let max = context.query_device().max_cqe;
    let error = context.create_cq(max + 1).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("create_cq: depth = {} is outside 1..={max}", max + 1)
    );
    let cq = context.create_cq(1).unwrap();
    assert!(cq.capacity() >= 1);
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn the_chosen_gid_is_of_an_active_port_and_says_why() {
    let device = kernel_device();
    let context = Context::open(device).unwrap();
    let chosen = context.choose_address(AddressWish::default()).unwrap();
    let table = context.query_gid_table(chosen.port).unwrap();
    let entry = table.iter().find(|entry| entry.index == chosen.gid_index);
    assert_eq!(entry.unwrap().gid, chosen.gid);
    assert_eq!(
        context.query_gid(chosen.port, chosen.gid_index).unwrap(),
        chosen.gid
    );
    assert!(chosen.reason.contains("port"), "{}", chosen.reason);
    // The guest's device, whose address is known.
    let Ok(known) = std::env::var("RXE0_ADDRESS") else {
        return;
    };
    assert_eq!(device, "rxe0");
    let mapped = format!("::ffff:{known}").parse::<Ipv6Addr>().unwrap();
    assert_eq!(Ipv6Addr::from(chosen.gid.0), mapped);
    assert_eq!(chosen.gid_index, 1);
    assert_eq!(chosen.gid_type, GidType::RoceV2);
    assert_eq!(chosen.netdev, std::env::var("RXE0_NETDEV").ok());
}

/// The guest's devices and addresses: `.ci/guest`.
#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn a_device_is_named_by_its_network_device_its_address_or_its_subnet() {
    kernel_device();
    let opened = |name: &str| {
        let context = Context::open(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let address = context.choose_address(AddressWish::default()).unwrap();
        let device = context.device_name().to_owned();
        (device, address.netdev.unwrap(), address.gid)
    };
    let gid = |address: &str| {
        let mapped = format!("::ffff:{address}").parse::<Ipv6Addr>().unwrap();
        Gid(mapped.octets())
    };
    for name in ["@d0", "@192.0.2.0/24", "@192.0.2.1", "@::ffff:192.0.2.1"] {
        let expected = ("rxe0".to_owned(), "d0".to_owned(), gid("192.0.2.1"));
        assert_eq!(opened(name), expected, "{name}");
    }
    for name in ["@v1", "@198.51.100.2"] {
        let expected = ("rxe2".to_owned(), "v1".to_owned(), gid("198.51.100.2"));
        assert_eq!(opened(name), expected, "{name}");
    }
    // Both rxe1 and rxe2 have one: the first of them is taken, whichever that is.
    let first = devices().into_iter().find(|device| device.name != "rxe0");
    assert_eq!(opened("@198.51.100.0/24").0, first.unwrap().name);
    // What is in use besides: a link-local address, which comes first in the table.
    let table = Context::open("rxe0").unwrap().query_gid_table(1).unwrap();
    let link_local = table.first().unwrap().gid;
    assert_eq!(opened(&format!("@{link_local}")).2, link_local);

    let error = Context::open("@203.0.113.0/24").unwrap_err();
    let OpenError::NoGidOf { wanted, known } = &error else {
        panic!("{error}");
    };
    assert_eq!(wanted, "in the subnet 203.0.113.0/24");
    for part in [
        "rxe0 (port 1): ",
        "d0 192.0.2.1",
        "rxe2 (port 1): ",
        "v1 198.51.100.2",
    ] {
        assert!(known.contains(part), "{part}: {known}");
    }
    let error = Context::open("@d9").unwrap_err();
    assert!(error.to_string().contains("of the netdev 'd9'"), "{error}");
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn the_device_says_what_sysfs_says_of_it() {
    let device = kernel_device();
    let context = Context::open(device).unwrap();
    let attributes = context.query_device();
    let file = |name: &str| {
        let path = Path::new("/sys/class/infiniband").join(device).join(name);
        fs::read_to_string(path).unwrap().trim().to_owned()
    };
    assert_eq!(attributes.node_guid.to_string(), file("node_guid"));
    assert_eq!(
        attributes.sys_image_guid.to_string(),
        file("sys_image_guid")
    );
    // The Soft-RoCE driver leaves this file empty.
    let fw_ver = file("fw_ver");
    assert!(fw_ver.is_empty() || attributes.fw_ver.as_str() == fw_ver);
    let listed = devices();
    let listed = listed.iter().find(|listed| listed.name == device).unwrap();
    assert_eq!(listed.guid, attributes.node_guid);
    let node_type = file("node_type");
    let (code, _) = node_type.split_once(':').unwrap();
    assert_eq!(listed.node_type, NodeType::from_code(code.parse().unwrap()));
    assert_eq!(listed.transport, TransportType::InfiniBand);
    // Enough for any use, and a plausible number.
    for (name, count) in attributes.counts() {
        assert!(count < 1 << 31, "{name} = {count}");
    }
    assert!(attributes.max_qp > 0 && attributes.max_sge > 1);
    assert!(attributes.page_sizes.iter().any(|size| size == 4096));
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn the_port_says_what_sysfs_says_of_it() {
    let device = kernel_device();
    let context = Context::open(device).unwrap();
    for number in 1..=context.query_device().port_count {
        let port = context.query_port(number).unwrap();
        let directory = format!("/sys/class/infiniband/{device}/ports/{number}");
        let file = |name: &str| {
            let text = fs::read_to_string(format!("{directory}/{name}")).unwrap();
            text.trim().to_owned()
        };
        let hex = |name: &str| {
            let text = file(name);
            u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
        };
        let code = |name: &str| {
            let text = file(name);
            text.split(':').next().unwrap().parse::<u8>().unwrap()
        };
        assert_eq!(port.state, PortState::from_code(code("state").into()));
        assert_eq!(
            port.physical_state,
            PhysicalState::from_code(code("phys_state"))
        );
        assert_eq!(u32::from(port.lid), hex("lid"));
        assert_eq!(u32::from(port.sm_lid), hex("sm_lid"));
        assert_eq!(port.lmc.to_string(), file("lid_mask_count"));
        assert_eq!(port.sm_sl.to_string(), file("sm_sl"));
        assert_eq!(port.capabilities.bits(), hex("cap_mask"));
        assert_eq!(port.link_layer.to_string(), file("link_layer"));
        // "100 Gb/sec (4X EDR)"; older kernels omit SDR.
        let rate = port.rate.expect("a port of a device has a rate");
        let text = file("rate");
        let total = text.split(' ').next().unwrap().parse::<f64>().unwrap();
        assert_eq!(rate.nominal(), Some((total * 1e9) as u64), "{text}");
        assert!(text.contains(&rate.width.to_string()), "{text}");
        let keys = context.query_pkey_table(number).unwrap();
        for (index, key) in &keys {
            assert_eq!(u32::from(key.0), hex(&format!("pkeys/{index}")));
        }
        assert!(keys.contains(&(0, PartitionKey::DEFAULT)), "{keys:?}");
        let error = context.query_pkey(number, port.pkey_count).unwrap_err();
        let last = port.pkey_count - 1;
        let expected = format!(
            "query_pkey: index = {} is outside 0..={last}",
            port.pkey_count
        );
        assert_eq!(error.to_string(), expected);
        let files = fs::read_dir(format!("{directory}/pkeys")).unwrap().count();
        assert_eq!(usize::from(port.pkey_count), files);
        let files = fs::read_dir(format!("{directory}/gids")).unwrap().count();
        assert_eq!(port.gid_count as usize, files);
    }
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn a_neighbour_that_does_not_answer_is_named() {
    kernel_device();
    // The guest's second device, in whose network ARP resolves addresses.
    let context = Context::open("rxe1").unwrap();
    let from = context.choose_address(AddressWish::default()).unwrap();
    let mut gid = from.gid;
    gid.0[15] = 77;
    let domain = context.alloc_pd().unwrap();
    let cq = context.create_cq(2).unwrap();
    let plan = Plan {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..Plan::default()
    };
    let mut qp = create_qp(&domain, &cq, None, plan);
    qp.to_init(from.port, Access::NONE).unwrap();
    let remote = RemoteEndpoint {
        gid,
        lid: 0,
        qp_num: QpNum(17),
        psn: Psn::new(0),
    };
    let attributes = RtrAttributes {
        sgid_index: from.gid_index,
        ..RtrAttributes::new(remote)
    };
    let error = qp.to_rtr(attributes).unwrap_err();
    assert!(
        matches!(error, ModifyError::Unreachable { gid: named, .. } if named == gid),
        "{error}"
    );
    assert!(error.to_string().contains("198.51.100.77"), "{error}");
    assert_eq!(qp.state().unwrap(), QpState::Init);
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn the_limit_event_names_the_shared_receive_queue_that_fell_below() {
    kernel_device();
    let plan = Plan {
        srq_wr: 16,
        ..Plan::default()
    };
    // Two queues in each of two contexts: the event's number refers to one of them.
    let (mut left, mut right) = connected(plan);
    let other = right.domain.create_srq(16, 1).unwrap();
    let srq = right.srq.clone().unwrap();
    assert_ne!(srq.number(), other.number());
    right.post_recv(4);
    other.arm_limit(1).unwrap();
    srq.arm_limit(4).unwrap();
    left.send_signaled(10, 1);
    left.wait(1);
    assert_eq!(
        right.event(),
        AsyncEvent::SrqLimitReached { srq: srq.number() }
    );
    right.assert_no_event();
    left.assert_no_event();
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn a_port_that_goes_down_and_up_raises_both_events() {
    let context = Context::open(kernel_device()).unwrap();
    let chosen = address();
    let netdev = chosen.netdev.as_deref().unwrap();
    let wait_for = |wanted: AsyncEvent| loop {
        let event = context.get_async_event(Some(HANG)).unwrap();
        match event.expect("an event") {
            // The GID is removed and added together with the link.
            AsyncEvent::GidChange { .. } => {}
            event => break assert_eq!(event, wanted),
        }
    };
    run("ip", &["link", "set", netdev, "down"]);
    wait_for(AsyncEvent::PortError { port: chosen.port });
    let state = context.query_port(chosen.port).unwrap().state;
    let refused = context.choose_address(AddressWish::default());
    run("ip", &["link", "set", netdev, "up"]);
    wait_for(AsyncEvent::PortActive { port: chosen.port });
    assert_eq!(state, PortState::Down);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("no port of"), "{refused}");
    assert!(refused.contains("ip link set"), "{refused}");
    assert_eq!(
        context.query_port(chosen.port).unwrap().state,
        PortState::Active
    );
    // The GID reappears a moment after the port.
    let start = std::time::Instant::now();
    while context.choose_address(AddressWish::default()).unwrap().gid != chosen.gid {
        assert!(start.elapsed() < HANG);
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn a_user_without_rights_to_the_device_file_is_told_so() {
    let device = kernel_device();
    // A driver may allow only one open per process; check first that the device can be opened.
    drop(Context::open(device).unwrap());
    let files = fs::read_dir("/sys/class/infiniband_verbs").unwrap();
    let file = files
        .flatten()
        .find(|entry| {
            fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|name| name.trim() == device)
        })
        .expect("the device has a file");
    let file = Path::new("/dev/infiniband").join(file.file_name());
    let before = fs::metadata(&file).unwrap().permissions();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    // Change the user of this one thread only. The change ends with the thread.
    let opened = std::thread::spawn(move || {
        let nobody = rustix::thread::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        Context::open(device).map(drop)
    });
    let opened = opened.join().unwrap();
    fs::set_permissions(&file, before).unwrap();
    let error = opened.unwrap_err();
    assert!(matches!(error, OpenError::Permission { .. }), "{error}");
    assert!(error.to_string().contains("/dev/infiniband"), "{error}");
    drop(Context::open(device).unwrap());
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn huge_pages_that_are_set_aside_are_used_and_others_do_without() {
    const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
    let domain = Context::open(kernel_device()).unwrap().alloc_pd().unwrap();
    let page_of = |len: usize| {
        let region = domain.register(len, Access::LOCAL_WRITE).unwrap();
        let mut slots = region.into_slots(len).unwrap();
        slots[0].fill(1);
        let start = slots[0].as_ptr().addr();
        page_kib(start)
    };
    let none = Restored::write(RESERVED, "0");
    assert_eq!(page_of(4 << 20), 4, "with none set aside");
    drop(none);
    let _some = Restored::write(RESERVED, "4");
    let got = fs::read_to_string(RESERVED).unwrap();
    assert_eq!(got.trim(), "4", "the system has no room for them");
    assert_eq!(page_of(4 << 20), 2048);
    assert_eq!(page_of(64 << 10), 4, "too small for one");
    assert_eq!(page_of(16 << 20), 4, "more than are set aside");
}

/// Returns the kernel's page size of the mapping that contains this address.
fn page_kib(address: usize) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_it = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let hex = |text| usize::from_str_radix(text, 16).unwrap();
            is_it = (hex(start)..hex(end)).contains(&address);
        } else if is_it && first == "KernelPageSize:" {
            return words.next().unwrap().parse().unwrap();
        }
    }
    panic!("{address:#x} is not mapped");
}

#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn dropped_in_any_order_nothing_stays_in_the_kernel() {
    let device = kernel_device();
    let resources = || {
        let listed = run("rdma", &["resource", "show"]);
        let line = listed.lines().find(|line| line.contains(device));
        line.unwrap_or_else(|| panic!("{listed}")).to_owned()
    };
    let before = resources();
    const PARTS: usize = 7;
    for first in 0..PARTS {
        for step in [1, PARTS - 1] {
            let plan = Plan {
                srq_wr: 16,
                ..Plan::default()
            };
            let (mut left, mut right) = connected(plan);
            right.post_recv(4);
            left.send_signaled(10, 1);
            let during = resources();
            assert_ne!(during, before);
            let Side {
                context,
                domain,
                channel,
                cq,
                srq,
                qp,
                slots,
                ..
            } = right;
            let mut parts: [Option<Box<dyn std::any::Any>>; PARTS] = [
                Some(Box::new(context)),
                Some(Box::new(domain)),
                Some(Box::new(channel)),
                Some(Box::new(cq)),
                Some(Box::new(srq)),
                Some(Box::new(qp)),
                Some(Box::new(slots)),
            ];
            for index in 0..PARTS {
                drop(parts[(first + index * step) % PARTS].take());
            }
            drop(left);
            assert_eq!(resources(), before, "from part {first} in steps of {step}");
        }
    }
}

/// The kernel does not report memory windows, address handles and multicast groups. But a
/// protection domain that still has any of them cannot be deallocated, and remains.
#[test]
#[ignore = "needs an RDMA device, in VERBLINE_DEVICE"]
fn windows_address_handles_and_groups_dropped_in_any_order_keep_nothing_in_the_kernel() {
    let device = kernel_device();
    let resources = || {
        let listed = run("rdma", &["resource", "show"]);
        let line = listed.lines().find(|line| line.contains(device));
        line.unwrap_or_else(|| panic!("{listed}")).to_owned()
    };
    let before = resources();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    const PARTS: usize = 9;
    for first in 0..PARTS {
        for step in [1, PARTS - 1] {
            let context = Context::open(device).unwrap();
            let domain = context.alloc_pd().unwrap();
            let mut cq = context.create_cq(16).unwrap();
            let region = domain.expose(4096, access).unwrap();
            let zero_based = domain.expose(4096, access | Access::ZERO_BASED).unwrap();
            // Connected to itself, to bind the window.
            let mut bound_by = create_qp(&domain, &cq, None, Plan::default());
            let own = endpoint(&bound_by);
            bound_by.to_init(address().port, Access::NONE).unwrap();
            bound_by.to_rtr(rtr(own)).unwrap();
            bound_by.to_rts(rts()).unwrap();
            let window = domain.alloc_mw(WindowType::Type1).unwrap();
            let binding = Binding::new(&region, 0..64, Access::REMOTE_WRITE);
            bound_by.bind_mw(&window, binding, true).unwrap();
            let mut completions = Vec::new();
            while cq.poll(&mut completions, 1).unwrap() == 0 {}
            assert!(completions[0].is_success(), "{completions:?}");
            bound_by
                .complete_send(completions.remove(0), &mut drop)
                .unwrap();
            let mut datagrams = domain
                .create_qp(QueuePairConfig {
                    qp_type: QpType::UnreliableDatagram,
                    ..QueuePairConfig::new(&cq, &cq)
                })
                .unwrap();
            let group = Gid("ff12::5:77".parse::<Ipv6Addr>().unwrap().octets());
            datagrams.attach_multicast(group, 0).unwrap();
            let handle = domain
                .create_ah(AddressVector {
                    gid: address().gid,
                    sgid_index: address().gid_index,
                    is_global: true,
                    port: address().port,
                    ..AddressVector::default()
                })
                .unwrap();
            assert_ne!(resources(), before);
            let mut parts: [Option<Box<dyn std::any::Any>>; PARTS] = [
                Some(Box::new(context)),
                Some(Box::new(domain)),
                Some(Box::new(cq)),
                Some(Box::new(region)),
                Some(Box::new(zero_based)),
                Some(Box::new(bound_by)),
                Some(Box::new(window)),
                Some(Box::new(datagrams)),
                Some(Box::new(handle)),
            ];
            for index in 0..PARTS {
                drop(parts[(first + index * step) % PARTS].take());
            }
            assert_eq!(resources(), before, "from part {first} in steps of {step}");
        }
    }
}
