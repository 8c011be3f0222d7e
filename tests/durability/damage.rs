//! Objects of the bucket that were damaged behind the program's back: a clear error, never other
//! data; the neighbours go on; what is repaired works again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ledger::{append, rows};
use super::load::Cell;
use super::support::bucket::CellFiles;
use super::support::node::Site;
use super::support::rng::Rng;
use super::support::wait_for;

/// What is done to the files of one cell. `at` is drawn.
type Damage = fn(&CellFiles, &CellFiles, &mut Rng);

fn middle(files: &CellFiles) -> PathBuf {
    let all = files.ltx();
    all[all.len() / 2].clone()
}

/// Flips one bit somewhere in the `part`th tenth of a file.
fn flip(path: &Path, part: usize, rng: &mut Rng) {
    let mut bytes = fs::read(path).expect("a file");
    let tenth = (bytes.len() / 10).max(1);
    let at = (part * tenth + rng.below(tenth as u64) as usize).min(bytes.len() - 1);
    bytes[at] ^= 1 << rng.below(8);
    fs::write(path, bytes).expect("a write");
}

fn cut(path: &Path, to: usize) {
    let mut bytes = fs::read(path).expect("a file");
    bytes.truncate(to);
    fs::write(path, bytes).expect("a write");
}

fn edit_record(files: &CellFiles, edit: impl FnOnce(&mut serde_json::Value)) {
    let mut record = files.read_record();
    edit(&mut record);
    fs::write(files.record(), record.to_string()).expect("a write");
}

/// Puts a file of `theirs` in place of one of `ours`, below the same name.
fn replace(ours: &Path, theirs: &Path) {
    fs::copy(theirs, ours).expect("a copy");
}

const DAMAGES: &[(&str, Damage)] = &[
    ("flip-0", |files, _, rng| flip(&middle(files), 0, rng)),
    ("flip-2", |files, _, rng| flip(&middle(files), 2, rng)),
    ("flip-4", |files, _, rng| flip(&middle(files), 4, rng)),
    ("flip-6", |files, _, rng| flip(&middle(files), 6, rng)),
    ("flip-8", |files, _, rng| flip(&middle(files), 8, rng)),
    ("flip-end", |files, _, rng| flip(&middle(files), 9, rng)),
    ("flip-first", |files, _, rng| flip(&files.ltx()[0], rng.below(10) as usize, rng)),
    ("flip-last", |files, _, rng| {
        flip(files.ltx().last().expect("files"), rng.below(10) as usize, rng);
    }),
    ("cut-header", |files, _, _| cut(&middle(files), 60)),
    ("cut-page", |files, _, _| cut(&middle(files), 120)),
    ("cut-trailer", |files, _, _| {
        let path = middle(files);
        cut(&path, fs::metadata(&path).expect("a file").len() as usize - 1);
    }),
    ("empty", |files, _, _| cut(&middle(files), 0)),
    ("longer", |files, _, _| {
        let path = middle(files);
        let mut bytes = fs::read(&path).expect("a file");
        bytes.push(0);
        fs::write(path, bytes).expect("a write");
    }),
    ("text", |files, _, _| fs::write(middle(files), "not LTX").expect("a write")),
    ("foreign-first", |files, other, _| replace(&files.ltx()[0], &other.ltx()[0])),
    ("foreign-middle", |files, other, _| replace(&middle(files), &middle(other))),
    ("foreign-last", |files, other, _| {
        replace(files.ltx().last().expect("files"), other.ltx().last().expect("files"));
    }),
    ("whole", |files, other, _| {
        // A name as long as the other's, so a history as long: each file fits the one before.
        files.ltx().iter().zip(other.ltx()).for_each(|(ours, theirs)| replace(ours, &theirs));
    }),
    ("own-neighbour", |files, _, _| {
        let all = files.ltx();
        replace(&all[all.len() / 2], &all[all.len() / 2 - 1]);
    }),
    ("missing", |files, _, _| fs::remove_file(middle(files)).expect("a file")),
    ("missing-last", |files, _, _| {
        fs::remove_file(files.ltx().last().expect("files")).expect("a file");
    }),
    ("record-empty", |files, _, _| fs::write(files.record(), "").expect("a write")),
    ("record-garbage", |files, _, _| fs::write(files.record(), b"\xff{}").expect("a write")),
    ("record-cut", |files, _, _| cut(&files.record(), 40)),
    ("record-long", |files, _, _| {
        fs::write(files.record(), vec![b' '; 1 << 20]).expect("a write");
    }),
    ("record-format", |files, _, _| edit_record(files, |record| record["format"] = 99.into())),
    ("record-field", |files, _, _| edit_record(files, |record| record["colour"] = "red".into())),
    ("record-epoch", |files, _, _| edit_record(files, |record| record["epoch"] = "x".into())),
    ("record-txid", |files, _, _| {
        edit_record(files, |record| record["base"]["txid"] = "00000000000003e8".into());
    }),
    ("record-digit", |files, _, _| {
        // One commit less, in a record that is whole otherwise: it would hide the last write.
        let mut record = files.read_record();
        let txid = record["base"]["txid"].as_str().expect("a TXID");
        let txid = u64::from_str_radix(txid, 16).expect("a TXID") - 1;
        record["base"]["txid"] = format!("{txid:016x}").into();
        fs::write(files.record(), record.to_string()).expect("a write");
    }),
    ("record-foreign", |files, other, _| replace(&files.record(), &other.record())),
];

/// All objects of a cell, to be put back.
fn keep(files: &CellFiles) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut paths = files.ltx();
    paths.push(files.record());
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).expect("a file"))).collect()
}

#[test]
fn damaged_objects_give_a_clear_error_and_never_other_data() {
    let _machine = super::shared();
    let mut rng = Rng::from_environment("the damages");
    let site = Site::new();
    let mut plan = site.node("n").flag("--idle-evict-ms", "100");
    let node = plan.start();
    let mut client = node.client();
    let cell = |name: &str, client: &mut _| {
        let cell = Cell::new(name.into());
        // Another length for each, so that no two cells have the same history.
        for seq in 0..8 + name.len() as u64 {
            let row = (name.bytes().map(u64::from).sum(), seq);
            cell.ledger().sends(row);
            cell.ledger().acknowledges(append(client, name, row).expect("written"), row);
        }
        let files = CellFiles::of(site.bucket(), client, name);
        (cell, files)
    };
    let (_, other) = cell("other", &mut client);
    let (healthy, _) = cell("healthy", &mut client);
    let cells: Vec<_> = DAMAGES.iter().map(|(name, _)| cell(name, &mut client)).collect();
    for (_, files) in &cells {
        files.wait_until_released();
    }
    other.wait_until_released();
    let mut kept = Vec::new();
    for ((_, files), (_, damage)) in cells.iter().zip(DAMAGES) {
        kept.push(keep(files));
        damage(files, &other, &mut rng);
    }
    let mut quiet = Vec::new();
    for ((cell, _), (name, _)) in cells.iter().zip(DAMAGES) {
        for _ in 0..2 {
            match rows(&mut client, name, 0) {
                Ok(shown) => {
                    // A bit that nobody reads changes nothing; anything else must be noticed.
                    let wrong = cell.ledger().check(&shown);
                    quiet.push(format!("{name}: served, {wrong:?}"));
                }
                Err(error) => {
                    println!("{name}: {error}");
                    assert!(
                        error.starts_with("500") || error.starts_with("503"),
                        "{name}: {error}"
                    );
                    assert!(error.contains("cannot be"), "{name}: {error}");
                }
            }
        }
        healthy.verify(&mut client);
    }
    assert!(quiet.is_empty(), "{quiet:#?}");
    let log = node.log();
    assert!(!log.contains("panicked"), "{log}");
    for (_, files) in &cells {
        let id = files.id();
        assert!(log.lines().any(|line| line.contains(&id)), "nothing about {id} in:\n{log}");
    }
    for ((cell, files), (kept, (name, _))) in cells.iter().zip(kept.iter().zip(DAMAGES)) {
        // Attempts may have taken epochs: only what was damaged is put back.
        for (path, bytes) in kept {
            if *path != files.record() || name.starts_with("record") {
                fs::write(path, bytes).expect("a write");
            }
        }
        cell.verify(&mut client);
        let row = (7, 7);
        cell.ledger().sends(row);
        let number = append(&mut client, name, row).expect("an acknowledgement");
        cell.ledger().acknowledges(number, row);
        cell.verify(&mut client);
    }
}

#[test]
fn a_damaged_deployment_is_refused_and_the_old_one_serves() {
    let _machine = super::shared();
    let site = Site::new();
    let deploy = site.bucket().join("deploy@");
    let current = deploy.join("current.json");
    let good = fs::read(&current).expect("a deployment");
    let mut plan = site.node("n");
    let node = plan.start();
    node.ask("POST", "/c/value?is=1").good();
    for garbage in [&b"garbage"[..], b"", b"{\"format\":99}", &vec![b'['; 1 << 20]] {
        fs::write(&current, garbage).expect("a write");
        let said = node.log().len();
        wait_for("a line about the deployment", Duration::from_secs(20), || {
            node.log()[said..].contains("the deployment cannot be read").then_some(())
        });
        assert_eq!(node.ask("GET", "/c/value").text(), "1");
    }
    // A node that starts on it serves nothing, and serves when it is repaired.
    drop(node);
    let node = plan.start();
    let refused = node.ask("GET", "/c/value");
    assert_eq!(refused.status, 503, "{}", refused.text());
    fs::write(&current, &good).expect("a write");
    wait_for("the repaired deployment", Duration::from_secs(20), || {
        (node.ask("GET", "/c/value").status == 200).then_some(())
    });
    drop(node);
    // A module whose bytes have changed.
    let modules = deploy.join("modules@");
    let module = fs::read_dir(&modules).expect("modules").flatten().next().expect("one").path();
    let kept = fs::read(&module).expect("a module");
    let mut changed = kept.clone();
    let at = changed.len() / 2;
    changed[at] ^= 1;
    fs::write(&module, changed).expect("a write");
    let node = plan.start();
    assert_eq!(node.ask("GET", "/c/value").status, 503);
    let log = node.log();
    let name = module.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(
        log.contains("cannot be loaded") && log.contains(&name) && !log.contains("panicked"),
        "{log}"
    );
    fs::write(&module, kept).expect("a write");
    wait_for("the repaired module", Duration::from_secs(20), || {
        (node.ask("GET", "/c/value").status == 200).then_some(())
    });
    assert_eq!(node.ask("GET", "/c/value").text(), "1");
}

#[test]
fn files_of_epochs_that_do_not_count_change_nothing() {
    let _machine = super::shared();
    let site = Site::new();
    let mut plan = site.node("n").flag("--idle-evict-ms", "100");
    let node = plan.start();
    let mut client = node.client();
    let cell = Cell::new("c".into());
    let write = |client: &mut _, seq| {
        cell.ledger().sends((1, seq));
        cell.ledger().acknowledges(append(client, "c", (1, seq)).expect("written"), (1, seq));
    };
    (0..6).for_each(|seq| write(&mut client, seq));
    let files = CellFiles::of(site.bucket(), &mut client, "c");
    files.wait_until_released();
    let base = files.read_record()["base"]["txid"].as_str().expect("a TXID").to_owned();
    let next = u64::from_str_radix(&base, 16).expect("a TXID") + 1;
    let last = files.ltx().pop().expect("files");
    let epochs = last.ancestors().nth(3).expect("the epochs").to_owned();
    // What a stale owner uploads late, and what only a later epoch could have written.
    for epoch in [1_u64, 0xff] {
        let level = epochs.join(format!("e{epoch:016x}@")).join("0@");
        fs::create_dir_all(&level).expect("a directory");
        fs::copy(&last, level.join(format!("{next:016x}-{next:016x}.ltx"))).expect("a copy");
    }
    cell.verify(&mut client);
    write(&mut client, 6);
    node.kill();
    let node = plan.start();
    cell.verify(&mut node.client());
    assert!(node.log().contains("does not count"), "{}", node.log());
}
