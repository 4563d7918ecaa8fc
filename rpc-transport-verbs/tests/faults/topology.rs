//! The processes of a world and their connections.

use rpc_core_testing::Random;

/// The processes, and which of them connect to which.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) processes: usize,
    /// Client and server of each connection.
    pub(crate) edges: Vec<(usize, usize)>,
}

/// Number of clients in the widest fan-in, and of servers in the widest fan-out.
const WIDEST: u64 = 64;
/// The same for most seeds, which should be fast.
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

    /// Returns the number of connections that a process has at a time.
    pub(crate) fn degree(&self, process: usize) -> usize {
        let touches = |(client, server): &&(usize, usize)| *client == process || *server == process;
        self.edges.iter().filter(touches).count()
    }

    /// Returns true if a forwarded call can return to a process that it has passed.
    ///
    /// Forwarded calls occupy in-flight capacity on connections while they wait for other calls. As
    /// many of them as the in-flight limit would wait for each other forever.
    pub(crate) fn is_cyclic(&self) -> bool {
        let mut left = self.edges.clone();
        loop {
            let before = left.len();
            // Calls that are not forwarded occupy nothing while they wait.
            let goes_on: Vec<_> = left.iter().map(|(client, _)| *client).collect();
            left.retain(|(_, server)| goes_on.contains(server));
            if left.len() == before {
                return before > 0;
            }
        }
    }

    /// Returns the route of a call: one edge, and sometimes more edges from where that one leads.
    pub(crate) fn route(&self, random: &Random) -> Vec<usize> {
        let mut route = vec![random.below(self.edges.len() as u64) as usize];
        while route.len() < MAX_HOPS && random.happens(400) {
            let (_, at) = self.edges[route[route.len() - 1]];
            let next_edges: Vec<_> = (0..self.edges.len())
                .filter(|e| self.edges[*e].0 == at)
                .collect();
            if next_edges.is_empty() {
                break;
            }
            route.push(next_edges[random.below(next_edges.len() as u64) as usize]);
        }
        route
    }
}

/// Number of hops of the longest route.
const MAX_HOPS: usize = 5;
