//! `celld cell list` and `celld cell show`.

use super::support::node::Site;
use super::{operate, plan, shown};

/// The cells that a list names, in its order.
fn names(site: &Site, line: &str) -> Vec<String> {
    let lines = operate(site, line).lines();
    lines.iter().map(|line| line["cell"].as_str().expect("a cell").to_owned()).collect()
}

#[test]
fn cells_are_listed_from_the_bucket_and_from_memory_page_by_page() {
    let site = Site::of("operated");
    let first = plan(&site, "first").start();
    for n in 0..25 {
        first.ask("POST", &format!("/c{n}/add")).good();
    }
    first.ask("GET", "/unborn").good();
    let in_bucket = names(&site, "cell list --json");
    assert!(in_bucket.is_sorted() && in_bucket.len() == 26, "{in_bucket:?}");
    let in_memory = names(&site, "cell list --node first --json");
    assert_eq!(in_memory, in_bucket);
    assert_eq!(names(&site, "cell list --resident --json"), in_bucket);
    for source in ["", "--node first"] {
        // Each page goes on behind the one before.
        let (mut pages, mut after) = (Vec::new(), String::new());
        loop {
            let line = format!("cell list --json --limit 10 {source} {after}");
            let page = names(&site, &line);
            let Some(last) = page.last() else { break };
            after = format!("--after {last}");
            pages.extend(page);
        }
        assert_eq!(pages, in_bucket, "{source}");
        assert_eq!(names(&site, &format!("cell list {source} --json --class Unborn")).len(), 1);
        assert_eq!(names(&site, &format!("cell list {source} --json --class Cell")).len(), 25);
        let line = format!("cell list {source} --json --class operated.Cell --limit 3");
        assert_eq!(names(&site, &line), in_bucket[..3], "{source}");
        assert_eq!(names(&site, &format!("cell list {source} --json --class ell")).len(), 0);
    }
    let few = operate(&site, "cell list --limit 2");
    assert!(few.err.contains("go on with --after"), "{}", few.err);
    let text = few.good();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("CELL"), "{text}");
    assert!(lines[1].contains("first"), "{text}");
    operate(&site, "cell list --node nobody").failed(1, &["nobody", "there are: first"]);
    operate(&site, "cell list --limit 0").failed(2, &["--limit"]);
}

#[test]
fn a_cell_is_shown_with_its_owner_its_files_and_its_memory() {
    let site = Site::of("operated");
    let node = plan(&site, "first").flag("--idle-evict-ms", "86400000").start();
    for _ in 0..3 {
        node.ask("POST", "/lobby/add").good();
    }
    node.ask("POST", "/lobby/alarm?ms=3600000").good();
    let cell = shown(&site, "operated.Cell --name lobby");
    assert_eq!((&cell["node"], &cell["epoch"]), (&"first".into(), &1.into()));
    assert_eq!(
        (&cell["memory"]["state"], &cell["memory"]["name"]),
        (&"idle".into(), &"lobby".into())
    );
    assert_eq!(cell["memory"]["txid"], cell["files"]["txid"], "{cell}");
    assert!(cell["files"]["count"].as_u64() >= Some(4), "{cell}");
    let due = cell["memory"]["alarm_ms"].as_u64().expect("an alarm");
    let by_id = shown(&site, cell["cell"].as_str().expect("its id"));
    assert_eq!(by_id["memory"]["alarm_ms"], due);
    let text = operate(&site, "cell show operated.Cell --name lobby").good();
    assert!(text.contains("node first, session ") && text.contains("alarm"), "{text}");
    operate(&site, "cell show operated.Cell --name nobody").failed(1, &["no cell operated.Cell/"]);
    operate(&site, "cell show lobby").failed(2, &["NAMESPACE/ID"]);
    // What the bucket knows is shown without the node, too.
    drop(node);
    let alone = operate(&site, "cell show operated.Cell --name lobby --json");
    assert!(alone.err.contains("not known"), "{}", alone.err);
    assert_eq!(alone.json()["memory"], serde_json::Value::Null);
}
