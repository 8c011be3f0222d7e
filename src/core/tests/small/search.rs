//! Every state that can be reached, the nearest first: so what is found is found on a shortest way.
//!
//! A state that was met is known by 64 bits of its hash. In a million runs of a million states, one
//! state or none is left out because another one has the same hash.

use std::collections::{BTreeMap, HashSet};

use super::node::Deed;
use super::{Action, World, hash_of};

/// From one in so many states it is tried whether the cell can be served again.
const RECOVERED_OF: u64 = 32;

/// What a search has met.
pub struct Found {
    pub states: usize,
    /// Actions on the longest of the shortest ways.
    pub depth: usize,
    /// What nodes did, and how often.
    pub deeds: BTreeMap<&'static str, u64>,
    /// The first thing that went wrong, and what led to it.
    pub violation: Option<(String, Vec<String>)>,
}

/// Takes every action in every state.
pub fn search(start: World) -> Found {
    let mut found = Found { states: 1, depth: 0, deeds: BTreeMap::new(), violation: None };
    let mut known = HashSet::from([hash_of(&start)]);
    // How each state was met first: from which one, by which action.
    let mut ways: Vec<(u32, Action)> = vec![(0, Action::TimePasses)];
    let mut layer = vec![(start.clone(), 0)];
    while !layer.is_empty() {
        let mut next = vec![];
        for (world, number) in layer {
            for action in world.actions() {
                let mut after = world.clone();
                let result = after.act(action).and_then(|deeds| {
                    let hash = hash_of(&after);
                    let is_new = known.insert(hash);
                    if is_new && hash % RECOVERED_OF == 0 && !after.recovers() {
                        return Err("the cell is never served again".into());
                    }
                    Ok((deeds, is_new))
                });
                match result {
                    Ok((deeds, is_new)) => {
                        for deed in &deeds {
                            *found.deeds.entry(deed.word()).or_default() += 1;
                        }
                        if is_new {
                            ways.push((number, action));
                            next.push((after, u32::try_from(ways.len() - 1).expect("fewer")));
                        }
                    }
                    Err(violation) => {
                        ways.push((number, action));
                        found.violation = Some((violation, retell(start, &ways)));
                        found.states = ways.len();
                        return found;
                    }
                }
            }
        }
        found.depth += 1;
        layer = next;
    }
    found.states = ways.len();
    found
}

/// The way to the state that was met last, action by action.
fn retell(mut world: World, ways: &[(u32, Action)]) -> Vec<String> {
    let mut actions = vec![];
    let mut at = ways.len() - 1;
    while at > 0 {
        let (from, action) = ways[at];
        actions.push(action);
        at = usize::try_from(from).expect("32 bits");
    }
    let tell = |action: &Action| {
        let told = world
            .act(*action)
            .map(|deeds| deeds.iter().map(Deed::to_string).collect::<Vec<_>>().join(", "));
        format!("{:>6.2} s  {action:?}  {}", world.seconds(), told.unwrap_or_else(|what| what))
    };
    actions.iter().rev().map(tell).collect()
}
