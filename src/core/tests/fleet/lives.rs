//! How processes come and go: on which state directory, and under which name.

use celld_core::node::{DiskId, NodeId, SessionId};
use celld_core::ownership::Owner;

use super::border::Input;
use super::clock::Clock;
use super::process::{Birth, Process};
use super::{SECOND, World};

/// A machine: the name of its node, and the state directory that is in it.
pub struct Slot {
    name: String,
    disk: usize,
}

/// A state directory: the sessions that ran on it, and the process that has locked it.
#[derive(Clone, Default)]
pub struct Disk {
    sessions: Vec<SessionId>,
    user: Option<usize>,
}

impl Slot {
    pub fn new(number: usize) -> Self {
        Self { name: format!("n{number}"), disk: number }
    }
}

impl World {
    /// A new process in this slot. `is_twin`: although one lives, on a directory of its own.
    pub fn start(&mut self, slot: usize, is_twin: bool) {
        let node = NodeId::parse(&self.slots[slot].name).expect("a good name");
        if !is_twin && self.processes.iter().any(|p| p.is_well() && *p.node() == node) {
            return;
        }
        let disk = if is_twin { self.other_disk(slot) } else { self.slots[slot].disk };
        if let Some(user) = self.disks[disk].user {
            // Swapped, and still locked by the process that runs on it.
            if !self.processes[user].is_well() && self.slots_of[user] != slot {
                self.disks.push(Disk::default());
                self.slots[slot].disk = self.disks.len() - 1;
            }
            return self.at(self.now + SECOND, super::Happening::Start(slot));
        }
        let index = self.processes.len();
        let session = format!("{:032x}", (index as u128 + 1) << 64);
        let session = SessionId::parse(&session).expect("a good session");
        let drift = i64::try_from(self.draws.range(0, 10_000)).expect("small") - 5_000;
        let skew = i64::try_from(self.draws.range(0, 400)).expect("small") - 200;
        let ended = self.disks[disk].sessions.clone();
        self.disks[disk].sessions.push(session.clone());
        self.disks[disk].user = Some(index);
        self.processes.push(Process::new(Birth {
            index,
            owner: Owner { node, session },
            disk: DiskId::parse(&format!("{disk:032x}")).expect("a good disk"),
            ended,
            clock: Clock::new(self.now, drift, skew),
            ids: self.ids.clone(),
            broken: self.broken,
        }));
        self.slots_of.push(slot);
        self.input(index, Input::Started);
    }
    /// A fresh directory, or a copy of the one that is in use.
    fn other_disk(&mut self, slot: usize) -> usize {
        self.met.count("twins", 1);
        let copied = self.disks[self.slots[slot].disk].clone();
        let disk = if self.faults.copied { Disk { user: None, ..copied } } else { Disk::default() };
        self.disks.push(disk);
        self.disks.len() - 1
    }
    /// A process is gone; another one follows, and not always as it was.
    pub fn stop(&mut self, index: usize) {
        self.processes[index].is_alive = false;
        self.hang_up(index);
        for disk in &mut self.disks {
            disk.user = disk.user.filter(|user| *user != index);
        }
        let slot = self.slots_of[index];
        if self.draws.chance(self.faults.moved) {
            self.change(slot, index);
        }
        let again = self.now + self.schedule.range(SECOND / 10, 15 * SECOND);
        self.at(again, super::Happening::Start(slot));
    }
    fn change(&mut self, slot: usize, index: usize) {
        match self.draws.range(0, 3) {
            0 => {
                self.met.count("disks wiped", 1);
                self.disks.push(Disk::default());
                self.slots[slot].disk = self.disks.len() - 1;
            }
            1 => {
                self.met.count("disks swapped", 1);
                let other = usize::try_from(self.draws.range(0, self.slots.len() as u64));
                let other = other.expect("small");
                let disk = self.slots[slot].disk;
                self.slots[slot].disk = std::mem::replace(&mut self.slots[other].disk, disk);
            }
            _ => {
                self.met.count("nodes renamed", 1);
                self.slots[slot].name = format!("n{slot}-{index}");
            }
        }
    }
}
