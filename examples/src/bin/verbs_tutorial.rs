//! Verbs from nothing, without Verbline's calls: two queue pairs of this process talk to each other.
//!
//! ```text
//! cargo run -p examples --bin verbs_tutorial
//! cargo run -p examples --features rdma --bin verbs_tutorial mlx5_0
//! ```
//!
//! The first part makes every object that a message needs and sends one, with 32 bits that travel beside it. The
//! second shares the receives of both queue pairs, sleeps until something comes, and hears from the device that
//! receives run short. The names are those of `libibverbs`, so its man pages are of use: `man ibv_create_qp`.
#![forbid(unsafe_code)]
// It shows its user what it does: printing is what it is for.
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

/// Two queue pairs of this process talk to each other, step by step.
#[derive(Parser)]
struct Arguments {
    /// The device: `soft`, which is there everywhere, or an RDMA device such as `mlx5_0`.
    #[arg(default_value = "soft")]
    device: String,
}

/// Bytes of one piece of memory: far more than a message here.
const SLOT_LEN: usize = 256;

/// How long something may take that is on its way. Only a mistake takes longer.
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
    // Before anything else, in a program that may fork: kernels before 5.12 need it.
    fork_init()?;
    println!("Devices of this machine:");
    for device in devices() {
        println!(
            "  {} ({}), GUID {}",
            device.name, device.transport, device.guid
        );
    }

    // A context is this program's way into the device. Everything else is made from it.
    let context = Context::open(name)?;
    // Queue pairs send from a port, and from one of its addresses (GIDs). Which one is a science on machines
    // with several networks; this asks for the best.
    let address = context.choose_address(AddressWish::default())?;
    println!("\nOpened {name}: {address}");

    one_message(&context, &address)?;
    many_messages(&context, &address)
}

/// A message from one queue pair to the other.
fn one_message(context: &Context, address: &PortAddress) -> Outcome<()> {
    println!("\n== One message");

    // What belongs together is in one protection domain: a queue pair uses memory of its own domain only.
    let domain = context.alloc_pd()?;

    // The device reads and writes memory by itself, so it has to know it beforehand, and to be permitted:
    // LOCAL_WRITE for what it receives into. A slot is a piece of it, and the right to touch it.
    let region = domain.register(2 * SLOT_LEN, Access::LOCAL_WRITE)?;
    let mut slots = region.into_slots(SLOT_LEN)?;

    // Whatever ends is reported in a completion queue. It has to have room for all that can be under way, or it
    // fails: here for one send and one receive of each queue pair.
    let mut completions = context.create_cq(4)?;

    // A queue pair is a queue of sends and a queue of receives.
    let config = QueuePairConfig {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..QueuePairConfig::new(&completions, &completions)
    };
    let mut left = domain.create_qp(config)?;
    let mut right = domain.create_qp(config)?;
    connect(&mut left, &mut right, address)?;
    println!("{} and {} are connected", left.qp_num(), right.qp_num());

    // Receives come first: a message that finds none is refused ("receiver not ready"). Posting moves the slot
    // into the queue, so that nobody can look at its bytes while the device may write them.
    right.post_recv(&mut slots, 1)?;

    // Now the message. It is `signaled`: a send that is not does not show in the completion queue.
    let mut slot = slots.pop().ok_or("a region of two slots")?;
    let text = b"hello, verbs";
    slot[..text.len()].copy_from_slice(text);
    let message = Element::new(slot, text.len()).map_err(|_| "the text fits a slot")?;
    left.post_one(WorkRequest::send_with_imm(message, 0xfeed).signaled())
        .map_err(|(_, reason)| reason)?;

    // Two things end: the send here, and the receive there. Polling never sleeps; this program's second part does.
    let mut ended = Vec::new();
    while ended.len() < 2 {
        completions.poll(&mut ended, 2)?;
    }
    for completion in ended {
        check(&completion)?;
        // The completion says which request it is of, and is the key to its memory: that comes back by claiming.
        if completion.opcode() == Some(CompletionOpcode::Receive) {
            let imm = completion.imm().ok_or("the message had an immediate")?;
            let (slot, len) = right.claim_recv(completion)?;
            let text = String::from_utf8_lossy(&slot[..len]);
            println!("received {len} bytes, '{text}', with the immediate {imm:#x}");
        } else {
            left.complete_send(completion, &mut |slot| slots.push(slot))?;
            println!("the send is complete, and its slot is back");
        }
    }

    // What a queue pair says of itself depends on its state. In RTS that is most of it.
    println!("\n{} says:\n{}", left.qp_num(), left.query()?);
    // Dropping the objects destroys them, children first, whatever the order.
    Ok(())
}

/// Messages into receives that queue pairs share, to a thread that sleeps; and an event when receives run short.
fn many_messages(context: &Context, address: &PortAddress) -> Outcome<()> {
    /// Receives at the start, and the number of them that is too few.
    const RECEIVES: usize = 8;
    const LIMIT: usize = 4;

    println!("\n== Many messages");
    let domain = context.alloc_pd()?;
    let region = domain.register(2 * RECEIVES * SLOT_LEN, Access::LOCAL_WRITE)?;
    let mut slots = region.into_slots(SLOT_LEN)?;

    // A completion channel is where a thread sleeps until a completion queue has something.
    let channel = context.create_comp_channel()?;
    let mut completions = context.create_cq_with_channel(4 * RECEIVES, &channel)?;

    // A shared receive queue gives its receives to whichever queue pair gets a message. So memory grows with
    // what comes, and not with the number of queue pairs.
    let shared = domain.create_srq(RECEIVES, 1)?;
    let config = QueuePairConfig {
        srq: Some(&shared),
        max_send_wr: RECEIVES,
        ..QueuePairConfig::new(&completions, &completions)
    };
    let mut left = domain.create_qp(config)?;
    let mut right = domain.create_qp(config)?;
    connect(&mut left, &mut right, address)?;

    // How many receives are left cannot be asked, but one can be told: this arms an asynchronous event for when
    // there are fewer than the limit. First the receives, then the limit.
    shared.post_recv(&mut slots, RECEIVES)?;
    shared.arm_limit(LIMIT)?;
    println!("{RECEIVES} receives are posted for both, and fewer than {LIMIT} are too few");

    // The left one sends from a thread of its own, with pauses: this thread sleeps meanwhile. What it uses is its
    // own: no lock is needed, and the compiler would not let two threads post to one queue pair.
    let mut received = 0;
    let mut ended = Vec::new();
    let texts: [&[u8]; 3] = [b"one", b"two", b"three"];
    let slots_of_left = slots.split_off(slots.len() - texts.len());
    let sender = std::thread::spawn(move || {
        for (slot, text) in slots_of_left.into_iter().zip(texts) {
            std::thread::sleep(Duration::from_millis(20));
            // Not signaled: it does not show when it ends. A later completion covers it, and brings its slot back.
            send(&mut left, slot, text, false).map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(left)
    });
    while received < texts.len() {
        // Arm, then look once more, then sleep: what came before the arming raises no event.
        completions.arm(false)?;
        if completions.poll(&mut ended, 16)? == 0 {
            let queue = channel.wait(Some(PATIENCE))?.ok_or("no completion came")?;
            println!("woken: completion queue {queue} has something");
            completions.poll(&mut ended, 16)?;
        }
        for completion in ended.drain(..) {
            received += 1;
            slots.push(claim(&shared, completion)?);
        }
    }
    let mut left = sender.join().map_err(|_| "the sender panicked")??;

    // The limit's event comes when the receives become few.
    println!("\nNow two more, and nothing is posted again");
    for text in [&b"four"[..], b"five"] {
        let slot = slots.pop().ok_or("all slots are in use")?;
        send(&mut left, slot, text, true)?;
        // The message there, and the send here: it covers those before it, so that their slots come back, too.
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
    // Events that belong to no request are read from the context; a larger program has a thread for it. This layer
    // acknowledges an event when it is taken, so that nothing waits for it when it is destroyed.
    loop {
        let event = context.get_async_event(Some(PATIENCE))?;
        match event.ok_or("no asynchronous event came")? {
            AsyncEvent::SrqLimitReached { srq } if srq == shared.number() => break,
            // The device may have had something else to say.
            other => println!(
                "event {}: {}",
                other.verbs_name(),
                other.explanation().meaning
            ),
        }
    }
    println!(
        "the device says that receives run short: {} are left",
        RECEIVES - received
    );
    // It says so once. Post what is missing, then arm the limit again.
    shared.post_recv(&mut slots, received)?;
    shared.arm_limit(LIMIT)?;
    println!("{received} receives were posted again, and the limit of {LIMIT} is armed");
    Ok(())
}

/// Takes a receive out of the shared queue: which queue pair got it, the completion says.
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
    let message = Element::new(slot, text.len()).map_err(|_| "the text fits a slot")?;
    let request = WorkRequest::send(message);
    let request = if signaled {
        request.signaled()
    } else {
        request
    };
    from.post_one(request).map_err(|(_, reason)| reason)?;
    Ok(())
}

/// Brings both queue pairs from RESET to RTS, each connected to the other.
///
/// Here both are in one process, and tell each other by variables what programs on two hosts tell by a TCP
/// connection or by rdma_cm: address, queue pair number, and the first sequence number.
fn connect(left: &mut QueuePair, right: &mut QueuePair, address: &PortAddress) -> Outcome<()> {
    // Any 24 bits do. In earnest they are random, so that packets of an old connection are not taken for new ones.
    let psns = [Psn::new(0x00_1234), Psn::new(0x00_abcd)];
    let endpoint = |queue_pair: &QueuePair, psn| RemoteEndpoint {
        gid: address.gid,
        lid: address.lid,
        qp_num: queue_pair.qp_num(),
        psn,
    };
    let ends = [endpoint(left, psns[0]), endpoint(right, psns[1])];
    // INIT: on a port, with what peers may do to this side's memory (nothing). It takes receives from here on.
    for queue_pair in [&mut *left, &mut *right] {
        queue_pair.to_init(address.port, Access::NONE)?;
    }
    // RTR, ready to receive: who the peer is, and how packets get there. Both have to be here before anything is
    // sent, since whatever comes earlier is dropped silently.
    for (queue_pair, remote) in [(&mut *left, ends[1]), (&mut *right, ends[0])] {
        queue_pair.to_rtr(RtrAttributes {
            sgid_index: address.gid_index,
            path_mtu: address.mtu,
            ..RtrAttributes::new(remote)
        })?;
    }
    // RTS, ready to send: how long to wait for an answer, and how often to try again.
    for (queue_pair, psn) in [(left, psns[0]), (right, psns[1])] {
        queue_pair.to_rts(RtsAttributes::new(psn))?;
    }
    Ok(())
}

/// Every completion has a status, and one that failed has an explanation.
fn check(completion: &WorkCompletion) -> Outcome<()> {
    if completion.is_success() {
        return Ok(());
    }
    let status = completion.status();
    Err(format!("{status}. {}", status.explanation()).into())
}
