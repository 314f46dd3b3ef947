//! A cluster of servers: three primaries, and a replica of each if that is asked for.

use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult};

use super::server::Server;

/// How long a cluster may take to agree.
const PATIENCE: Duration = Duration::from_secs(30);
const PRIMARIES: u16 = 3;
const SLOTS: u16 = 16384;

pub(crate) struct Cluster {
    /// The primaries in the order of their slots, and then a replica of each.
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start(replicas: bool) -> Self {
        let count = PRIMARIES * if replicas { 2 } else { 1 };
        // A node that is busy must not be taken for dead, on a machine that has more to do than it can.
        let timeout = if replicas { "2000" } else { "60000" };
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", timeout];
        let options = [&options[..], &["--cluster-replica-validity-factor", "0"]].concat();
        let nodes: Vec<Server> = (0..count).map(|_| Server::start(&options)).collect();
        let cluster = Self { nodes };
        for index in 0..PRIMARIES {
            let slots: Vec<u16> = (0..SLOTS).filter(|slot| owner(*slot) == index).collect();
            let node = usize::from(index);
            let () = cluster.tell(node, redis::cmd("CLUSTER").arg("ADDSLOTS").arg(&slots)).unwrap();
            let epoch = index + 1;
            let () = cluster.tell(node, redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(epoch)).unwrap();
        }
        for node in &cluster.nodes[1..] {
            let (host, port) = (node.address().ip().to_string(), node.address().port());
            let () = cluster.tell(0, redis::cmd("CLUSTER").arg("MEET").arg(host).arg(port)).unwrap();
        }
        cluster.until("known to all", |cluster| {
            (0..cluster.nodes.len())
                .all(|node| cluster.info(node, "cluster_known_nodes") == count.to_string())
        });
        for replica in usize::from(PRIMARIES)..cluster.nodes.len() {
            let of = cluster.id(replica - usize::from(PRIMARIES));
            cluster.until("a replica", |cluster| {
                let told: RedisResult<()> =
                    cluster.tell(replica, redis::cmd("CLUSTER").arg("REPLICATE").arg(&of));
                told.is_ok()
            });
        }
        cluster.until("in sync", |cluster| {
            (0..cluster.nodes.len()).all(|node| {
                let role: String = cluster.tell(node, redis::cmd("INFO").arg("replication")).unwrap();
                cluster.info(node, "cluster_state") == "ok"
                    && (node < usize::from(PRIMARIES) || role.contains("master_link_status:up"))
                    && (!replicas || node >= usize::from(PRIMARIES) || role.contains("connected_slaves:1"))
            })
        });
        cluster
    }

    /// Adds a node that has no slots, and says which it is.
    pub(crate) fn add(&mut self) -> usize {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "60000"];
        self.nodes.push(Server::start(&options));
        let new = self.nodes.len() - 1;
        // Two nodes that chose one epoch would have to find out.
        let () = self.tell(new, redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(new + 1)).unwrap();
        let address = self.nodes[new].address();
        let mut meet = redis::cmd("CLUSTER");
        let () = self.tell(0, meet.arg("MEET").arg(address.ip().to_string()).arg(address.port())).unwrap();
        self.until("known to all", |cluster| {
            (0..cluster.nodes.len()).all(|node| {
                cluster.info(node, "cluster_known_nodes") == cluster.nodes.len().to_string()
                    && cluster.info(node, "cluster_state") == "ok"
            })
        });
        new
    }

    /// The address of one node of it, which is enough.
    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://{}", self.nodes[1].address())
    }

    pub(crate) fn tell<T: FromRedisValue>(&self, node: usize, command: &redis::Cmd) -> RedisResult<T> {
        command.query(&mut self.nodes[node].connection())
    }

    pub(crate) fn id(&self, node: usize) -> String {
        self.tell(node, redis::cmd("CLUSTER").arg("MYID")).unwrap()
    }

    fn info(&self, node: usize, field: &str) -> String {
        let info: String = self.tell(node, redis::cmd("CLUSTER").arg("INFO")).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().to_owned()
    }

    pub(crate) fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is(self) {
            assert!(start.elapsed() < PATIENCE, "the cluster is not {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The keys of limiters that a node keeps.
    pub(crate) fn keys(&self, node: usize) -> Vec<String> {
        self.tell(node, redis::cmd("KEYS").arg("{tidegate:*")).unwrap()
    }

    /// The slot of a key, as a server says.
    pub(crate) fn slot(&self, key: &str) -> u16 {
        self.tell(0, redis::cmd("CLUSTER").arg("KEYSLOT").arg(key)).unwrap()
    }

    /// A name whose key is in this slot.
    pub(crate) fn name_in(&self, slot: u16, key: impl Fn(&str) -> String) -> String {
        let mut connection = self.nodes[0].connection();
        for thousand in 0..1000 {
            let names: Vec<String> = (0..1000).map(|number| format!("name {thousand} {number}")).collect();
            let mut ask = redis::pipe();
            for name in &names {
                ask.cmd("CLUSTER").arg("KEYSLOT").arg(key(name));
            }
            let slots: Vec<u16> = ask.query(&mut connection).unwrap();
            if let Some(found) = slots.iter().position(|of| *of == slot) {
                return names[found].clone();
            }
        }
        panic!("no name is in slot {slot}")
    }

    /// Says on `node` what becomes of a slot.
    pub(crate) fn set_slot(&self, node: usize, slot: u16, state: &str, other: usize) {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SETSLOT").arg(slot).arg(state).arg(self.id(other));
        let () = self.tell(node, &command).unwrap();
    }

    /// Moves one key.
    pub(crate) fn migrate(&self, key: &str, from: usize, to: usize) {
        let to = self.nodes[to].address();
        let mut command = redis::cmd("MIGRATE");
        command.arg(to.ip().to_string()).arg(to.port()).arg(key).arg(0).arg(5000);
        let _: String = self.tell(from, &command).unwrap();
    }
}

/// The primary that has a slot at first.
pub(crate) fn owner(slot: u16) -> u16 {
    slot / (SLOTS / PRIMARIES + 1)
}
