//! Which node takes a cell that nobody owns, which one scans, and which cells move when the load is
//! uneven.
//!
//! Everything is decided from lease records. Nodes may see different ones and disagree: it costs a
//! forwarded request, never more, as the node that a cell is sent to takes it.
//! Units: loads are those of [`Load`]; pressure is in thousandths.
//! Source: "Weighted distributed hash tables" (Schindelhauer, Schomaker, SPAA 2005): the node with
//! the least -log(hash) / weight wins in proportion to its weight, and a node that comes or goes
//! moves only its own share.

use crate::cell::CellId;
use crate::lease::Load;
use crate::node::NodeId;

/// A node with this pressure takes nothing more if any other can.
const PRESSURE_MAX: u64 = 950;

/// The share of cells that a node may have above the mean and still take what enters there, in
/// thousandths of the mean: a cell that is where its clients enter is not forwarded.
const STICKY_PERMILLE: u64 = 1_100;

/// From this share on, idle cells are given away. Far above the other limit, so that what was given
/// away does not come back, and nothing swings.
const UNEVEN_PERMILLE: u64 = 1_200;

/// Cells of a shard that are nothing to talk about, however few the others have.
const FEW: u64 = 16;

/// Cells that are given away at a time, at most: their next requests find them cold.
const GIVEN_AWAY_MAX: u64 = 256;

/// A node that may take cells.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its name.
    pub node: &'a NodeId,
    /// How busy it is. Our own load is known better than by its record.
    pub load: Load,
}

/// The node that is to take `cell`, which nobody owns and whose request entered at `me`. `members`:
/// the nodes that may act now, `me` among them or not. `None`: there is nobody.
pub fn choose<'a>(cell: &CellId, me: &NodeId, members: &[Member<'a>]) -> Option<&'a NodeId> {
    let mean = mean_share(members);
    if let Some(member) = members.iter().find(|member| member.node == me) {
        let is_even = share(&member.load) * 1_000 <= mean * STICKY_PERMILLE + FEW * 1_000;
        let has_room = fullness(&member.load) < PRESSURE_MAX && !member.load.is_draining;
        let is_able =
            |other: &Member<'_>| pressure(&other.load) < PRESSURE_MAX && !other.load.is_draining;
        // Where all are busy, to forward is more work for them.
        if is_even && has_room && (is_able(member) || !members.iter().any(is_able)) {
            return Some(member.node);
        }
    }
    let seed = cell.tag();
    let able = members.iter().filter(|member| weight(&member.load, mean) > 0);
    able.min_by(|a, b| {
        // -log(hash) / weight, without dividing.
        let a_side = u128::from(distance(seed, a.node)) * u128::from(weight(&b.load, mean));
        let b_side = u128::from(distance(seed, b.node)) * u128::from(weight(&a.load, mean));
        a_side.cmp(&b_side).then_with(|| a.node.cmp(b.node))
    })
    .map(|member| member.node)
}

/// How many idle cells `me` should give away now, so that the load becomes even: they are placed
/// anew by their next request.
pub fn surplus(me: &NodeId, members: &[Member<'_>]) -> usize {
    let Some(member) = members.iter().find(|member| member.node == me) else { return 0 };
    let (mine, mean) = (share(&member.load), mean_share(members));
    if members.len() < 2 || mine * 1_000 <= mean * UNEVEN_PERMILLE + FEW * 1_000 {
        return 0;
    }
    // An eighth at a time: the records of the others say only later what came of it.
    let excess = (mine - mean) * member.load.shards.max(1);
    usize::try_from((excess / 8).clamp(1, GIVEN_AWAY_MAX)).expect("few")
}

/// The place of `me` among the nodes that may scan the wake index; 0 is the first.
pub fn rank(me: &NodeId, members: &[Member<'_>]) -> usize {
    let place = |node: &NodeId, is_draining| (is_draining, distance(0, node), node.clone());
    let own = members.iter().find(|member| member.node == me);
    let mine = place(me, own.is_none_or(|member| member.load.is_draining));
    let others = members.iter().filter(|member| member.node != me);
    others.filter(|member| place(member.node, member.load.is_draining) < mine).count()
}

/// How many idle cells to put to rest, of `load.cells`, so that those that stay fit into memory:
/// down to four fifths once they take nine tenths.
pub fn excess(load: &Load) -> usize {
    let Load { cells, memory_bytes, memory_max_bytes, .. } = *load;
    if memory_max_bytes == 0 || memory_bytes <= memory_max_bytes / 10 * 9 {
        return 0;
    }
    let too_much = memory_bytes - memory_max_bytes / 10 * 8;
    // As if all were equally large: it is looked at again.
    let count = u128::from(cells) * u128::from(too_much) / u128::from(memory_bytes);
    usize::try_from(count).expect("no more than the cells").max(1)
}

/// Cells of each shard.
fn share(load: &Load) -> u64 {
    load.cells / load.shards.max(1)
}

fn mean_share(members: &[Member<'_>]) -> u64 {
    let able = members.iter().filter(|member| !member.load.is_draining);
    let (cells, shards) = able.fold((0, 0), |(cells, shards), Member { load, .. }| {
        (cells + load.cells, shards + load.shards.max(1))
    });
    cells / shards.max(1)
}

/// How near the node is to what it can carry at most.
fn pressure(load: &Load) -> u64 {
    fullness(load).max(load.busy_permille)
}

/// The same, of what it has in memory.
fn fullness(load: &Load) -> u64 {
    let part = |of: u64, max: u64| {
        if max == 0 { 0 } else { u128::from(of) * 1_000 / u128::from(max) }
    };
    let cells = part(load.cells, load.cells_max);
    let memory = part(load.memory_bytes, load.memory_max_bytes);
    u64::try_from(cells.max(memory).min(1_000)).expect("a thousand at most")
}

/// Its shards, times what they have left: all of it for an empty node, half for one with as many
/// cells as the others.
fn weight(load: &Load, mean: u64) -> u64 {
    if load.is_draining {
        return 0;
    }
    let crowd = share(load) * 500 / mean.max(FEW);
    let left = 1_000_u64.saturating_sub(pressure(load).max(crowd.min(PRESSURE_MAX)));
    // A full node is better than none.
    load.shards.max(1) * left.max(1)
}

/// -log2 of a hash of both, a number in (0, 1), with 32 binary places.
fn distance(seed: u64, node: &NodeId) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ mix(seed);
    for byte in node.as_str().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    // Never zero, so that there is a logarithm.
    let hash = mix(hash) | 1;
    let whole = u64::from(hash.leading_zeros());
    // In [1, 2), with 63 binary places. Each squaring gives one place of the logarithm.
    let mut rest = u128::from(hash << whole);
    let mut places = 0_u64;
    for _ in 0..32 {
        rest = (rest * rest) >> 63;
        places <<= 1;
        if rest >> 64 != 0 {
            rest >>= 1;
            places |= 1;
        }
    }
    ((whole + 1) << 32) - places
}

/// The finaliser of SplitMix64: each bit of the input changes half of the output.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;
    use std::{format, vec};

    use super::*;

    fn node(n: usize) -> NodeId {
        NodeId::parse(&format!("node-{n}")).expect("a node")
    }
    fn cell(n: usize) -> CellId {
        CellId::new("app.Room", &format!("{n:064x}")).expect("a good name")
    }
    fn load(shards: u64, cells: u64) -> Load {
        Load { shards, cells, ..Load::default() }
    }
    fn members<'a>(nodes: &'a [NodeId], loads: &[Load]) -> Vec<Member<'a>> {
        nodes.iter().zip(loads).map(|(node, load)| Member { node, load: *load }).collect()
    }
    /// How many of 10,000 cells each node gets, of those that enter at a node without any room.
    fn spread(loads: &[Load]) -> Vec<usize> {
        let nodes: Vec<_> = (0..loads.len()).map(node).collect();
        let members = members(&nodes, loads);
        let mut counts = vec![0; loads.len()];
        for n in 0..10_000 {
            let chosen = choose(&cell(n), &node(99), &members).expect("somebody");
            counts[nodes.iter().position(|node| node == chosen).expect("a member")] += 1;
        }
        counts
    }

    #[test]
    fn cells_spread_by_the_weights_of_the_nodes() {
        let counts = spread(&[load(4, 0), load(4, 0), load(8, 0)]);
        for (count, expected) in counts.iter().zip([2_500, 2_500, 5_000]) {
            assert!(count.abs_diff(expected) < 200, "{counts:?}");
        }
    }

    #[test]
    fn an_empty_node_gets_more_than_a_crowded_one_and_a_draining_one_nothing() {
        let draining = Load { is_draining: true, ..load(4, 0) };
        let counts = spread(&[load(4, 8_000), load(4, 4_000), load(4, 0), draining]);
        assert!(counts.is_sorted_by(|a, b| a < b || *b == 0), "{counts:?}");
        assert!(counts[2] > 4_000 && counts[0] > 0 && counts[3] == 0, "{counts:?}");
    }

    #[test]
    fn a_node_that_comes_takes_its_share_and_moves_nothing_else() {
        let nodes: Vec<_> = (0..4).map(node).collect();
        let loads = [load(4, 0); 4];
        let (before, after) = (members(&nodes[..3], &loads), members(&nodes, &loads));
        let outside = node(99);
        let mut moved = 0;
        for n in 0..10_000 {
            let was = choose(&cell(n), &outside, &before).expect("somebody");
            let is = choose(&cell(n), &outside, &after).expect("somebody");
            assert!(was == is || *is == nodes[3], "{was} {is}");
            moved += usize::from(was != is);
        }
        assert!((2_200..2_800).contains(&moved), "{moved}");
    }

    #[test]
    fn a_cell_stays_where_it_enters_unless_that_node_is_crowded_full_or_leaving() {
        let nodes: Vec<_> = (0..3).map(node).collect();
        let is_kept = |mine: Load| {
            let loads = [mine, load(4, 1_000), load(4, 1_000)];
            let members = members(&nodes, &loads);
            (0..100).all(|n| choose(&cell(n), &nodes[0], &members) == Some(&nodes[0]))
        };
        assert!(is_kept(load(4, 0)) && is_kept(load(4, 1_100)) && is_kept(load(4, 1_150)));
        assert!(!is_kept(load(4, 3_000)));
        assert!(!is_kept(Load { cells_max: 1_000, ..load(4, 990) }));
        assert!(!is_kept(Load { memory_bytes: 99, memory_max_bytes: 100, ..load(4, 9) }));
        assert!(!is_kept(Load { is_draining: true, ..load(4, 9) }));
        assert!(is_kept(Load { busy_permille: 900, ..load(4, 9) }));
        assert!(!is_kept(Load { busy_permille: 980, ..load(4, 9) }));
    }

    #[test]
    fn where_all_are_busy_a_cell_stays_where_it_enters_unless_that_node_is_full() {
        let nodes: Vec<_> = (0..3).map(node).collect();
        let busy = Load { busy_permille: 990, ..load(4, 1_000) };
        let is_kept = |mine: Load| {
            let members = members(&nodes, &[mine, busy, busy]);
            (0..100).all(|n| choose(&cell(n), &nodes[0], &members) == Some(&nodes[0]))
        };
        assert!(is_kept(busy));
        assert!(!is_kept(Load { cells_max: 1_000, ..busy }));
        assert!(!is_kept(Load { cells: 3_000, ..busy }));
    }

    #[test]
    fn nobody_takes_a_cell_only_when_everybody_leaves() {
        let nodes = [node(0), node(1)];
        let leaving = Load { is_draining: true, ..load(4, 9) };
        assert_eq!(choose(&cell(1), &nodes[0], &members(&nodes, &[leaving; 2])), None);
        let full = Load { cells_max: 9, ..load(4, 9) };
        assert!(choose(&cell(1), &nodes[0], &members(&nodes, &[full; 2])).is_some());
        assert_eq!(choose(&cell(1), &nodes[0], &[]), None);
    }

    #[test]
    fn a_node_that_joins_makes_the_others_give_cells_away_until_the_load_is_even() {
        let nodes: Vec<_> = (0..3).map(node).collect();
        let mut cells = [9_000_u64, 9_000, 0];
        let mut rounds = 0;
        loop {
            let loads = cells.map(|cells| load(4, cells));
            let members = members(&nodes, &loads);
            let given: Vec<_> = nodes.iter().map(|node| surplus(node, &members)).collect();
            if given == [0, 0, 0] {
                break;
            }
            assert_eq!(given[2], 0, "{cells:?}");
            for (from, count) in given.into_iter().enumerate() {
                for n in 0..count {
                    let cell = cell(rounds * 1_000 + n);
                    let to = choose(&cell, &nodes[from], &members).expect("somebody");
                    cells[from] -= 1;
                    cells[nodes.iter().position(|node| node == to).expect("a member")] += 1;
                }
            }
            rounds += 1;
            assert!(rounds < 100, "{cells:?}");
        }
        assert!(cells[2] > 3_000 && cells[0] < 8_000, "{cells:?}");
    }

    #[test]
    fn an_even_load_and_a_small_one_move_nothing() {
        let nodes = [node(0), node(1)];
        for cells in [[1_000, 1_200], [60, 0], [0, 0]] {
            let members = members(&nodes, &cells.map(|cells| load(4, cells)));
            assert_eq!(nodes.clone().map(|node| surplus(&node, &members)), [0, 0], "{cells:?}");
        }
        assert_eq!(surplus(&nodes[0], &members(&nodes[..1], &[load(4, 99_999)])), 0);
    }

    #[test]
    fn the_ranks_of_the_nodes_are_distinct_and_those_that_leave_come_last() {
        let nodes: Vec<_> = (0..5).map(node).collect();
        let mut loads = [load(4, 0); 5];
        let ranks = |loads: &[Load]| -> Vec<usize> {
            let members = members(&nodes, loads);
            nodes.iter().map(|node| rank(node, &members)).collect()
        };
        let before = ranks(&loads);
        let mut sorted = before.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4]);
        let first = before.iter().position(|rank| *rank == 0).expect("a first");
        loads[first].is_draining = true;
        assert_eq!(ranks(&loads)[first], 4);
    }

    #[test]
    fn cells_that_take_too_much_memory_are_put_to_rest_down_to_four_fifths() {
        let memory = |memory_bytes| {
            let memory_max_bytes = 1_000_000;
            excess(&Load { memory_bytes, memory_max_bytes, ..load(4, 1_000) })
        };
        assert_eq!([memory(0), memory(900_000)], [0, 0]);
        assert_eq!(memory(1_000_000), 200);
        assert_eq!(memory(2_000_000), 600);
        assert_eq!(excess(&Load { memory_bytes: 9, ..load(4, 1) }), 0, "no limit is known");
    }
}
