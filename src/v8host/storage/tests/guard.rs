//! What user SQL may not do, what it may, and in which words it is refused.

use super::*;

#[test]
fn user_sql_never_reaches_what_is_ours() {
    let db = database();
    db.kv_put("a", b"1").unwrap();
    db.exec("CREATE TABLE t (a)", &[], |_| {}).unwrap();
    for (sql, message) in [
        ("SELECT * FROM _cf_KV", "access to _cf_KV.key is prohibited: SQLITE_AUTH"),
        ("SELECT key FROM _CF_kv", "access to _cf_KV.key is prohibited: SQLITE_AUTH"),
        ("INSERT INTO _cf_KV VALUES ('a', 'b')", "not authorized: SQLITE_AUTH"),
        ("DROP TABLE _cf_KV", "not authorized: SQLITE_AUTH"),
        ("CREATE TABLE _Cf_x (a)", "not authorized: SQLITE_AUTH"),
        ("ALTER TABLE _cf_KV RENAME TO x", "not authorized: SQLITE_AUTH"),
        ("CREATE INDEX i ON _cf_KV (value)", "not authorized: SQLITE_AUTH"),
        ("CREATE INDEX _cf_i ON t (a)", "not authorized: SQLITE_AUTH"),
        (
            "CREATE TRIGGER _cf_t AFTER INSERT ON t BEGIN SELECT 1; END",
            "not authorized: SQLITE_AUTH",
        ),
        ("PRAGMA table_info(_cf_KV)", "not authorized: SQLITE_AUTH"),
        ("PRAGMA journal_mode", "not authorized: SQLITE_AUTH"),
        ("PRAGMA journal_mode = WAL", "not authorized: SQLITE_AUTH"),
        ("PRAGMA writable_schema = 1", "not authorized: SQLITE_AUTH"),
        ("PRAGMA foreign_keys = 'x'", "not authorized: SQLITE_AUTH"),
        ("PRAGMA data_version(1)", "not authorized: SQLITE_AUTH"),
        ("ATTACH ':memory:' AS x", "not authorized: SQLITE_AUTH"),
        ("CREATE TEMP TABLE x (a)", "not authorized: SQLITE_AUTH"),
        ("CREATE VIRTUAL TABLE x USING dbstat", "not authorized: SQLITE_AUTH"),
    ] {
        assert_eq!(error(&db, sql), message, "{sql}");
    }
    // What a view hides is asked when the view is read.
    run(&db, "CREATE VIEW w AS SELECT * FROM _cf_KV");
    assert!(error(&db, "SELECT * FROM w").contains("prohibited"));
    run(&db, "CREATE TRIGGER tr AFTER INSERT ON t BEGIN DELETE FROM _cf_KV; END");
    assert!(error(&db, "INSERT INTO t VALUES (1)").contains("SQLITE_AUTH"));
    assert!(
        error(&db, "SELECT sqlite_version()")
            .starts_with("not authorized to use function: sqlite_version")
    );
    // The text of our own cached statement is no way around the authorizer.
    db.kv_list(&List::default(), |_, _| true).unwrap();
    let ours = "SELECT key, value FROM _cf_KV WHERE key >= ?1 ORDER BY key LIMIT ?2";
    let binds = [Bind::Text(String::new()), Bind::Integer(5)];
    assert!(db.exec(ours, &binds, |_| {}).unwrap_err().to_string().contains("prohibited"));
    assert_eq!(get(&db, "a"), Some(b"1".to_vec()));
}

#[test]
fn transactions_in_user_sql_are_refused_with_the_way_out() {
    let db = database();
    for sql in [
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT a",
        "RELEASE a",
        "ROLLBACK TO a",
        "BEGIN IMMEDIATE",
    ] {
        assert!(error(&db, sql).contains("transactionSync()"), "{sql}: {}", error(&db, sql));
    }
    assert!(error(&db, "VACUUM").contains("cannot VACUUM from within a transaction"));
}

#[test]
fn permitted_pragmas_functions_and_modules_work() {
    let db = database();
    run(&db, "CREATE TABLE t (a INTEGER PRIMARY KEY, b)");
    for sql in [
        "PRAGMA table_info(t)",
        "PRAGMA page_size",
        "PRAGMA table_list",
        "PRAGMA foreign_keys",
        "PRAGMA quick_check",
        "PRAGMA optimize",
        "PRAGMA defer_foreign_keys = on",
        "PRAGMA defer_foreign_keys = OFF",
        "PRAGMA foreign_key_check",
        "SELECT * FROM pragma_table_info('t')",
        "SELECT json_extract('{\"a\":1}', '$.a'), lower('A'), sqrt(4)",
        "SELECT 'a' LIKE 'A', 'a' GLOB 'b', date('now')",
        "SELECT row_number() OVER () FROM t",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "INSERT INTO f VALUES ('hello')",
        "SELECT highlight(f, 0, '<', '>') FROM f WHERE f MATCH 'hello'",
        "CREATE VIRTUAL TABLE r USING rtree(id, a, b)",
        "INSERT INTO r VALUES (1, 2, 3)",
        "SELECT * FROM r WHERE a < 3",
        "ALTER TABLE t RENAME TO u",
        "ALTER TABLE u ADD COLUMN c",
        "ALTER TABLE u DROP COLUMN c",
        "ALTER TABLE u RENAME COLUMN b TO d",
        "REINDEX",
        "ANALYZE",
        "DROP TABLE f",
        "DROP TABLE r",
    ] {
        if let Err(error) = db.exec(sql, &[], |_| {}) {
            panic!("{sql}: {error}");
        }
    }
    assert_eq!(column(&db, "PRAGMA foreign_keys"), integers([1]));
}

#[test]
fn limits_are_those_of_workerd() {
    let db = database();
    let long = error(&db, &format!("SELECT 1{}", " ".repeat(100_001)));
    assert!(long.starts_with("statement too long") && long.ends_with("SQLITE_TOOBIG"), "{long}");
    let list =
        |n: usize, item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(",");
    assert_eq!(
        error(&db, &format!("CREATE TABLE w ({})", list(101, &|i| format!("c{i}")))),
        "too many columns on w: SQLITE_ERROR"
    );
    assert!(
        error(&db, &format!("SELECT {}", list(101, &|_| "?".into())))
            .starts_with("too many SQL variables")
    );
    assert!(
        error(&db, &["SELECT 1"; 6].join(" UNION ALL "))
            .starts_with("too many terms in compound SELECT")
    );
    let pattern = [Bind::Text("x".repeat(51))];
    assert!(
        db.exec("SELECT 'a' LIKE ?", &pattern, |_| {})
            .unwrap_err()
            .to_string()
            .starts_with("LIKE or GLOB pattern too complex")
    );
    let blob = [Bind::Blob(vec![0; (4 << 20) + 1])];
    assert!(db.exec("SELECT ?", &blob, |_| {}).unwrap_err().to_string().ends_with("SQLITE_TOOBIG"));
}

#[test]
fn errors_read_as_workerd_words_them() {
    let db = database();
    run(&db, "CREATE TABLE t (a INTEGER PRIMARY KEY)");
    run(&db, "INSERT INTO t VALUES (1)");
    for (sql, message) in [
        ("SELEC 1", "near \"SELEC\": syntax error at offset 0: SQLITE_ERROR"),
        ("SELECT * FROM nope", "no such table: nope: SQLITE_ERROR"),
        (
            "INSERT INTO t VALUES (1)",
            "UNIQUE constraint failed: t.a: SQLITE_CONSTRAINT (extended: SQLITE_CONSTRAINT_PRIMARYKEY)",
        ),
        ("", "SQL code did not contain a statement."),
        ("-- nothing", "SQL code did not contain a statement."),
        ("SELECT 1; -- nothing", "SQL code did not contain a statement."),
        ("SELECT ?", "Wrong number of parameter bindings for SQL query."),
        (
            "SELECT ?; SELECT 1",
            "When executing multiple SQL statements in a single call, only the last statement can have parameters.",
        ),
    ] {
        assert_eq!(error(&db, sql), message, "{sql}");
    }
}
