//! SQLite's memory: from the system's allocator, and counted.
//!
//! SQLite can count too, but for the whole process and under one lock. A database belongs to one
//! thread, so here each thread counts what it has taken.
//! Source: sqlite.org/c3ref/mem_methods.html.

use std::ffi::{c_int, c_void};
use std::ptr;

use rusqlite::ffi;

use super::arena;

/// Makes SQLite take its memory here. Before it runs; otherwise it is refused, and only the counts
/// are missing.
pub(super) fn install() {
    let methods = ffi::sqlite3_mem_methods {
        xMalloc: Some(x_malloc),
        xFree: Some(x_free),
        xRealloc: Some(x_realloc),
        xSize: Some(x_size),
        xRoundup: Some(x_roundup),
        xInit: Some(x_init),
        xShutdown: Some(x_shutdown),
        pAppData: ptr::null_mut(),
    };
    // SAFETY: the option takes a pointer to methods, which SQLite copies.
    unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw const methods) };
}

/// What an allocation takes.
///
/// # Safety
/// It is one of `x_malloc` or `x_realloc`, or null, which has nothing.
unsafe fn bytes_of(memory: *mut c_void) -> usize {
    // SAFETY: by the caller.
    unsafe { libc::malloc_usable_size(memory) }
}

unsafe extern "C" fn x_malloc(bytes: c_int) -> *mut c_void {
    // SAFETY: any size may be asked for. SQLite asks for at least one byte, and at most 2 GB.
    let memory = unsafe { libc::malloc(bytes as usize) };
    // SAFETY: it was allocated just now.
    arena::take(unsafe { bytes_of(memory) });
    memory
}

unsafe extern "C" fn x_free(memory: *mut c_void) {
    // SAFETY: SQLite frees what it was given here, once.
    unsafe {
        arena::give(bytes_of(memory));
        libc::free(memory);
    }
}

unsafe extern "C" fn x_realloc(memory: *mut c_void, bytes: c_int) -> *mut c_void {
    // SAFETY: SQLite passes what it was given here; on failure it keeps it.
    unsafe {
        let before = bytes_of(memory);
        let moved = libc::realloc(memory, bytes as usize);
        if !moved.is_null() {
            arena::give(before);
            arena::take(bytes_of(moved));
        }
        moved
    }
}

unsafe extern "C" fn x_size(memory: *mut c_void) -> c_int {
    // SAFETY: SQLite asks for what it was given here.
    unsafe { bytes_of(memory) as c_int }
}

/// As SQLite's own: sizes are multiples of 8.
unsafe extern "C" fn x_roundup(bytes: c_int) -> c_int {
    (bytes + 7) & !7
}

unsafe extern "C" fn x_init(_data: *mut c_void) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn x_shutdown(_data: *mut c_void) {}

#[cfg(test)]
mod tests {
    use celld_core::cell::CellId;

    use crate::storage::{CellStore, PAGE_BYTES, Place, memory_bytes};

    #[test]
    fn what_sqlite_takes_counts_until_it_is_given_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let cell = CellId::new("app.Room", &"0a".repeat(32)).expect("a good name");
        let place = Place::new(dir.path(), &cell);
        // What SQLite keeps for all databases comes with the first.
        drop(CellStore::create(place.clone()).expect("a cell"));
        let before = memory_bytes();
        let (store, db) = CellStore::create(place).expect("a cell");
        db.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)").expect("SQL");
        let sqlite = memory_bytes() - before - store.memory_bytes();
        assert!(sqlite > 2 * PAGE_BYTES, "{sqlite} bytes; its two pages for itself are more");
        db.execute_batch("INSERT INTO t VALUES (zeroblob(100000))").expect("SQL");
        drop((store, db));
        assert_eq!(memory_bytes(), before);
    }
}
