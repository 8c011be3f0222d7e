//! Cells that together are larger than the memory that a node may use.

use crate::capacity::{TOLD, load, record};
use crate::fleet::{cells, write};
use crate::load::Cell;
use crate::support::node::Site;
use crate::support::wait_for;

#[test]
fn cells_leave_before_memory_is_full() {
    /// Bytes of a value, below the largest that a cell keeps.
    const VALUE: usize = 1_500_000;
    let _machine = crate::alone();
    let site = Site::new();
    let node =
        site.node("n").flag("--memory-limit", "256MiB").flag("--idle-evict-ms", "600000").start();
    let cells = cells("w", 60);
    // 270 MB in all.
    let path = |cell: &Cell, n: usize| format!("/{}/blob?n={n}", cell.name);
    let mut client = node.client();
    for cell in &cells {
        write(&mut client, cell);
        for n in 0..3 {
            let path = format!("{}&bytes={VALUE}", path(cell, n));
            assert_eq!(client.ask("POST", &path).expect("an answer").good(), b"stored\n");
        }
    }
    // What it told before it was full says nothing: the next renewal but one began after this.
    let write = || record(site.bucket(), "n").and_then(|record| record["write"].as_u64());
    let full = wait_for("the record of a full node", TOLD, write);
    let told = wait_for("a node with room", TOLD, || {
        let load = (write()? >= full + 2).then(|| load(site.bucket(), "n"))??;
        let (bytes, max) = (load["memory_bytes"].as_u64()?, load["memory_max_bytes"].as_u64()?);
        (bytes <= max / 10 * 9 && load["cells"].as_u64()? < 60).then_some(load)
    });
    println!("{told}, at most {} MB of the process", node.peak_bytes() >> 20);
    // Some stay: it is not all that an allocator keeps that makes them leave.
    assert!(told["cells"].as_u64().expect("a number") >= 10, "{told}");
    for cell in &cells {
        cell.verify(&mut client);
        for n in 0..3 {
            let blob = client.ask("GET", &path(cell, n)).expect("an answer").good();
            assert_eq!(blob.len(), VALUE, "cell {}", cell.name);
        }
    }
    println!("at most {} MB of the process", node.peak_bytes() >> 20);
}
