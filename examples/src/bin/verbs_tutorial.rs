//! A verbs tutorial without Verbline's RPC layer: two queue pairs of this process exchange
//! messages.
//!
//! ```text
//! cargo run -p examples --bin verbs_tutorial
//! cargo run -p examples --features rdma --bin verbs_tutorial mlx5_0
//! ```
//!
//! The first part creates every object that a message needs and sends one message, with 32 bits of
//! immediate data. The second part uses a shared receive queue, sleeps until a completion arrives,
//! and gets an event when receives run short. The names are those of `libibverbs`, so its man pages
//! apply: `man ibv_create_qp`.
#![forbid(unsafe_code)]
// Printing each step is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rpc_transport_verbs::verbs::{
    Access, AddressWish, AsyncEvent, CompletionOpcode, Context, Element, PortAddress, Psn,
    QueuePair, QueuePairConfig, RemoteEndpoint, RtrAttributes, RtsAttributes, SharedReceiveQueue,
    Slot, WorkCompletion, WorkKind, WorkRequest, devices, fork_init,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Exchanges messages between two queue pairs of this process, step by step
#[derive(Parser)]
#[command(after_help = "Next: read docs/verbs.md, and this program's source")]
struct Arguments {
    /// The device: `soft`, which exists on every machine, or an RDMA device such as `mlx5_0`,
    /// `mlx5_0:1:3` or `@eth0`
    #[arg(default_value = "soft")]
    device: String,
}

/// Length of one slot in bytes; far more than the messages here need.
const SLOT_LEN: usize = 256;

/// Timeout for operations in flight. Only a bug makes them take longer.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let Arguments { device } = Arguments::parse();
    match run(&device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbs_tutorial: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str) -> Outcome<()> {
    // A program that may fork must call this before anything else. Kernels before 5.12 need it.
    fork_init()?;
    println!("Devices of this machine:");
    for device in devices() {
        println!(
            "  {} ({}), GUID {}",
            device.name, device.transport, device.guid
        );
    }

    // A context is an open device. All other objects are created from it.
    let context = Context::open(name)?;
    // A queue pair sends from a port and from one of the port's addresses (GIDs). On a machine with
    // several networks the choice is complicated; this call picks the best one.
    let address = context.choose_address(AddressWish::default())?;
    println!("\nOpened {name}: {address}");

    one_message(&context, &address)?;
    many_messages(&context, &address)
}

/// Sends one message from one queue pair to the other.
fn one_message(context: &Context, address: &PortAddress) -> Outcome<()> {
    println!("\n== One message");

    // A protection domain groups objects: a queue pair can use only the memory of its own domain.
    let domain = context.alloc_pd()?;

    // The device accesses memory directly, so the memory must be registered first, with
    // permissions: LOCAL_WRITE for memory that receives data. A slot is a piece of the region, and
    // the right to access it.
    let region = domain.register(2 * SLOT_LEN, Access::LOCAL_WRITE)?;
    let mut slots = region.into_slots(SLOT_LEN)?;

    // A completion queue reports finished requests. It must have room for all requests in flight,
    // or it fails: here one send and one receive of each queue pair.
    let mut completions = context.create_cq(4)?;

    // A queue pair consists of a send queue and a receive queue.
    let config = QueuePairConfig {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..QueuePairConfig::new(&completions, &completions)
    };
    let mut left = domain.create_qp(config)?;
    let mut right = domain.create_qp(config)?;
    connect(&mut left, &mut right, address)?;
    println!("{} and {} are connected", left.qp_num(), right.qp_num());

    // Post receives first: a message that finds no receive is rejected ("receiver not ready").
    // Posting moves the slot into the queue, so no code can read its bytes while the device may
    // write them.
    right.post_recv(&mut slots, 1)?;

    // Now send the message. It is `signaled`; an unsignaled send does not appear in the completion
    // queue.
    let mut slot = slots.pop().ok_or("no slot is free")?;
    let text = b"hello, verbs";
    slot[..text.len()].copy_from_slice(text);
    let message = Element::new(slot, text.len()).map_err(|_| "the text is too long")?;
    left.post_one(WorkRequest::send_with_imm(message, 0xfeed).signaled())
        .map_err(|(_, reason)| reason)?;

    // Two requests complete: the send and the receive. Polling never sleeps; the second part of
    // this program does.
    let mut ended = Vec::new();
    while ended.len() < 2 {
        completions.poll(&mut ended, 2)?;
    }
    for completion in ended {
        check(&completion)?;
        // A completion identifies its request and gives access to its memory: claiming it returns
        // the slot.
        if completion.opcode() == Some(CompletionOpcode::Receive) {
            let imm = completion.imm().ok_or("the immediate is missing")?;
            let (slot, len) = right.claim_recv(completion)?;
            let text = String::from_utf8_lossy(&slot[..len]);
            println!("received {len} bytes, '{text}', with the immediate {imm:#x}");
        } else {
            left.complete_send(completion, &mut |slot| slots.push(slot))?;
            println!("the send is complete; its slot was returned");
        }
    }

    // The attributes that a queue pair reports depend on its state. RTS has most of them.
    println!("\n{} reports:\n{}", left.qp_num(), left.query()?);
    // Dropping the objects destroys them in the right order, children first, whatever the drop
    // order.
    Ok(())
}

/// Sends messages into a shared receive queue while the receiver sleeps, and waits for the event
/// that reports a shortage of receives.
fn many_messages(context: &Context, address: &PortAddress) -> Outcome<()> {
    /// Number of receives at the start. Fewer than `LIMIT` receives raise the event.
    const RECEIVES: usize = 8;
    const LIMIT: usize = 4;

    println!("\n== Many messages");
    let domain = context.alloc_pd()?;
    let region = domain.register(2 * RECEIVES * SLOT_LEN, Access::LOCAL_WRITE)?;
    let mut slots = region.into_slots(SLOT_LEN)?;

    // A thread sleeps on a completion channel until a completion queue has an entry.
    let channel = context.create_comp_channel()?;
    let mut completions = context.create_cq_with_channel(4 * RECEIVES, &channel)?;

    // A shared receive queue provides receives to all of its queue pairs. So memory grows with the
    // traffic and not with the number of queue pairs.
    let shared = domain.create_srq(RECEIVES, 1)?;
    let config = QueuePairConfig {
        srq: Some(&shared),
        max_send_wr: RECEIVES,
        ..QueuePairConfig::new(&completions, &completions)
    };
    let mut left = domain.create_qp(config)?;
    let mut right = domain.create_qp(config)?;
    connect(&mut left, &mut right, address)?;

    // The number of remaining receives cannot be queried. Instead, this arms an asynchronous event
    // for when fewer than the limit remain. Post the receives first, then arm the limit.
    shared.post_recv(&mut slots, RECEIVES)?;
    shared.arm_limit(LIMIT)?;
    println!("posted {RECEIVES} shared receives; fewer than {LIMIT} raise an event");

    // The left queue pair sends from another thread, with pauses, while this thread sleeps. That
    // thread owns the queue pair, so it needs no lock; the compiler rejects posts to one queue pair
    // from two threads.
    let mut received = 0;
    let mut ended = Vec::new();
    let texts: [&[u8]; 3] = [b"one", b"two", b"three"];
    let slots_of_left = slots.split_off(slots.len() - texts.len());
    let sender = std::thread::spawn(move || {
        for (slot, text) in slots_of_left.into_iter().zip(texts) {
            std::thread::sleep(Duration::from_millis(20));
            // Unsignaled: no completion of its own. A later completion covers it and returns its
            // slot.
            send(&mut left, slot, text, false).map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(left)
    });
    while received < texts.len() {
        // Arm, poll once more, then sleep: completions from before the arming raise no event.
        completions.arm(false)?;
        if completions.poll(&mut ended, 16)? == 0 {
            let queue = channel.wait(Some(PATIENCE))?.ok_or("no completion came")?;
            println!("woken: completion queue {queue} is not empty");
            completions.poll(&mut ended, 16)?;
        }
        for completion in ended.drain(..) {
            received += 1;
            slots.push(claim(&shared, completion)?);
        }
    }
    let mut left = sender.join().map_err(|_| "the sender panicked")??;

    // The limit event is raised when receives run short.
    println!("\nNow two more messages, without posting receives again");
    for text in [&b"four"[..], b"five"] {
        let slot = slots.pop().ok_or("all slots are in use")?;
        send(&mut left, slot, text, true)?;
        // Wait for the receive and the send. The send's completion covers the earlier ones, so
        // their slots are returned too.
        let mut to_come = 2;
        while to_come > 0 {
            to_come -= completions.poll(&mut ended, to_come)?;
            for completion in ended.drain(..) {
                match completion.wr_id().kind() {
                    Some(WorkKind::Receive) => {
                        received += 1;
                        slots.push(claim(&shared, completion)?);
                    }
                    _ => {
                        check(&completion)?;
                        left.complete_send(completion, &mut |slot| slots.push(slot))?;
                    }
                }
            }
        }
    }
    // Events that belong to no request are read from the context; a larger program uses a thread
    // for this. This layer acknowledges an event when it returns it, so destroying the object does
    // not block.
    loop {
        let event = context.get_async_event(Some(PATIENCE))?;
        match event.ok_or("no asynchronous event arrived")? {
            AsyncEvent::SrqLimitReached { srq } if srq == shared.number() => break,
            // The device may report other events.
            other => println!(
                "event {}: {}",
                other.verbs_name(),
                other.explanation().meaning
            ),
        }
    }
    println!(
        "the device reports a shortage of receives: {} are left",
        RECEIVES - received
    );
    // The event is raised once. Post the missing receives, then arm the limit again.
    shared.post_recv(&mut slots, received)?;
    shared.arm_limit(LIMIT)?;
    println!("posted {received} receives again and armed the limit of {LIMIT}");
    Ok(())
}

/// Claims a receive of the shared queue. The completion says which queue pair received the message.
fn claim(shared: &SharedReceiveQueue, completion: WorkCompletion) -> Outcome<Slot> {
    check(&completion)?;
    let qp_num = completion.qp_num();
    let (slot, len) = shared.claim(completion)?;
    println!(
        "{qp_num} received '{}'",
        String::from_utf8_lossy(&slot[..len])
    );
    Ok(slot)
}

/// Posts one message.
fn send(from: &mut QueuePair, mut slot: Slot, text: &[u8], signaled: bool) -> Outcome<()> {
    slot[..text.len()].copy_from_slice(text);
    let message = Element::new(slot, text.len()).map_err(|_| "the text is too long")?;
    let request = WorkRequest::send(message);
    let request = if signaled {
        request.signaled()
    } else {
        request
    };
    from.post_one(request).map_err(|(_, reason)| reason)?;
    Ok(())
}

/// Moves both queue pairs from RESET to RTS, each connected to the other.
///
/// Here both are in one process and exchange their addresses, queue pair numbers and first sequence
/// numbers through variables. Programs on two hosts exchange them over a TCP connection or with
/// rdma_cm.
fn connect(left: &mut QueuePair, right: &mut QueuePair, address: &PortAddress) -> Outcome<()> {
    // Any 24 bits work. Real programs use random ones, so that packets of an old connection are not
    // mistaken for new ones.
    let psns = [Psn::new(0x00_1234), Psn::new(0x00_abcd)];
    let endpoint = |queue_pair: &QueuePair, psn| RemoteEndpoint {
        gid: address.gid,
        lid: address.lid,
        qp_num: queue_pair.qp_num(),
        psn,
    };
    let ends = [endpoint(left, psns[0]), endpoint(right, psns[1])];
    // INIT sets the port and what peers may do to this side's memory (nothing). Receives can be
    // posted from here on.
    for queue_pair in [&mut *left, &mut *right] {
        queue_pair.to_init(address.port, Access::NONE)?;
    }
    // RTR (ready to receive) sets the peer and the path to it. Both sides must be in RTR before
    // either sends, because earlier messages are dropped silently.
    for (queue_pair, remote) in [(&mut *left, ends[1]), (&mut *right, ends[0])] {
        queue_pair.to_rtr(RtrAttributes {
            sgid_index: address.gid_index,
            path_mtu: address.mtu,
            ..RtrAttributes::new(remote)
        })?;
    }
    // RTS (ready to send) sets how long to wait for an acknowledgement, and how often to retry.
    for (queue_pair, psn) in [(left, psns[0]), (right, psns[1])] {
        queue_pair.to_rts(RtsAttributes::new(psn))?;
    }
    Ok(())
}

/// Checks the status of a completion. A failed completion has an explanation.
fn check(completion: &WorkCompletion) -> Outcome<()> {
    if completion.is_success() {
        return Ok(());
    }
    let status = completion.status();
    Err(format!("{status}. {}", status.explanation()).into())
}
