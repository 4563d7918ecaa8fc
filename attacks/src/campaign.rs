//! [`Campaign`]: attacks in turn with their controls, and whether one did harm.
//!
//! For each attack there are a server, a good client that makes a call each millisecond, new clients
//! one after another, and the attacker: a process of another user, or a hostile process of the same
//! user. The attacker may use 5 % of a core. A control run before has a process instead that only uses
//! this share of a core.

// Printing is the purpose of this program.
#![allow(clippy::print_stdout)]

#[cfg(feature = "tls")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use benches::child::Process;
use benches::service::ServerArgs;
use benches::spin::handlers_begun;
use benches::{Outcome, cores, role};
use rpc_core::Intents;
use verbline_load::unit::Unit;

use crate::attack::{Attack, Target};
use crate::dead_calls;
use crate::devices::ClientDevice;
#[cfg(feature = "tls")]
use crate::devices::Pem;
use crate::limit::Limiter;
use crate::role::Role;
use crate::victims::{SERVED, Seen};
use crate::watch::{Watch, resident_mib};

/// The device whose peers meet in shared memory.
const SOFT: &str = "soft";

/// The options of a campaign.
#[derive(clap::Args)]
pub(crate) struct Campaign {
    /// Attacks to run [default: all on the device]
    attacks: Vec<Attack>,
    /// Device of the server and of its clients: `soft` or `tcp`
    #[arg(long, default_value = SOFT)]
    device: String,
    /// Attack a server with TLS, which demands certificates
    #[cfg(feature = "tls")]
    #[arg(long)]
    tls: bool,
    /// The certificates, once they are needed
    #[cfg(feature = "tls")]
    #[arg(skip)]
    pem: OnceLock<Pem>,
    /// Runs of each attack, in turn with its control; three times as many if its times look like harm
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each run
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Share of a core that the attacker may use
    #[arg(long, default_value_t = 0.05)]
    share: f64,
}

/// Pause between two new clients.
const PAUSE: Duration = Duration::from_millis(500);

/// Pause between two looks at the server's threads.
const LOOK: Duration = Duration::from_millis(50);

/// The kinds of harm that are times of the good client.
const OF_TIME: [&str; 3] = [SLOW_CALLS, LATENCY, HIGH_LATENCY];

const SLOW_CALLS: &str = "slow calls";
const LATENCY: &str = "latency";
const HIGH_LATENCY: &str = "latency of one call in a hundred";

/// Largest median latency of the good client, in multiples of the control's.
const MOST_RATIO: f64 = 1.2;

impl Campaign {
    /// Returns true if no attack did harm.
    pub(crate) fn run(&self) -> Outcome<bool> {
        if !rustix::process::geteuid().is_root() {
            return Err(
                "only root can start processes of another user: run this program as root".into(),
            );
        }
        let time = Duration::try_from_secs_f64(self.seconds)?;
        println!(
            "each attacker may use {:.0} % of a core for {} seconds, {} times",
            self.share * 100.0,
            self.seconds,
            self.rounds.max(1)
        );
        let attacks = match self.attacks.is_empty() {
            #[cfg(feature = "tls")]
            true if self.tls => Attack::ON_TLS,
            true if self.device == SOFT => Attack::ON_SOFT,
            true => Attack::ON_TCP,
            false => &self.attacks,
        };
        let mut is_well = true;
        for &attack in attacks {
            let (line, harm) = match attack {
                Attack::Deadcalls => self.dead_calls(time)?,
                _ => self.compare(attack, time)?,
            };
            let verdict = match harm.is_empty() {
                true => "no harm".to_owned(),
                false => format!("HARM: {}", harm.join(", ")),
            };
            println!("{attack:<10} {verdict} | {line}");
            is_well &= harm.is_empty();
        }
        Ok(is_well)
    }

    /// Runs an attack in turn with its control. Returns a line, and the kinds of harm.
    fn compare(&self, attack: Attack, time: Duration) -> Outcome<(String, Vec<&'static str>)> {
        let (mut controls, mut runs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let rounds = self.rounds.max(1);
        let mut done = Vec::new();
        // On a machine with few cores the kernel delays the good client in some runs, whoever attacks. So
        // times that look like harm are judged again, with twice as many further runs.
        for further in [rounds, 2 * rounds] {
            for _ in 0..further {
                let control = self.measure(attack, false, time)?;
                let run = self.measure(attack, true, time)?;
                ratios.push(run.seen.p50.as_secs_f64() / control.seen.p50.as_secs_f64());
                controls.push(control);
                runs.push(run);
            }
            ratios.sort_unstable_by(f64::total_cmp);
            done = harm(&controls, &runs, ratios[ratios.len() / 2]);
            if done.is_empty() || !done.iter().all(|kind| OF_TIME.contains(kind)) {
                break;
            }
        }
        let ratio = ratios[ratios.len() / 2];
        let errors = sum(&runs, |seen| seen.errors);
        let slow = sum(&runs, |seen| seen.slow);
        let slow_before = sum(&controls, |seen| seen.slow);
        let refused: u32 = runs.iter().map(|run| run.refused).sum();
        let growth = runs.iter().map(|run| run.growth).max().unwrap_or_default();
        let remains = runs.iter().find(|run| run.afterwards != SERVED);
        let median = |runs: &[Measured], of| text(median(runs, of));
        let of_each = |of: fn(&Measured) -> &str| {
            let mut texts: Vec<_> = runs
                .iter()
                .map(of)
                .filter(|text| !text.is_empty())
                .collect();
            texts.dedup();
            match texts.is_empty() {
                true => "none".to_owned(),
                false => texts.join("; "),
            }
        };
        let line = format!(
            "{} runs | good client: {errors} errors, {slow} of {} calls over 10 ms (control {slow_before}), p50 \
             {} (control {}, ratio {ratio:.2}), p99 {} (control {}), max {} | new clients: {refused} of {} refused, slowest \
             {}, reasons: {} | server: blocked threads: {}; {growth} MiB more memory; afterwards: {} | \
             attacker: {}",
            runs.len(),
            sum(&runs, |seen| seen.calls + seen.errors),
            median(&runs, |seen| seen.p50),
            median(&controls, |seen| seen.p50),
            median(&runs, |seen| seen.p99),
            median(&controls, |seen| seen.p99),
            text(
                runs.iter()
                    .map(|run| run.seen.max)
                    .max()
                    .unwrap_or_default()
            ),
            runs.iter().map(|run| run.new).sum::<u32>(),
            text(runs.iter().map(|run| run.slowest).max().unwrap_or_default()),
            of_each(|run| &run.reason),
            of_each(|run| &run.blocked),
            remains.map_or(SERVED, |run| &run.afterwards),
            of_each(|run| &run.attacker),
        );
        Ok((line, done))
    }

    fn measure(&self, attack: Attack, attacks: bool, time: Duration) -> Outcome<Measured> {
        let user = attack.server();
        let (server, address) = self.start_server(attack)?;
        let memory = resident_mib(server.id())?;
        // The attacker has half a second to begin, and ends before the good client does.
        let whole = time + Duration::from_millis(500);
        let mut good = self.start_as(
            user,
            Role::Good {
                device: self.client_device(),
                address: address.clone(),
                time: whole,
                reconnects: attack == Attack::Fewfiles,
            },
        )?;
        good.read_line()?;
        let end = Instant::now() + whole;
        let mut attacker = match attacks {
            true => self.start_attacker(attack, &server, &address, time)?,
            false => self.start_as(None, Role::Idler)?,
        };
        let limiter = Limiter::start(&attacker, self.share);
        thread::sleep(Duration::from_millis(500));
        let stops = AtomicBool::new(false);
        let mut measured = thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut watch = Watch::new(server.id());
                let mut most = memory;
                // Ends with the server, too.
                while !stops.load(Ordering::Relaxed) && watch.look().is_ok() {
                    most = resident_mib(server.id()).unwrap_or_default().max(most);
                    thread::sleep(LOOK);
                }
                (watch.blocked(), watch.is_harmed(), most - memory)
            });
            let clients = self.new_clients(user, &address, end);
            let line = good.read_line().map_err(|error| error.to_string());
            stops.store(true, Ordering::Relaxed);
            let (blocked, blocks, growth) = watcher.join().map_err(|_| "the watcher panicked")?;
            let (new, refused, slowest, reason) = clients?;
            Ok::<_, Box<dyn std::error::Error>>(Measured {
                seen: Seen::from_line(&line?)?,
                new,
                refused,
                slowest,
                reason,
                blocked,
                blocks,
                growth,
                afterwards: String::new(),
                attacker: String::new(),
            })
        })?;
        if attacks {
            measured.attacker = match attacker.read_line() {
                Ok(line) => line,
                Err(error) => error.to_string(),
            };
        }
        drop((limiter, attacker));
        thread::sleep(PAUSE);
        measured.afterwards = self.call_once(user, &address)?;
        Ok(measured)
    }

    /// Runs the calls whose deadline passes while the poller is blocked.
    fn dead_calls(&self, time: Duration) -> Outcome<(String, Vec<&'static str>)> {
        let (mut server, address) = self.start_server(Attack::Deadcalls)?;
        let mut clients = self.start_attacker(Attack::Deadcalls, &server, &address, time)?;
        let line = clients.read_line()?;
        thread::sleep(PAUSE);
        let begun = handlers_begun(&mut server, dead_calls::PHASE)?;
        let mut harm = Vec::new();
        if begun > 0 {
            harm.push("handlers for nobody");
        }
        if !line.ends_with(SERVED) {
            harm.push("a call that was in time was not served");
        }
        Ok((format!("{line} | handlers begun for them: {begun}"), harm))
    }

    /// Starts a server, and returns its address, too.
    fn start_server(&self, attack: Attack) -> Outcome<(Process, String)> {
        let core = cores::Cores::choose()?.server;
        let mut args = ServerArgs::spinning(&self.device, core, &Intents::default());
        args.max_files = attack.server_files();
        let role = self.server_role(args);
        let mut server = self.start_as(attack.server(), role)?;
        let address = server.read_line()?;
        Ok((server, address))
    }

    #[cfg(feature = "tls")]
    fn server_role(&self, args: ServerArgs) -> Role {
        match self.tls {
            true => Role::Secured(args, self.pem.get_or_init(Pem::new).clone()),
            false => Role::Server(role::Role::Calls(args)),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn server_role(&self, args: ServerArgs) -> Role {
        Role::Server(role::Role::Calls(args))
    }

    /// Returns what the server's clients open.
    fn client_device(&self) -> ClientDevice {
        #[cfg(feature = "tls")]
        if self.tls {
            return ClientDevice::secured(&self.device, self.pem.get_or_init(Pem::new));
        }
        ClientDevice::plain(&self.device)
    }

    fn start_attacker(
        &self,
        attack: Attack,
        server: &Process,
        address: &str,
        time: Duration,
    ) -> Outcome<Process> {
        let target = Target {
            address: address.to_owned(),
            device: self.device.clone(),
            pid: server.id(),
        };
        let role = Role::Attacker {
            attack,
            target,
            time,
        };
        self.start_as(attack.attacker(), role)
    }

    fn start_as(&self, user: Option<u32>, role: Role) -> Outcome<Process> {
        Process::start_as(user, &role::to_args(&role)?)
    }

    /// Starts new clients one after another up to `end`. Returns their number, the number of those that
    /// were not served, the longest time of one, and the reason of the last refusal.
    fn new_clients(
        &self,
        user: Option<u32>,
        address: &str,
        end: Instant,
    ) -> Result<(u32, u32, Duration, String), String> {
        let (mut new, mut refused) = (0, 0);
        let (mut slowest, mut reason) = (Duration::ZERO, String::new());
        while Instant::now() < end {
            let began = Instant::now();
            let answer = self
                .call_once(user, address)
                .map_err(|error| error.to_string())?;
            let took = began.elapsed();
            new += 1;
            slowest = slowest.max(took);
            if answer != SERVED {
                refused += 1;
                reason = answer;
            }
            thread::sleep(PAUSE.saturating_sub(took));
        }
        Ok((new, refused, slowest, reason))
    }

    /// Starts a new client, and returns the sentence that it prints.
    fn call_once(&self, user: Option<u32>, address: &str) -> Outcome<String> {
        let device = self.client_device();
        let address = address.to_owned();
        self.start_as(user, Role::New { device, address })?
            .read_line()
    }
}

/// Growth of the server's memory, in MiB, that counts as harm.
const MOST_GROWTH: u64 = 64;

/// Returns the kinds of harm that an attack did, in these runs, beside those of its control. `ratio` is that
/// of the good client's median latencies.
fn harm(controls: &[Measured], runs: &[Measured], ratio: f64) -> Vec<&'static str> {
    let (slow, slow_before) = (sum(runs, |seen| seen.slow), sum(controls, |seen| seen.slow));
    // The kernel lets calls wait now and then, whoever attacks: over TCP, and for a core.
    let most_slow = 2 * slow_before + sum(runs, |seen| seen.calls) / 1000;
    let p99 = |runs| median(runs, |seen| seen.p99);
    let any = |of: fn(&Measured) -> bool| runs.iter().any(of);
    let kinds = [
        (any(|run| run.seen.errors > 0), "errors"),
        (slow > most_slow, SLOW_CALLS),
        (ratio > MOST_RATIO, LATENCY),
        (p99(runs) > 2 * p99(controls), HIGH_LATENCY),
        (any(|run| run.refused > 0), "new clients refused"),
        (any(|run| run.blocks), "blocked threads"),
        (any(|run| run.afterwards != SERVED), "harm remains"),
        (
            any(|run| run.attacker.contains("CHANGED")),
            "a file was changed",
        ),
        (
            any(|run| run.attacker.contains("BELIEVED")),
            "a lie was believed",
        ),
        (any(|run| run.growth > MOST_GROWTH), "memory"),
    ];
    let done = kinds.into_iter().filter(|(is_so, _)| *is_so);
    done.map(|(_, kind)| kind).collect()
}

fn median(runs: &[Measured], of: fn(&Seen) -> Duration) -> Duration {
    let mut times: Vec<_> = runs.iter().map(|run| of(&run.seen)).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn sum(runs: &[Measured], of: fn(&Seen) -> u64) -> u64 {
    runs.iter().map(|run| of(&run.seen)).sum()
}

/// What a run showed.
struct Measured {
    seen: Seen,
    /// New clients.
    new: u32,
    /// Of these, clients that were not served.
    refused: u32,
    /// Longest time of a new client from its start to its answer or refusal.
    slowest: Duration,
    /// Reason of the last refusal.
    reason: String,
    /// Threads of the server that were blocked, and where.
    blocked: String,
    /// True if one of them never has to wait for a client.
    blocks: bool,
    /// Largest growth of the server's memory in MiB.
    growth: u64,
    /// What a new client saw after the attacker had left.
    afterwards: String,
    /// What the attacker saw.
    attacker: String,
}

fn text(time: Duration) -> String {
    Unit::Nanoseconds.text(time.as_nanos() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> Measured {
        Measured {
            seen: Seen {
                calls: 4000,
                errors: 0,
                slow: 1,
                p50: Duration::from_micros(20),
                p99: Duration::from_micros(60),
                max: Duration::from_millis(12),
            },
            new: 8,
            refused: 0,
            slowest: Duration::from_millis(30),
            reason: String::new(),
            blocked: String::new(),
            blocks: false,
            growth: 1,
            afterwards: SERVED.to_owned(),
            attacker: "200 connections with one call".to_owned(),
        }
    }

    /// Returns the verdict about two runs of which the second is changed.
    fn verdict(change: fn(&mut Measured)) -> Vec<&'static str> {
        let (controls, mut runs) = ([quiet(), quiet()], [quiet(), quiet()]);
        change(&mut runs[1]);
        harm(&controls, &runs, 1.0)
    }

    #[test]
    fn each_kind_of_harm_in_one_run_is_a_verdict() {
        assert!(verdict(|_| ()).is_empty());
        assert_eq!(verdict(|run| run.refused = 1), ["new clients refused"]);
        assert_eq!(verdict(|run| run.seen.errors = 1), ["errors"]);
        assert_eq!(verdict(|run| run.seen.slow = 20), ["slow calls"]);
        assert_eq!(verdict(|run| run.blocks = true), ["blocked threads"]);
        assert_eq!(verdict(|run| run.growth = 65), ["memory"]);
        assert_eq!(verdict(|run| run.afterwards.clear()), ["harm remains"]);
        let lie = |run: &mut Measured| run.attacker = "BELIEVED: garbage".to_owned();
        assert_eq!(verdict(lie), ["a lie was believed"]);
        let change = |run: &mut Measured| run.attacker = "CHANGED".to_owned();
        assert_eq!(verdict(change), ["a file was changed"]);
        assert_eq!(harm(&[quiet()], &[quiet()], 1.3), ["latency"]);
    }
}
