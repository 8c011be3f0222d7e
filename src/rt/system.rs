//! What the system offers, for a person who asks: more than the yes or no of the pre-flight.
//!
//! Units: bytes and counts, as the system states them.

use std::io;

use io_uring::{IoUring, Parameters, Probe, opcode};

use crate::executor::RING_DEPTH;
use crate::preflight::{limit_of, ring_advice};

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Memory that may be locked.
    pub locked_memory: Limit,
    /// Files and sockets that may be open at once.
    pub open_files: Limit,
    /// A ring as an executor opens three of them, or what to do so that it can.
    pub ring: Result<Ring, String>,
}

/// A limit of this process. `None`: there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What is in force.
    pub soft: Option<u64>,
    /// What it can be raised to.
    pub hard: Option<u64>,
}

/// What a ring of io_uring can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Submissions that it holds.
    pub submissions: u32,
    /// Completions that it holds.
    pub completions: u32,
    /// Features of the kernel, by the names of its manual.
    pub features: Vec<&'static str>,
    /// Operations that executors use and the kernel does not offer.
    pub missing: Vec<&'static str>,
}

/// Asks the system. Opens one ring and closes it again.
pub fn inspect() -> System {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    System {
        kernel: kernel.trim().to_owned(),
        locked_memory: limit_or_none(libc::RLIMIT_MEMLOCK),
        open_files: limit_or_none(libc::RLIMIT_NOFILE),
        ring: ring().map_err(|error| ring_advice(&error)),
    }
}

fn limit_or_none(which: libc::__rlimit_resource_t) -> Limit {
    let shown = |value| (value != libc::RLIM_INFINITY).then_some(value);
    // Reading one's own limits cannot fail but for a wrong number.
    limit_of(which).map_or(Limit { soft: None, hard: None }, |limit| Limit {
        soft: shown(limit.rlim_cur),
        hard: shown(limit.rlim_max),
    })
}

fn ring() -> io::Result<Ring> {
    let ring = IoUring::new(u32::try_from(RING_DEPTH).unwrap_or(u32::MAX))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let parameters = ring.params();
    Ok(Ring {
        submissions: parameters.sq_entries(),
        completions: parameters.cq_entries(),
        features: features(parameters),
        missing: OPERATIONS
            .iter()
            .filter(|(code, _)| !probe.is_supported(*code))
            .map(|(_, name)| *name)
            .collect(),
    })
}

/// What executors submit.
const OPERATIONS: &[(u8, &str)] = &[
    (opcode::Nop::CODE, "nop"),
    (opcode::Readv::CODE, "readv"),
    (opcode::Writev::CODE, "writev"),
    (opcode::Fsync::CODE, "fsync"),
    (opcode::ReadFixed::CODE, "read_fixed"),
    (opcode::WriteFixed::CODE, "write_fixed"),
    (opcode::PollAdd::CODE, "poll_add"),
    (opcode::PollRemove::CODE, "poll_remove"),
    (opcode::SendMsg::CODE, "sendmsg"),
    (opcode::RecvMsg::CODE, "recvmsg"),
    (opcode::Timeout::CODE, "timeout"),
    (opcode::TimeoutRemove::CODE, "timeout_remove"),
    (opcode::Accept::CODE, "accept"),
    (opcode::LinkTimeout::CODE, "link_timeout"),
    (opcode::Connect::CODE, "connect"),
    (opcode::Fallocate::CODE, "fallocate"),
    (opcode::OpenAt::CODE, "openat"),
    (opcode::Close::CODE, "close"),
    (opcode::Statx::CODE, "statx"),
    (opcode::Read::CODE, "read"),
    (opcode::Write::CODE, "write"),
    (opcode::Send::CODE, "send"),
    (opcode::Recv::CODE, "recv"),
];

fn features(parameters: &Parameters) -> Vec<&'static str> {
    [
        (parameters.is_feature_single_mmap(), "single_mmap"),
        (parameters.is_feature_nodrop(), "nodrop"),
        (parameters.is_feature_submit_stable(), "submit_stable"),
        (parameters.is_feature_rw_cur_pos(), "rw_cur_pos"),
        (parameters.is_feature_fast_poll(), "fast_poll"),
        (parameters.is_feature_ext_arg(), "ext_arg"),
        (parameters.is_feature_native_workers(), "native_workers"),
    ]
    .into_iter()
    .filter_map(|(is_there, name)| is_there.then_some(name))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_runs_executors_offers_all_that_they_submit() {
        let system = inspect();
        assert!(system.kernel.starts_with(|c: char| c.is_ascii_digit()), "{system:?}");
        assert!(system.open_files.soft.is_none_or(|files| files > 0));
        let ring = system.ring.expect("the executors of the other tests have rings");
        assert!(ring.submissions as usize >= RING_DEPTH && ring.completions > ring.submissions);
        assert_eq!(ring.missing, [""; 0]);
        assert!(ring.features.contains(&"nodrop"), "{ring:?}");
    }
}
