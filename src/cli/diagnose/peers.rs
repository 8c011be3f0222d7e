//! The nodes that were asked for, and what they answered.
//!
//! This version has no links between nodes, so no node is asked anything: a lease is all that is
//! known of one.

use celld_core::node::NodeId;
use serde_json::{Value, json};

use super::leases::{Leases, State};
use super::report::Finding;

/// Why no peer was probed.
pub(super) const NOT_PROBED: &str = "not probed: this version has no links between nodes";

/// What is known of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Peers {
    /// Those of `--peer`.
    pub(super) asked: Vec<NodeId>,
}

impl Peers {
    pub(super) fn json(&self) -> Value {
        let asked: Vec<_> = self.asked.iter().map(NodeId::as_str).collect();
        json!({ "asked": asked, "probed": [], "why": NOT_PROBED })
    }

    /// Who asked for a peer must not take silence for health.
    pub(super) fn judge(&self, leases: Option<&Leases>, findings: &mut Vec<Finding>) {
        let Some(leases) = leases else { return };
        for node in &self.asked {
            findings.push(match leases.of(node).map(|seen| &seen.state) {
                Some(State::Live { .. }) => Finding::fault(
                    "peer.not-probed",
                    format!("{node} has a live lease, and was {NOT_PROBED}"),
                    "leave out --peer: the leases are all that can be told",
                ),
                Some(State::Expired { since }) => Finding::fault(
                    "peer.expired",
                    format!("the lease of {node} expired {} s ago", since.as_secs()),
                    "start it, or look into its log for SELF-FENCE",
                ),
                Some(State::Malformed(_) | State::Unread(_)) | None => Finding::fault(
                    "peer.unknown",
                    format!("{node} has no lease in this bucket that can be read"),
                    "check the name, which is its --node, and the bucket",
                ),
            });
        }
    }
}
