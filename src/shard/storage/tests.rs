//! Real SQLite on the VFS, against SQLite on ordinary files and against images built from LTX.

use std::fmt::Write as _;

use celld_core::cell::CellId;
use celld_core::time::Wall;
use celld_core::txid::{Checksum, Txid};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::restore::Applier;
use super::*;

mod files;

const NOW: Wall = Wall::from_millis(1_700_000_000_000);

/// Whose files they all are.
fn cell() -> CellId {
    CellId::new("app.Room", &"0a".repeat(32)).expect("a good name")
}

/// A cell and every file that it gave.
struct Bench {
    dir: tempfile::TempDir,
    store: CellStore,
    db: Connection,
    files: Vec<Vec<u8>>,
}

impl Bench {
    fn new() -> Self {
        Self::with_memory(MEMORY_BYTES_MAX)
    }

    fn with_memory(memory_bytes_max: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Place { memory_bytes_max, ..Place::new(dir.path(), &cell()) };
        let (store, db) = CellStore::create(place).expect("a cell");
        Self { dir, store, db, files: vec![] }
    }

    fn place(&self) -> Place {
        Place::new(self.dir.path(), &cell())
    }

    fn run(&self, sql: &str) {
        self.db.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn encode(&mut self) -> Segment {
        let mut file = vec![];
        let segment = self.store.encode_pending(NOW, &mut file).expect("a file");
        assert_eq!(segment.bytes_len, file.len() as u64);
        self.files.push(file);
        segment
    }

    fn restored(&self) -> Image {
        restored(self.place(), &self.files)
    }

    /// The image that the files give is the live one, byte for byte, and SQLite finds it sound.
    fn assert_restores(&self) {
        let image = self.restored();
        assert!(bytes_of(&image) == bytes_of(&self.store.shared.borrow().image));
        assert_eq!(image.position(), self.store.encoded());
        let (_store, db) = CellStore::open(image).expect("the restored cell");
        assert!(dump(&db) == dump(&self.db), "the restored database has other rows");
        let check: String =
            db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
        assert_eq!(check, "ok");
    }
}

fn restored(place: Place, files: &[Vec<u8>]) -> Image {
    let mut applier = Applier::new(Image::new(place));
    for file in files {
        applier.feed(file).expect("a good file");
        applier.end_file().expect("a whole file");
    }
    applier.into_image()
}

fn bytes_of(image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; image.bytes() as usize];
    assert_eq!(image.read(0, &mut bytes).expect("the image"), bytes.len());
    bytes
}

/// The schema, and every row of every table.
fn dump(db: &Connection) -> String {
    let mut text = String::new();
    let sql = "SELECT name, type, coalesce(sql, '') FROM sqlite_schema ORDER BY type, name";
    let mut schema = db.prepare(sql).expect("the schema");
    let objects = schema.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let objects: Vec<(String, String, String)> =
        objects.and_then(Iterator::collect).expect("the schema");
    for (name, kind, sql) in &objects {
        writeln!(text, "{kind} {name} {sql}").expect("memory");
        if kind == "table" {
            let mut rows = db.prepare(&format!("SELECT * FROM \"{name}\"")).expect("a table");
            let width = rows.column_count();
            let mut rows = rows.query([]).expect("rows");
            while let Some(row) = rows.next().expect("a row") {
                let values: Vec<Value> = (0..width).map(|i| row.get(i).expect("a value")).collect();
                writeln!(text, "  {values:?}").expect("memory");
            }
        }
    }
    text
}

#[test]
fn the_connection_has_the_modes_that_capture_needs() {
    let bench = Bench::new();
    let ask = |pragma: &str| -> Value {
        bench.db.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0)).expect("a pragma")
    };
    assert_eq!(ask("journal_mode"), Value::Text("memory".into()));
    assert_eq!(ask("locking_mode"), Value::Text("exclusive".into()));
    let numbers = [("synchronous", 0), ("temp_store", 2), ("page_size", 4096), ("auto_vacuum", 0)];
    for (pragma, number) in numbers {
        assert_eq!(ask(pragma), Value::Integer(number), "{pragma}");
    }
    assert_eq!(ask("cache_spill"), Value::Integer(0));
}

#[test]
fn pages_are_read_where_they_lie() {
    let bench = Bench::new();
    bench.run("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2); PRAGMA shrink_memory");
    let mut cursor = bench.db.prepare("SELECT a FROM t").expect("a statement");
    let mut rows = cursor.query([]).expect("rows");
    rows.next().expect("a row");
    assert!(bench.store.shared.borrow().image.is_lent());
    drop(rows);
    assert!(!bench.store.shared.borrow().image.is_lent());
}

#[test]
fn every_commit_of_a_turn_becomes_one_txid_and_reading_none() {
    let mut bench = Bench::new();
    assert_eq!(bench.store.commit_boundary(), None);
    bench.run("CREATE TABLE t(a); INSERT INTO t VALUES (1);");
    assert!(bench.store.pending());
    assert_eq!(bench.store.commit_boundary(), Some(Txid::new(1)));
    bench.run("SELECT * FROM t; BEGIN IMMEDIATE; COMMIT;");
    assert_eq!(bench.store.commit_boundary(), None);
    bench.run("INSERT INTO t VALUES (2)");
    assert_eq!(bench.store.commit_boundary(), Some(Txid::new(2)));
    let segment = bench.encode();
    assert_eq!((segment.min, segment.max), (Txid::new(1), Txid::new(2)));
    assert_eq!((segment.pages, segment.pre), (2, Checksum::new(0)));
    assert!(!bench.store.pending());
    let again = bench.store.encode_pending(NOW, &mut vec![]);
    assert!(matches!(again, Err(StorageError::Nothing)), "{again:?}");
    bench.assert_restores();
}

#[test]
fn what_was_rolled_back_leaves_nothing() {
    let mut bench = Bench::new();
    bench.run("CREATE TABLE t(a UNIQUE); INSERT INTO t VALUES (1)");
    bench.encode();
    bench.run("BEGIN; INSERT INTO t VALUES (2), (randomblob(99999)); ROLLBACK");
    bench.db.execute_batch("INSERT INTO t VALUES (3), (1)").expect_err("not unique");
    assert_eq!(bench.store.commit_boundary(), None);
    assert!(!bench.store.pending());
    bench.run("BEGIN; INSERT INTO t VALUES (4); SAVEPOINT s; INSERT INTO t VALUES (5);");
    bench.run("ROLLBACK TO s; INSERT INTO t VALUES (6); RELEASE s; COMMIT");
    let segment = bench.encode();
    assert_eq!((segment.min, segment.max), (Txid::new(2), Txid::new(2)));
    bench.assert_restores();
    let sum: i64 = bench.db.query_row("SELECT sum(a) FROM t", [], |r| r.get(0)).expect("a sum");
    assert_eq!(sum, 11);
}

#[test]
fn schema_changes_triggers_search_and_blobs_are_captured() {
    let mut bench = Bench::new();
    for sql in [
        "CREATE TABLE t(id INTEGER PRIMARY KEY AUTOINCREMENT, b BLOB, n INT DEFAULT 0)",
        "CREATE TABLE log(at, what); CREATE TRIGGER g AFTER INSERT ON t BEGIN
           INSERT INTO log VALUES (new.id, length(new.b)); END",
        "INSERT INTO t(b) VALUES (zeroblob(2000000)), (randomblob(70000)), (x'00')",
        "CREATE VIRTUAL TABLE f USING fts5(body); INSERT INTO f VALUES ('a cell of one'), ('two')",
        "INSERT INTO f(f) VALUES ('optimize'); CREATE INDEX i ON t(n, id)",
        "ALTER TABLE t ADD COLUMN extra TEXT DEFAULT 'x'; UPDATE t SET n = id * 7",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 3000)
           INSERT INTO t(b, n) SELECT randomblob(x % 300), x FROM c",
        "DELETE FROM t WHERE id % 3 = 0; DROP TABLE log; DROP TRIGGER IF EXISTS g",
    ] {
        bench.run(sql);
        bench.encode();
        bench.assert_restores();
    }
    let hits: i64 = bench
        .db
        .query_row("SELECT count(*) FROM f WHERE f MATCH 'cell'", [], |row| row.get(0))
        .expect("a search");
    assert_eq!(hits, 1);
}

#[test]
fn vacuum_and_dropped_tables_shrink_the_database() {
    let mut bench = Bench::new();
    bench.run("CREATE TABLE a(b); INSERT INTO a VALUES (randomblob(500000)); CREATE TABLE c(d);");
    bench.encode();
    let before = bench.store.database_bytes();
    bench.run("DROP TABLE a; INSERT INTO c VALUES (1)");
    bench.encode();
    bench.run("VACUUM");
    bench.encode();
    assert!(bench.store.database_bytes() < before / 50, "{}", bench.store.database_bytes());
    bench.assert_restores();
    bench.run("INSERT INTO c VALUES (randomblob(100000))");
    bench.encode();
    bench.assert_restores();
}

#[test]
fn an_open_cursor_survives_commits_and_encoding() {
    let mut bench = Bench::new();
    bench.run("CREATE TABLE t(id INTEGER PRIMARY KEY, b); CREATE TABLE u(b);");
    bench.run(
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 2000)
         INSERT INTO t SELECT x, zeroblob(200) FROM c",
    );
    bench.encode();
    let Bench { store, db, files, .. } = &mut bench;
    let mut cursor = db.prepare("SELECT id, length(b) FROM t").expect("a statement");
    let mut rows = cursor.query([]).expect("rows");
    let mut seen = 0_i64;
    while let Some(row) = rows.next().expect("a row") {
        seen += 1;
        assert_eq!(row.get::<_, i64>(0).expect("an id"), seen);
        assert!((200..=201).contains(&row.get::<_, i64>(1).expect("a length")));
        if seen % 50 == 0 {
            db.execute("INSERT INTO u VALUES (randomblob(9000))", []).expect("a commit");
            db.execute("UPDATE t SET b = zeroblob(201) WHERE id % 7 = ?1", [seen % 7])
                .expect("a commit in the table that is read");
            let mut file = vec![];
            store.encode_pending(NOW, &mut file).expect("a file");
            files.push(file);
        }
    }
    assert_eq!(seen, 2_000);
    drop(rows);
    drop(cursor);
    bench.assert_restores();
}

#[test]
fn a_large_database_moves_into_a_file_and_goes_on() {
    let mut bench = Bench::with_memory(256 << 10);
    bench.run("CREATE TABLE t(id INTEGER PRIMARY KEY, b)");
    bench.encode();
    assert!(!bench.store.is_in_file());
    for n in 0..8 {
        bench.run("INSERT INTO t(b) VALUES (randomblob(100000))");
        bench.encode();
        bench.run(&format!("UPDATE t SET b = zeroblob({n} * 5000) WHERE id % 3 = 1"));
        bench.encode();
    }
    assert!(bench.store.is_in_file());
    assert_eq!(std::fs::read_dir(bench.dir.path()).expect("the directory").count(), 0);
    bench.assert_restores();
    let place = Place { memory_bytes_max: 256 << 10, ..bench.place() };
    let image = restored(place, &bench.files);
    assert!(image.is_in_file());
    assert!(bytes_of(&image) == bytes_of(&bench.store.shared.borrow().image));
    bench.run("DELETE FROM t WHERE id > 1; VACUUM");
    bench.encode();
    bench.assert_restores();
    assert!(bench.store.take_spill_error().is_none());
}

#[test]
fn a_small_database_is_packed_while_it_rests_and_loses_nothing() {
    let mut bench = Bench::new();
    bench.run("CREATE TABLE counter (id INTEGER PRIMARY KEY, value INTEGER)");
    bench.run("CREATE TABLE blob (body BLOB); INSERT INTO counter VALUES (1, 1)");
    bench.encode();
    let before = bench.store.memory_bytes();
    let (used, bytes) = (memory_bytes(), bytes_of(&bench.store.shared.borrow().image));
    bench.store.rest();
    let packed = bench.store.memory_bytes();
    assert!(packed + 2 * PAGE_BYTES < before, "{packed} bytes instead of {before}");
    assert_eq!(used - memory_bytes(), before - packed);
    // What needs no unpacking: restores, and files that are made of it.
    assert!(bytes == bytes_of(&bench.store.shared.borrow().image));
    bench.store.begin_compaction(Txid::new(1), NOW).expect("a snapshot");
    let mut file = vec![];
    while bench.store.compaction_step(1, &mut file).expect("a step").is_none() {}
    assert!(bytes_of(&restored(bench.place(), &[file])) == bytes);
    assert_eq!(bench.store.memory_bytes(), packed);
    // Reading and writing unpack it.
    let count = |db: &Connection| -> i64 {
        db.query_row("SELECT value FROM counter", [], |row| row.get(0)).expect("a value")
    };
    assert_eq!(count(&bench.db), 1);
    assert!(bench.store.memory_bytes() > packed);
    for value in 2..5 {
        bench.store.rest();
        bench.run("UPDATE counter SET value = value + 1");
        assert_eq!(count(&bench.db), value);
        bench.encode();
    }
    bench.store.rest();
    bench.run("BEGIN; DROP TABLE blob; ROLLBACK");
    bench.store.rest();
    bench.run("DROP TABLE blob; VACUUM");
    bench.encode();
    bench.store.rest();
    bench.assert_restores();
}

#[test]
fn a_database_that_is_read_or_large_is_not_packed() {
    let mut bench = Bench::new();
    bench.run("CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1), (2)");
    bench.encode();
    let before = bench.store.memory_bytes();
    let store = &mut bench.store;
    {
        let mut select = bench.db.prepare("SELECT id FROM t").expect("a statement");
        let mut rows = select.query([]).expect("rows");
        assert!(rows.next().expect("a row").is_some());
        store.rest();
        assert_eq!(store.memory_bytes(), before, "SQLite holds addresses of its pages");
        assert!(rows.next().expect("a row").is_some());
    }
    store.rest();
    assert!(store.memory_bytes() < before);
    bench.run("CREATE TABLE b (body BLOB); INSERT INTO b VALUES (zeroblob(300000))");
    bench.encode();
    let before = bench.store.memory_bytes();
    bench.store.rest();
    assert_eq!(bench.store.memory_bytes(), before, "unpacking it would take too long");
    bench.assert_restores();
}

#[test]
fn without_a_place_for_files_the_database_stays_in_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let taken = dir.path().join("taken");
    std::fs::write(&taken, b"a file where a directory should be").expect("a file");
    let place = Place { memory_bytes_max: 16 << 10, ..Place::new(&taken, &cell()) };
    let (mut store, db) = CellStore::create(place).expect("a cell");
    db.execute_batch("CREATE TABLE t(b); INSERT INTO t VALUES (zeroblob(90000))").expect("SQL");
    assert_eq!(store.commit_boundary(), Some(Txid::new(1)));
    assert!(store.take_spill_error().is_some());
    assert!(!store.is_in_file());
    store.encode_pending(NOW, &mut vec![]).expect("a file");
    db.execute_batch("INSERT INTO t VALUES (1)").expect("SQL");
    assert_eq!(store.commit_boundary(), Some(Txid::new(2)));
    assert!(store.take_spill_error().is_none(), "it was told before");
}

#[test]
fn store_and_connection_may_be_dropped_in_either_order() {
    let Bench { store, db, .. } = Bench::new();
    db.execute_batch("CREATE TABLE t(a)").expect("SQL");
    drop(store);
    db.execute_batch("INSERT INTO t VALUES (1)").expect("SQL without a store");
    drop(db);
    let Bench { mut store, db, .. } = Bench::new();
    db.execute_batch("CREATE TABLE t(a)").expect("SQL");
    drop(db);
    store.encode_pending(NOW, &mut vec![]).expect("a file without a connection");
}

#[test]
fn other_files_than_the_cell_cannot_be_opened() {
    let bench = Bench::new();
    Connection::open_with_flags_and_vfs("other", OpenFlags::default(), vfs::NAME)
        .expect_err("nothing was announced under that name");
    bench.db.execute_batch("ATTACH 'x.db' AS x").expect_err("there is one file only");
    bench.run("CREATE TABLE t(a); PRAGMA page_size=8192");
    let vacuum = bench.db.execute_batch("VACUUM");
    let size: i64 = bench.db.query_row("PRAGMA page_size", [], |row| row.get(0)).expect("a pragma");
    assert!(vacuum.is_err() && size == 4_096, "{vacuum:?} {size}");
    bench.run("INSERT INTO t VALUES (randomblob(100000))");
}

/// Numbers from a seed (SplitMix64), so that a failure can be run again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn random_sql(dice: &mut Dice, depth: u32) -> String {
    let (id, size) = (dice.below(400), dice.below(40) * dice.below(400));
    match dice.below(14) {
        0..4 => format!("INSERT OR REPLACE INTO t VALUES ({id}, {size}, zeroblob({size}))"),
        4..6 => format!("UPDATE t SET n = n + 1, b = hex(b) WHERE id BETWEEN {id} AND {id} + 5"),
        6 => format!("DELETE FROM t WHERE id > {id} AND n % 3 = 1"),
        7 => format!("INSERT INTO f(rowid, body) VALUES (NULL, 'w{id} x{}')", size % 50),
        8 => format!("DELETE FROM f WHERE rowid % 11 = {}", id % 11),
        9 => format!("CREATE TABLE IF NOT EXISTS x{}(a PRIMARY KEY, b)", id % 5),
        10 => format!("DROP TABLE IF EXISTS x{}", id % 5),
        11 => "CREATE INDEX IF NOT EXISTS tn ON t(n)".into(),
        12 => "DROP INDEX IF EXISTS tn".into(),
        _ if depth > 0 => {
            let count = 1 + dice.below(5);
            let inner: Vec<_> = (0..count).map(|_| random_sql(dice, depth - 1)).collect();
            let name = format!("s{depth}");
            let end = if dice.below(3) == 0 { "ROLLBACK TO" } else { "RELEASE" };
            format!("SAVEPOINT {name}; {}; {end} {name}; RELEASE {name}", inner.join("; "))
                .replace("RELEASE s1; RELEASE s1", "RELEASE s1")
                .replace("RELEASE s2; RELEASE s2", "RELEASE s2")
        }
        _ => "DELETE FROM x0 WHERE 0".into(),
    }
}

#[test]
fn a_thousand_random_operations_equal_those_on_an_ordinary_file() {
    for (seed, memory) in [(1, MEMORY_BYTES_MAX), (2, 64 << 10)] {
        let mut bench = Bench::with_memory(memory);
        let plain = Connection::open(bench.dir.path().join("plain.db")).expect("a file");
        plain.execute_batch("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF").expect("SQL");
        let start = "CREATE TABLE t(id INTEGER PRIMARY KEY, n INT, b); CREATE TABLE x0(a, b);
                     CREATE VIRTUAL TABLE f USING fts5(body)";
        bench.run(start);
        plain.execute_batch(start).expect("SQL");
        let mut dice = Dice(seed);
        for round in 0..500 {
            let sql = if dice.below(60) == 0 { "VACUUM".into() } else { random_sql(&mut dice, 2) };
            let ours = bench.db.execute_batch(&sql).map_err(|error| error.to_string());
            let theirs = plain.execute_batch(&sql).map_err(|error| error.to_string());
            assert_eq!(ours, theirs, "seed {seed} round {round}: {sql}");
            for db in [&bench.db, &plain] {
                if !db.is_autocommit() {
                    db.execute_batch("ROLLBACK").expect("an open transaction");
                }
            }
            bench.store.commit_boundary();
            if dice.below(4) == 0 && bench.store.pending() {
                bench.encode();
            }
            if round % 100 == 99 {
                assert!(dump(&bench.db) == dump(&plain), "seed {seed} round {round}");
                if bench.store.pending() {
                    bench.encode();
                }
                bench.assert_restores();
            }
        }
    }
}
