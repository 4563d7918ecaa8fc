//! Who calls whom.

use rpc_core::testing::Random;

/// Processes, and who connects to whom.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) processes: usize,
    /// Client and server.
    pub(crate) edges: Vec<(usize, usize)>,
}

/// Clients of the widest fan-in, and servers of the widest fan-out.
const WIDEST: u64 = 64;
/// The same in most seeds, which should be quick.
const NARROW: u64 = 6;

impl Topology {
    pub(crate) fn random(random: &Random) -> Self {
        let wide = random.happens(20);
        let some =
            |least: u64| least + random.below(if wide { WIDEST } else { NARROW } - least + 1);
        match random.below(6) {
            0 => Self::of(2, [(0, 1)]),
            1 => Self::star(some(2) as usize, |leaf| (leaf, 0)),
            2 => Self::star(some(2) as usize, |leaf| (0, leaf)),
            3 => {
                let links = 1 + random.below(5) as usize;
                Self::of(links + 1, (0..links).map(|link| (link, link + 1)))
            }
            4 => {
                let processes = 2 + random.below(4) as usize;
                Self::of(processes, (0..processes).map(|p| (p, (p + 1) % processes)))
            }
            _ => {
                let processes = 2 + random.below(NARROW - 1);
                let mut edges = Vec::new();
                for _ in 0..1 + random.below(2 * processes) {
                    let client = random.below(processes);
                    let server = (client + 1 + random.below(processes - 1)) % processes;
                    edges.push((client as usize, server as usize));
                }
                Self::of(processes as usize, edges)
            }
        }
    }

    fn of(processes: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let edges = edges.into_iter().collect();
        Self { processes, edges }
    }

    fn star(leaves: usize, edge: impl Fn(usize) -> (usize, usize)) -> Self {
        Self::of(leaves + 1, (1..=leaves).map(edge))
    }

    /// Connections that a process has at a time.
    pub(crate) fn degree(&self, process: usize) -> usize {
        let touches = |(client, server): &&(usize, usize)| *client == process || *server == process;
        self.edges.iter().filter(touches).count()
    }

    /// Whether calls that go on can come back to where they were.
    ///
    /// Such calls hold places on connections while they wait for others: as many of them as there are
    /// places would wait for each other for ever.
    pub(crate) fn is_cyclic(&self) -> bool {
        let mut left = self.edges.clone();
        loop {
            let before = left.len();
            // Calls that end where they arrive hold nothing while they wait.
            let goes_on: Vec<_> = left.iter().map(|(client, _)| *client).collect();
            left.retain(|(_, server)| goes_on.contains(server));
            if left.len() == before {
                return before > 0;
            }
        }
    }

    /// A way that a call can take: one edge, and then, now and then, on from where that led.
    pub(crate) fn way(&self, random: &Random) -> Vec<usize> {
        let mut way = vec![random.below(self.edges.len() as u64) as usize];
        while way.len() < MAX_HOPS && random.happens(400) {
            let (_, at) = self.edges[way[way.len() - 1]];
            let onwards: Vec<_> = (0..self.edges.len())
                .filter(|e| self.edges[*e].0 == at)
                .collect();
            if onwards.is_empty() {
                break;
            }
            way.push(onwards[random.below(onwards.len() as u64) as usize]);
        }
        way
    }
}

/// Hops of the longest way.
const MAX_HOPS: usize = 5;
