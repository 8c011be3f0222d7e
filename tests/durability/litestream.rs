//! Litestream, which reads and writes LTX v3 without a line of ours, as the other side of our files.
//!
//! Both ways end in databases that must be equal byte by byte. Litestream 0.5 keeps no checksums of
//! databases; those in our files are checked with a third program's.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use celld_core::ltx::{CHECKSUM_FLAG, Encoder, Header, Item, Pages, Trailer, lock_page};
use celld_core::txid::Checksum;
use litetx::PageChecksum as _;
use rusqlite::Connection;

use super::ledger::{append, rows};
use super::load::Cell;
use super::support::bucket::CellFiles;
use super::support::node::Site;
use super::support::wait_for;

/// The tool, or `None` where nobody promised that it is there. `scripts/test` installs it.
fn litestream() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let installed = cache.map(|dir| dir.join("celld/litestream/bin/litestream"));
    let found = installed.filter(|path| path.is_file());
    if found.is_none() {
        let promised = std::env::var_os("CELLD_TEST_TOOLS").is_some();
        assert!(!promised, "Litestream is not installed; scripts/test does it");
        println!("skipped: Litestream is not installed; run scripts/test");
    }
    found
}

/// Runs it, and returns whether it was content and what it said.
fn run(tool: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(tool).args(arguments).stdin(Stdio::null()).output();
    let output = output.expect("Litestream starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test's own")
}

/// A whole file.
fn decode(path: &Path) -> (Header, Vec<(u32, Vec<u8>)>, Trailer) {
    let file = fs::read(path).expect("an LTX file");
    let mut pages = Pages::new(&file).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let (header, mut found) = (*pages.header(), Vec::new());
    loop {
        match pages.next_item().unwrap_or_else(|why| panic!("{}: {why}", path.display())) {
            Item::Page(pgno, data) => found.push((pgno, data.to_vec())),
            Item::End(trailer) => return (header, found, trailer),
        }
    }
}

/// The database to which the files lead.
fn rebuild(files: &[PathBuf]) -> Vec<u8> {
    let mut decoded: Vec<_> = files.iter().map(|path| decode(path)).collect();
    // Of two that end at the same commit the longer one has all that the shorter one has.
    decoded.sort_by_key(|(header, ..)| (header.max, Reverse(header.min)));
    let mut database = Vec::new();
    for (header, pages, _) in decoded {
        let size = header.page_size as usize;
        database.resize(header.commit as usize * size, 0);
        for (pgno, data) in pages {
            database[(pgno as usize - 1) * size..][..size].copy_from_slice(&data);
        }
    }
    database
}

/// The same file as Litestream itself would have written it: without checksums of the database.
fn without_checksums(path: &Path) -> Vec<u8> {
    let (header, pages, _) = decode(path);
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    let header = Header { checksummed: false, pre: Checksum::new(0), ..header };
    encoder.begin(&header, &mut out).expect("a good header");
    for (pgno, data) in pages {
        encoder.page(pgno, &data, &mut out).expect("a good page");
    }
    encoder.finish(Checksum::new(0), &mut out).expect("a good end");
    out
}

/// The checksum that LTX defines for a database, as the crate `litetx` computes it.
fn foreign_checksum(database: &[u8], page_size: u32) -> u64 {
    let pages = (1_u32..).zip(database.chunks(page_size as usize));
    let pages = pages.filter(|(pgno, _)| *pgno != lock_page(page_size));
    pages.fold(CHECKSUM_FLAG, |sum, (pgno, page)| {
        let pgno = litetx::PageNum::new(pgno).expect("a page number");
        CHECKSUM_FLAG | (sum ^ page.page_checksum(pgno).into_inner())
    })
}

/// Lays the files out as a replica on disk: `ltx/<level>/<min>-<max>.ltx`.
fn replica_of(files: &[PathBuf], replica: &Path) -> Vec<PathBuf> {
    let lay = |file: &PathBuf| {
        let level = file.parent().and_then(Path::file_name).expect("a level").to_string_lossy();
        let level = replica.join("ltx").join(level.trim_end_matches('@'));
        fs::create_dir_all(&level).expect("a directory");
        let copy = level.join(file.file_name().expect("a name"));
        fs::copy(file, &copy).expect("a copy");
        copy
    };
    files.iter().map(lay).collect()
}

#[test]
fn litestream_restores_a_cell_from_our_files() {
    let Some(tool) = litestream() else { return };
    let _machine = super::shared();
    let site = Site::new();
    let mut plan = site.node("n").flag("--idle-evict-ms", "300");
    let node = plan.start();
    let mut client = node.client();
    let cell = Cell::new("c".into());
    // Two epochs, commits one by one and many in a file, a database that grows by a lot.
    client.ask("POST", "/c/many?writer=1&from=0&count=70").expect("an answer").good();
    client.ask("POST", "/c/blob?n=5&bytes=600000").expect("an answer").good();
    let files = CellFiles::of(site.bucket(), &mut client, &cell.name);
    files.wait_until_released();
    let level_is = |path: &PathBuf, level: &str| path.parent().is_some_and(|p| p.ends_with(level));
    for seq in 0..40 {
        append(&mut client, &cell.name, (2, seq)).expect("an acknowledgement");
    }
    wait_for("a file of files", Duration::from_secs(20), || {
        files.ltx().iter().any(|path| level_is(path, "1@")).then_some(())
    });
    append(&mut client, &cell.name, (2, 40)).expect("an acknowledgement");
    let expected = rows(&mut client, &cell.name, 0).expect("rows");
    files.wait_until_released();
    node.kill();
    let ours = files.ltx();
    assert!(ours.iter().any(|path| level_is(path, "0@")), "{ours:#?}");

    let (replica, restored) = (site.path().join("replica"), site.path().join("restored.db"));
    let laid = replica_of(&ours, &replica);
    let restore = || {
        let replica = url(&replica);
        run(&tool, &["restore", "-integrity-check", "full", "-o", text(&restored), &replica])
    };
    // Its merge hands the last file's checksum on into a file that it declares to have none, and
    // then refuses what it wrote. That is its one objection, after all pages were read.
    let (content, said) = restore();
    assert!(!content && said.contains("post-apply checksum not allowed"), "{said}");
    let last = laid.last().expect("files");
    let (_, _, trailer) = decode(last);
    fs::write(last, without_checksums(last)).expect("a write");
    let (content, said) = restore();
    assert!(content && said.contains("integrity check passed"), "{said}");

    let database = fs::read(&restored).expect("a database");
    assert!(database == rebuild(&ours), "Litestream and we read different pages");
    assert_eq!(foreign_checksum(&database, 4096), trailer.post.get());
    let connection = Connection::open(&restored).expect("a database");
    let mut select = connection.prepare("SELECT n, writer, seq FROM rows ORDER BY n").expect("SQL");
    let number = |row: &rusqlite::Row<'_>, at| row.get::<_, i64>(at).map(i64::unsigned_abs);
    let found: Vec<_> = select
        .query_map([], |row| Ok((number(row, 0)?, (number(row, 1)?, number(row, 2)?))))
        .and_then(Iterator::collect)
        .expect("rows");
    assert_eq!(found, expected);
    let blob = connection.query_row("SELECT length(body) FROM blobs", [], |row| row.get(0));
    assert_eq!(blob, Ok(600_000));
}

#[test]
fn we_rebuild_what_litestream_replicated() {
    let Some(tool) = litestream() else { return };
    let _machine = super::shared();
    for page_size in [512, 4096, 65_536] {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, replica) = (dir.path().join("source.db"), dir.path().join("replica"));
        let sync = |more: &[&str]| {
            let place = url(&replica);
            let arguments = [&["replicate", "-once"], more, &[text(&source), &place]].concat();
            let (content, said) = run(&tool, &arguments);
            assert!(content, "{said}");
        };
        let work = |sql: &str| {
            let connection = Connection::open(&source).expect("a database");
            connection.execute_batch(sql).expect("SQL");
        };
        work(&format!(
            "PRAGMA page_size = {page_size}; PRAGMA journal_mode = WAL;
             CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB);
             INSERT INTO t (body) VALUES (randomblob(30000)), (zeroblob(200000));"
        ));
        sync(&[]);
        for round in 0..4 {
            work(
                "INSERT INTO t (body) VALUES (randomblob(70000));
                  UPDATE t SET body = randomblob(900) WHERE id = 1;",
            );
            if round == 2 {
                // A file after which the database is smaller.
                work("DELETE FROM t WHERE id = 2; VACUUM;");
            }
            sync(&[]);
        }
        sync(&["-force-snapshot"]);
        work("PRAGMA wal_checkpoint(TRUNCATE)");
        let original = fs::read(&source).expect("a database");
        let level = |level: &str| -> Vec<PathBuf> {
            let files = fs::read_dir(replica.join("ltx").join(level)).expect("a level");
            files.map(|file| file.expect("a file").path()).collect()
        };
        let (segments, snapshots) = (level("0"), level("9"));
        assert!(segments.len() >= 5 && snapshots.len() == 1, "{segments:?} {snapshots:?}");
        assert!(rebuild(&segments) == original, "segments of {page_size}-byte pages");
        assert!(rebuild(&snapshots) == original, "a snapshot of {page_size}-byte pages");
    }
}
