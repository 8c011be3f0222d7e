//! The database of a cell: turns, transactions, cursors, alarms.

use rusqlite::Connection;

use super::*;

mod guard;

fn database() -> Database {
    Database::new(Connection::open_in_memory().unwrap()).unwrap()
}

fn run(db: &Database, sql: &str) -> Executed {
    db.exec(sql, &[], |_| {}).unwrap()
}

fn error(db: &Database, sql: &str) -> String {
    db.exec(sql, &[], |_| {}).unwrap_err().to_string()
}

/// All values of the first column.
fn column(db: &Database, sql: &str) -> Vec<Bind> {
    let mut values = Vec::new();
    let executed = db.exec(sql, &[], |row| values.push(row.get(0).to_bind())).unwrap();
    if let Some(cursor) = executed.cursor {
        values.extend(rest(db, cursor).unwrap());
    }
    values
}

fn rest(db: &Database, cursor: CursorId) -> Result<Vec<Bind>, DbError> {
    let mut values = Vec::new();
    while !db.fetch(cursor, 7, |row| values.push(row.get(0).to_bind()))?.done {}
    Ok(values)
}

fn integers(values: impl IntoIterator<Item = i64>) -> Vec<Bind> {
    values.into_iter().map(Bind::Integer).collect()
}

fn get(db: &Database, key: &str) -> Option<Vec<u8>> {
    db.kv_get(key, <[u8]>::to_vec).unwrap()
}

/// Numbers 1 to 100 in table t.
fn with_rows(db: &Database) {
    run(db, "CREATE TABLE t (n INTEGER PRIMARY KEY, v)");
    run(
        db,
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 100) INSERT INTO t SELECT n, 'v' FROM c",
    );
    assert!(db.end_turn().unwrap());
}

#[test]
fn the_writes_of_a_turn_are_one_transaction_and_reads_open_none() {
    let db = database();
    assert!(!db.needs_end_turn());
    assert_eq!(get(&db, "a"), None);
    assert!(!db.needs_end_turn(), "a read opened a transaction");
    db.kv_put("a", b"1").unwrap();
    run(&db, "CREATE TABLE t (x)");
    assert!(db.needs_end_turn());
    assert!(db.end_turn().unwrap());
    assert!(!db.needs_end_turn());
    assert!(!db.end_turn().unwrap(), "nothing was written since");
    column(&db, "SELECT * FROM t");
    assert!(!db.needs_end_turn(), "a read opened a transaction");
}

#[test]
fn two_connections_see_a_turn_at_once_or_not_at_all() {
    let directory = std::env::temp_dir().join(format!("celld-storage-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("a.db");
    let _ = std::fs::remove_file(&path);
    let db = Database::new(Connection::open(&path).unwrap()).unwrap();
    let other = Connection::open(&path).unwrap();
    let count =
        || other.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap();
    run(&db, "CREATE TABLE t (x)");
    db.end_turn().unwrap();
    run(&db, "INSERT INTO t VALUES (1)");
    run(&db, "INSERT INTO t VALUES (2)");
    assert_eq!(count(), 0);
    db.end_turn().unwrap();
    assert_eq!(count(), 2);
    drop(db);
    drop(other);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn keys_and_values_come_back_in_byte_order() {
    let db = database();
    for key in ["b", "a", "é", "\u{1F600}", "\u{ffff}", "ba", "", "a\0x"] {
        db.kv_put(key, key.as_bytes()).unwrap();
    }
    let list = |list: &List| {
        let mut keys = Vec::new();
        db.kv_list(list, |key, value| {
            assert_eq!(key, value);
            keys.push(String::from_utf8(key.to_vec()).unwrap());
            true
        })
        .unwrap();
        keys
    };
    assert_eq!(list(&List::default()), ["", "a", "a\0x", "b", "ba", "é", "\u{ffff}", "\u{1F600}"]);
    assert_eq!(
        list(&List { reverse: true, limit: Some(2), ..List::default() }),
        ["\u{1F600}", "\u{ffff}"]
    );
    let mut prefix = List::default();
    prefix.with_prefix(b"b");
    assert_eq!(list(&prefix), ["b", "ba"]);
    prefix.start_at(b"a");
    prefix.end_before(b"z");
    assert_eq!(list(&prefix), ["b", "ba"], "a wider range does not undo the prefix");
    let mut after = List::default();
    after.after(b"a");
    assert_eq!(list(&after), ["a\0x", "b", "ba", "é", "\u{ffff}", "\u{1F600}"]);
    let mut empty = List::default();
    empty.start_at(b"c");
    empty.end_before(b"b");
    assert!(list(&empty).is_empty());
    let mut wide = List::default();
    wide.with_prefix("\u{10FFFF}".as_bytes());
    assert!(list(&wide).is_empty());
}

#[test]
fn put_replaces_and_delete_tells_whether_the_key_was_there() {
    let db = database();
    assert!(!db.kv_delete("a").unwrap());
    assert!(!db.needs_end_turn(), "a delete from no table wrote");
    db.kv_put("a", b"1").unwrap();
    db.kv_put("a", b"22").unwrap();
    assert_eq!(get(&db, "a"), Some(b"22".to_vec()));
    assert!(db.kv_delete("a").unwrap());
    assert!(!db.kv_delete("a").unwrap());
    db.kv_put("empty", b"").unwrap();
    assert_eq!(get(&db, "empty"), Some(Vec::new()));
}

#[test]
fn sizes_beyond_the_limits_are_range_errors() {
    let db = database();
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    assert!(matches!(db.kv_put(&long, b""), Err(DbError::Range(_))));
    assert!(matches!(db.kv_get(&long, |_| ()), Err(DbError::Range(_))));
    assert!(matches!(db.kv_delete(&long), Err(DbError::Range(_))));
    assert!(matches!(db.kv_put("k", &vec![0; VALUE_BYTES_MAX + 1]), Err(DbError::Range(_))));
    assert!(!db.needs_end_turn(), "a refused put opened a transaction");
    db.kv_put(&long[1..], &vec![7; VALUE_BYTES_MAX]).unwrap();
    assert_eq!(get(&db, &long[1..]).unwrap().len(), VALUE_BYTES_MAX);
}

#[test]
fn of_several_statements_all_run_and_the_last_one_answers() {
    let db = database();
    let mut rows = Vec::new();
    let sql = "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2), (3);\n SELECT a FROM t WHERE a > 1;SELECT a FROM t WHERE a < ?; ";
    let executed = db.exec(sql, &[Bind::Real(3.0)], |row| rows.push(row.get(0).to_bind())).unwrap();
    assert_eq!(executed.columns, ["a"]);
    rows.extend(rest(&db, executed.cursor.unwrap()).unwrap());
    assert_eq!(rows, integers([1, 2]));
    assert_eq!(executed.rows_written, 3);
}

#[test]
fn values_of_each_type_survive_the_round_trip() {
    let db = database();
    let values = [
        Bind::Null,
        Bind::Integer(i64::MIN),
        Bind::Real(1.5),
        Bind::Text("é\0x".into()),
        Bind::Text(String::new()),
        Bind::Blob(vec![]),
        Bind::Blob(vec![0, 255]),
    ];
    for value in values {
        let mut seen = None;
        db.exec("SELECT ?", std::slice::from_ref(&value), |row| seen = Some(row.get(0).to_bind()))
            .unwrap();
        assert_eq!(seen, Some(value));
    }
}

#[test]
fn an_open_cursor_blocks_no_write_no_commit_and_no_schema_change() {
    let db = database();
    with_rows(&db);
    let open = || {
        let cursor = run(&db, "SELECT n FROM t").cursor.unwrap();
        db.fetch(cursor, 3, |_| {}).unwrap();
        cursor
    };
    let cursor = open();
    run(&db, "INSERT INTO t VALUES (101, 'later')");
    assert!(db.end_turn().unwrap());
    db.kv_put("k", b"v").unwrap();
    assert!(db.end_turn().unwrap());
    assert_eq!(
        rest(&db, cursor).unwrap(),
        integers(5..=101),
        "a cursor goes on over turns and sees later rows"
    );

    let cursor = open();
    run(&db, "ALTER TABLE t ADD COLUMN w");
    run(&db, "DROP TABLE t");
    assert!(db.end_turn().unwrap());
    assert_eq!(
        rest(&db, cursor).unwrap(),
        integers(5..=101),
        "its rows were held before the table went"
    );
    assert_eq!(db.open_cursors(), 0);
}

#[test]
fn what_does_not_fit_into_memory_closes_the_cursor_not_the_write() {
    let db = database();
    run(&db, "CREATE TABLE big (b)");
    for _ in 0..20 {
        db.exec("INSERT INTO big VALUES (?)", &[Bind::Blob(vec![1; 1 << 20])], |_| {}).unwrap();
    }
    let cursor = run(&db, "SELECT b FROM big").cursor.unwrap();
    run(&db, "DROP TABLE big");
    assert!(rest(&db, cursor).unwrap_err().to_string().contains("16 MiB"));
    db.close(cursor);
    assert!(db.end_turn().unwrap());
}

#[test]
fn returning_writes_all_rows_at_once_and_commits_with_rows_unread() {
    let db = database();
    with_rows(&db);
    let executed = run(&db, "UPDATE t SET v = 'w' RETURNING n");
    assert_eq!(executed.rows_written, 100);
    assert!(db.end_turn().unwrap(), "the unread rows do not hold the commit");
    assert_eq!(rest(&db, executed.cursor.unwrap()).unwrap(), integers(2..=100));
    // Each row carries a megabyte, so the rows exceed the bound: nothing is written.
    let failed = error(&db, "UPDATE t SET v = 'lost' RETURNING n, zeroblob(1000000)");
    assert!(failed.contains("RETURNING"), "{failed}");
    assert_eq!(column(&db, "SELECT DISTINCT v FROM t"), [Bind::Text("w".into())]);
    let executed = run(&db, "UPDATE t SET v = 'x' RETURNING n, zeroblob(100000)");
    assert_eq!(rest(&db, executed.cursor.unwrap()).unwrap().len(), 99, "the memory was given back");
}

#[test]
fn dropped_cursors_are_ended_by_the_next_call() {
    let db = database();
    with_rows(&db);
    let cursor = run(&db, "SELECT n FROM t").cursor.unwrap();
    db.dropped_cursors().borrow_mut().push(cursor);
    assert_eq!(db.open_cursors(), 1);
    db.end_turn().unwrap();
    assert_eq!(db.open_cursors(), 0);
    assert!(db.fetch(cursor, 1, |_| {}).unwrap().done);
}

#[test]
fn many_open_cursors_are_bounded_and_all_stay_readable() {
    let db = database();
    with_rows(&db);
    let cursors: Vec<_> =
        (0..600).map(|_| run(&db, "SELECT n FROM t WHERE n > 90").cursor.unwrap()).collect();
    for cursor in cursors {
        assert_eq!(rest(&db, cursor).unwrap(), integers(92..=100));
    }
}

#[test]
fn one_statement_may_run_twice_at_a_time() {
    let db = database();
    with_rows(&db);
    let first = run(&db, "SELECT n FROM t").cursor.unwrap();
    let second = run(&db, "SELECT n FROM t").cursor.unwrap();
    assert_eq!(rest(&db, second).unwrap(), integers(2..=100));
    assert_eq!(rest(&db, first).unwrap(), integers(2..=100));
}

#[test]
fn a_savepoint_takes_back_what_was_written_inside_it() {
    let db = database();
    db.kv_put("outer", b"1").unwrap();
    let sync = db.begin(SavepointKind::Sync).unwrap();
    db.kv_put("inner", b"1").unwrap();
    let nested = db.begin(SavepointKind::Sync).unwrap();
    db.kv_put("nested", b"1").unwrap();
    db.roll_back(nested).unwrap();
    assert_eq!(get(&db, "nested"), None);
    db.release(sync).unwrap();
    assert!(db.release(sync).unwrap_err().to_string().contains("ended already"));
    assert!(db.end_turn().unwrap());
    assert_eq!((get(&db, "outer"), get(&db, "inner")), (Some(b"1".to_vec()), Some(b"1".to_vec())));
}

#[test]
fn a_rollback_also_takes_back_the_table_of_keys() {
    let db = database();
    let savepoint = db.begin(SavepointKind::Sync).unwrap();
    db.kv_put("a", b"1").unwrap();
    db.roll_back(savepoint).unwrap();
    assert_eq!(get(&db, "a"), None);
    db.kv_put("a", b"2").unwrap();
    assert!(db.end_turn().unwrap());
    assert_eq!(get(&db, "a"), Some(b"2".to_vec()));
}

#[test]
fn an_async_transaction_spans_turns_and_what_came_before_it_does_not_wait() {
    let db = database();
    db.kv_put("before", b"1").unwrap();
    let transaction = db.begin(SavepointKind::Async).unwrap();
    db.kv_put("inside", b"1").unwrap();
    assert!(db.end_turn().unwrap(), "what came before it is committed");
    db.kv_put("inside2", b"1").unwrap();
    assert!(!db.end_turn().unwrap(), "the transaction is open");
    db.roll_back(transaction).unwrap();
    assert!(!db.end_turn().unwrap());
    assert_eq!(
        (get(&db, "before"), get(&db, "inside"), get(&db, "inside2")),
        (Some(b"1".to_vec()), None, None)
    );

    let outer = db.begin(SavepointKind::Async).unwrap();
    let inner = db.begin(SavepointKind::Async).unwrap();
    db.kv_put("kept", b"1").unwrap();
    db.release(outer).unwrap();
    assert!(db.release(inner).is_err(), "it ended with the outer one");
    assert!(db.end_turn().unwrap());
    assert_eq!(get(&db, "kept"), Some(b"1".to_vec()));
}

#[test]
fn a_failed_commit_is_an_error_that_resets_the_cell() {
    let db = database();
    run(
        &db,
        "CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (p REFERENCES p DEFERRABLE INITIALLY DEFERRED)",
    );
    assert!(db.end_turn().unwrap());
    run(&db, "INSERT INTO c VALUES (7)");
    let error = db.end_turn().unwrap_err();
    assert!(
        matches!(&error, DbError::Broken(text) if text.contains("FOREIGN KEY constraint failed")),
        "{error}"
    );
    assert!(
        matches!(db.kv_put("a", b"1"), Err(DbError::Broken(_))),
        "a broken database takes no writes"
    );
    assert!(matches!(db.end_turn(), Err(DbError::Broken(_))));
}

#[test]
fn a_transaction_that_sqlite_gave_up_is_never_reported_as_committed() {
    let db = database();
    run(&db, "CREATE TABLE t (a UNIQUE)");
    run(&db, "INSERT INTO t VALUES (1)");
    db.end_turn().unwrap();
    db.kv_put("promised", b"1").unwrap();
    let error = db.exec("INSERT OR ROLLBACK INTO t VALUES (1)", &[], |_| {}).unwrap_err();
    assert!(matches!(error, DbError::Broken(_)), "{error}");
    assert!(matches!(db.end_turn(), Err(DbError::Broken(_))));
    assert!(matches!(db.kv_get("promised", |_| ()), Err(DbError::Broken(_))));
}

#[test]
fn a_failing_statement_leaves_the_rest_of_the_turn_alone() {
    let db = database();
    run(&db, "CREATE TABLE t (a UNIQUE)");
    run(&db, "INSERT INTO t VALUES (1)");
    error(&db, "INSERT INTO t VALUES (2), (1)");
    error(&db, "INSERT INTO t VALUES (3), (1) RETURNING a");
    assert!(db.end_turn().unwrap());
    assert_eq!(column(&db, "SELECT a FROM t"), integers([1]));
}

#[test]
fn delete_all_drops_everything_in_one_go() {
    let db = database();
    db.delete_all(AlarmFate::Deleted).unwrap();
    assert!(!db.needs_end_turn(), "there was nothing to delete");
    db.kv_put("a", b"1").unwrap();
    run(
        &db,
        "CREATE TABLE p (id INTEGER PRIMARY KEY AUTOINCREMENT); CREATE TABLE c (p REFERENCES p NOT NULL)",
    );
    run(&db, "INSERT INTO p VALUES (1); INSERT INTO c VALUES (1)");
    run(
        &db,
        "CREATE VIEW w AS SELECT * FROM p; CREATE INDEX i ON c (p); CREATE VIRTUAL TABLE f USING fts5(x); CREATE TABLE \"a\"\"b\" (x)",
    );
    run(&db, "CREATE TRIGGER tr AFTER INSERT ON c BEGIN DELETE FROM p; END");
    db.end_turn().unwrap();
    let cursor = run(&db, "SELECT name FROM sqlite_master").cursor.unwrap();
    db.delete_all(AlarmFate::Deleted).unwrap();
    assert!(rest(&db, cursor).unwrap_err().to_string().contains("deleteAll()"));
    assert!(db.end_turn().unwrap());
    assert_eq!(column(&db, "SELECT name FROM sqlite_master WHERE name <> 'sqlite_sequence'"), []);
    assert_eq!(column(&db, "PRAGMA foreign_keys"), integers([1]));
    assert_eq!(get(&db, "a"), None);
    db.kv_put("a", b"2").unwrap();
    assert!(db.end_turn().unwrap());
    let savepoint = db.begin(SavepointKind::Sync).unwrap();
    assert_eq!(
        db.delete_all(AlarmFate::Deleted).unwrap_err().to_string(),
        "Cannot call deleteAll() within a transaction"
    );
    db.release(savepoint).unwrap();
    assert_eq!(get(&db, "a"), Some(b"2".to_vec()));
}

#[test]
fn counters_tell_rows_read_and_written() {
    let db = database();
    with_rows(&db);
    let all = run(&db, "SELECT * FROM t WHERE v = 'none'");
    assert_eq!((all.rows_read, all.rows_written), (100, 0));
    let one = run(&db, "SELECT * FROM t WHERE n = 5");
    assert_eq!((one.rows_read, one.rows_written), (1, 0));
    let update = run(&db, "UPDATE t SET v = 'u' WHERE n <= 10");
    assert_eq!((update.rows_read, update.rows_written), (10, 10));
    assert_eq!(run(&db, "CREATE TABLE u (a)").rows_written, 0);
}

#[test]
fn the_statement_cache_is_bounded_by_text() {
    let db = database();
    let filler = "x".repeat(50_000);
    for index in 0..60 {
        run(&db, &format!("SELECT {index} /* {filler} */"));
    }
    let (statements, bytes) = db.cache.borrow().size();
    assert!(bytes <= 1 << 20 && statements > 10, "{statements} statements, {bytes} bytes");
    run(&db, "SELECT 1");
    run(&db, "SELECT 1");
    assert_eq!(db.cache.borrow().size().0, statements + 1);
}

#[test]
fn the_size_counts_pages_in_use() {
    let db = database();
    run(&db, "CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(100000))");
    let full = db.size().unwrap();
    assert!(full >= 100_000 && full.is_multiple_of(4096), "{full}");
    db.delete_all(AlarmFate::Deleted).unwrap();
    assert!(db.size().unwrap() < full);
}

#[test]
fn an_alarm_is_told_after_the_commit_that_set_it_and_not_before() {
    let db = database();
    assert_eq!(db.alarm().unwrap(), None);
    db.set_alarm(5_000, Some("a")).unwrap();
    assert_eq!(db.take_alarm_change(), None);
    db.end_turn().unwrap();
    let set = StoredAlarm { scheduled_ms: 5_000, due_ms: 5_000, retries: 0 };
    assert_eq!(db.take_alarm_change(), Some(Some(set)));
    assert_eq!(db.take_alarm_change(), None, "it is told once");
    assert_eq!(db.alarm_name().unwrap().as_deref(), Some("a"));
    // A transaction that is open hides what it does from the shard.
    let open = db.begin(SavepointKind::Async).unwrap();
    db.delete_alarm().unwrap();
    db.end_turn().unwrap();
    assert_eq!(db.take_alarm_change(), None);
    db.roll_back(open).unwrap();
    db.end_turn().unwrap();
    assert_eq!(db.take_alarm_change().unwrap_or(Some(set)), Some(set));
    db.delete_alarm().unwrap();
    db.end_turn().unwrap();
    assert_eq!(db.take_alarm_change(), Some(None));
}

#[test]
fn the_alarm_that_runs_is_hidden_until_another_one_is_set() {
    let db = database();
    db.set_alarm(5_000, None).unwrap();
    db.begin_alarm_run().unwrap();
    assert_eq!(db.visible_alarm().unwrap(), None);
    assert!(db.alarm().unwrap().is_some(), "it is owed");
    let savepoint = db.begin(SavepointKind::Sync).unwrap();
    // Also when it is the same time.
    db.set_alarm(5_000, None).unwrap();
    assert_eq!(db.visible_alarm().unwrap(), Some(5_000));
    db.roll_back(savepoint).unwrap();
    assert_eq!(db.visible_alarm().unwrap(), None);
    db.delete_alarm().unwrap();
    db.set_alarm(6_000, None).unwrap();
    assert_eq!(db.visible_alarm().unwrap(), Some(6_000));
    db.end_turn().unwrap();
    db.take_alarm_change();
    // What the shard writes is no change of the cell's own.
    let retry = StoredAlarm { scheduled_ms: 6_000, due_ms: 8_000, retries: 1 };
    db.end_alarm_run();
    db.store_alarm(Some(retry)).unwrap();
    db.end_turn().unwrap();
    assert_eq!((db.take_alarm_change(), db.alarm().unwrap()), (None, Some(retry)));
    assert_eq!(db.visible_alarm().unwrap(), Some(6_000));
}

#[test]
fn a_statement_of_the_cache_has_the_columns_of_the_new_schema() {
    let db = database();
    run(&db, "CREATE TABLE t (a)");
    for sql in ["SELECT * FROM t", "INSERT INTO t VALUES (1) RETURNING *"] {
        assert_eq!(run(&db, sql).columns, ["a"], "{sql}");
    }
    run(&db, "ALTER TABLE t ADD COLUMN b DEFAULT 2");
    run(&db, "ALTER TABLE t RENAME COLUMN a TO c");
    for sql in ["SELECT * FROM t", "INSERT INTO t (c) VALUES (1) RETURNING *"] {
        let mut row = 0;
        let executed = db.exec(sql, &[], |first| row = first.columns()).unwrap();
        assert_eq!((executed.columns, row), (vec!["c".to_owned(), "b".to_owned()], 2), "{sql}");
    }
    run(&db, "DELETE FROM t");
    assert_eq!(run(&db, "SELECT * FROM t").columns, ["c", "b"], "without a row too");
    run(&db, "ALTER TABLE t DROP COLUMN b");
    assert_eq!(run(&db, "SELECT * FROM t").columns, ["c"]);
}

#[test]
fn statistics_are_taken_of_the_users_tables_only() {
    let db = database();
    run(&db, "CREATE TABLE t (a)");
    run(&db, "CREATE INDEX i ON t (a)");
    run(&db, "INSERT INTO t VALUES (1)");
    db.kv_put("k", b"v").unwrap();
    for sql in ["ANALYZE", "ANALYZE main", "ANALYZE t", "PRAGMA optimize", "ANALYZE _cf_KV"] {
        run(&db, sql);
    }
    let tables = [Bind::Text("t".into())];
    assert_eq!(column(&db, "SELECT tbl FROM sqlite_stat1"), tables);
}
