//! The SQLite VFS "celld": an image behind each database, and nothing else.
//!
//! Invariant: which pages a commit wrote is known exactly. SQLite keeps its journal in memory and
//! writes pages in one burst that ends with `SQLITE_FCNTL_COMMIT_PHASETWO`; a burst that fails is
//! followed by the old pages. A callback neither panics nor waits.
//!
//! One thread owns a store and its connection; the VFS itself has no state but the names of
//! databases that are about to be opened, one table for each thread.
//! Source: sqlite.org/c3ref/io_methods.html, sqlite.org/c3ref/vfs.html (SQLite 3.54).

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;
use std::sync::OnceLock;

use rusqlite::ffi;

use super::PAGE_BYTES;
use super::compaction::Cut;
use super::heap;
use super::image::Image;
use super::ledger::PageSet;

pub(super) const NAME: &CStr = c"celld";

/// The page size in the header of a database.
const PAGE_SIZE_FIELD: [u8; 2] = (PAGE_BYTES as u16).to_be_bytes();

/// What a store and its open database share.
pub(super) struct State {
    pub(super) image: Image,
    /// Pages written since the last segment was encoded, or more.
    pub(super) dirty: PageSet,
    /// Pages were written since the last commit.
    wrote: bool,
    /// There was a commit since the store last looked.
    pub(super) committed: bool,
    /// Writing the image failed: it may be torn, and nothing may be made from it any more.
    pub(super) broken: Option<String>,
    /// A file that is being made from the image as it was.
    pub(super) cut: Option<Cut>,
}

pub(super) type Shared = Rc<RefCell<State>>;

impl State {
    pub(super) fn new(image: Image) -> Shared {
        Rc::new(RefCell::new(Self {
            image,
            dirty: PageSet::default(),
            wrote: false,
            committed: false,
            broken: None,
            cut: None,
        }))
    }

    fn write(&mut self, pgno: u32, data: &[u8; PAGE_BYTES]) -> io::Result<()> {
        self.save_for_cut(pgno)?;
        for grown in self.image.pages() + 1..pgno {
            self.dirty.insert(grown);
        }
        self.image.write(pgno, data)?;
        self.dirty.insert(pgno);
        self.wrote = true;
        Ok(())
    }

    fn set_pages(&mut self, pages: u32) -> io::Result<()> {
        let before = self.image.pages();
        for pgno in pages + 1..=before {
            self.save_for_cut(pgno)?;
        }
        for grown in before + 1..=pages {
            self.dirty.insert(grown);
        }
        self.image.set_pages(pages)?;
        self.wrote |= pages != before;
        Ok(())
    }

    /// A page that an unfinished file still needs is copied before it changes.
    fn save_for_cut(&mut self, pgno: u32) -> io::Result<()> {
        match &mut self.cut {
            Some(cut) if cut.needs(pgno) => cut.save(pgno, &self.image),
            Some(_) | None => Ok(()),
        }
    }

    fn commit(&mut self) {
        self.committed |= self.wrote;
        self.wrote = false;
    }

    /// The image no longer is what SQLite believes it to be.
    fn fail(&mut self, error: &io::Error, code: c_int) -> c_int {
        self.broken.get_or_insert_with(|| error.to_string());
        if error.kind() == io::ErrorKind::StorageFull { ffi::SQLITE_FULL } else { code }
    }
}

thread_local! {
    /// Databases between `announce` and `xOpen`.
    static ANNOUNCED: RefCell<HashMap<String, Shared>> = RefCell::new(HashMap::new());
}

/// Makes `state` what the next open of `name` on this thread finds.
pub(super) fn announce(name: &str, state: &Shared) {
    ANNOUNCED.with_borrow_mut(|table| table.insert(name.to_owned(), state.clone()));
}

/// After an open, whatever became of it.
pub(super) fn withdraw(name: &str) {
    ANNOUNCED.with_borrow_mut(|table| table.remove(name));
}

#[repr(C)]
struct CellFile {
    base: ffi::sqlite3_file,
    /// One reference of the `Rc`, from `xOpen` to `xClose`.
    state: *const RefCell<State>,
}

/// Registers the VFS, once for the process.
///
/// # Errors
/// SQLite's code.
pub(super) fn register() -> Result<(), c_int> {
    static DONE: OnceLock<c_int> = OnceLock::new();
    match *DONE.get_or_init(register_once) {
        ffi::SQLITE_OK => Ok(()),
        code => Err(code),
    }
}

fn register_once() -> c_int {
    heap::install();
    // 20 pages would be allocated for each database at its first read; a small cell has two. If
    // SQLite already runs, this is refused and only costs that memory.
    let (none, zero): (*mut c_void, c_int) = (ptr::null_mut(), 0);
    // SAFETY: the option takes a pointer and two ints; null and zero mean "no bulk allocation".
    unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_PAGECACHE, none, zero, zero) };
    // SAFETY: null asks for the default VFS; it is static, and copied, not kept.
    let Some(default) = (unsafe { ffi::sqlite3_vfs_find(ptr::null()).as_ref() }) else {
        return ffi::SQLITE_ERROR;
    };
    let vfs = ffi::sqlite3_vfs {
        iVersion: 2,
        szOsFile: size_of::<CellFile>() as c_int,
        mxPathname: 64,
        pNext: ptr::null_mut(),
        zName: NAME.as_ptr(),
        pAppData: ptr::null_mut(),
        xOpen: Some(x_open),
        xDelete: Some(x_delete),
        xAccess: Some(x_access),
        xFullPathname: Some(x_full_pathname),
        xDlOpen: None,
        xDlError: None,
        xDlSym: None,
        xDlClose: None,
        // Clock and randomness of the system: these functions use none of their VFS's state.
        ..*default
    };
    // SAFETY: the VFS lives as long as the process.
    unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(vfs)), 0) }
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    // 3: with `xFetch`, so that pages are kept once. No shared memory: there is no WAL.
    iVersion: 3,
    xClose: Some(x_close),
    xRead: Some(x_read),
    xWrite: Some(x_write),
    xTruncate: Some(x_truncate),
    xSync: Some(x_sync),
    xFileSize: Some(x_file_size),
    xLock: Some(x_lock),
    xUnlock: Some(x_lock),
    xCheckReservedLock: Some(x_check_reserved_lock),
    xFileControl: Some(x_file_control),
    xSectorSize: Some(x_sector_size),
    xDeviceCharacteristics: Some(x_device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: Some(x_fetch),
    xUnfetch: Some(x_unfetch),
};

/// Runs `body` on the state of an open file; a panic or a second entry is an I/O error.
///
/// # Safety
/// `file` was opened by `x_open` and not closed.
unsafe fn with_state(
    file: *mut ffi::sqlite3_file,
    code: c_int,
    body: impl FnOnce(&mut State) -> c_int,
) -> c_int {
    // SAFETY: by the caller; `x_open` left a live `Rc` in the file.
    let state = unsafe { &*(*file.cast::<CellFile>()).state };
    let run = || state.try_borrow_mut().map_or(code, |mut state| body(&mut state));
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(code)
}

unsafe extern "C" fn x_open(
    _vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let file = file.cast::<CellFile>();
    // SAFETY: SQLite gives `szOsFile` bytes. Null methods mean: not open, do not close.
    unsafe { (*file).base.pMethods = ptr::null() };
    if name.is_null() || flags & ffi::SQLITE_OPEN_MAIN_DB == 0 {
        // Journals and temporary files: they are in memory, or somebody changed a pragma.
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: a name is a C string for the time of the call.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let find = || ANNOUNCED.with_borrow_mut(|table| table.remove(name.as_ref()));
    let Ok(Some(state)) = catch_unwind(AssertUnwindSafe(find)) else {
        return ffi::SQLITE_CANTOPEN;
    };
    // SAFETY: as above; `out_flags` may be null.
    unsafe {
        (*file).state = Rc::into_raw(state);
        (*file).base.pMethods = &METHODS;
        if let Some(out) = out_flags.as_mut() {
            *out = flags;
        }
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn x_close(file: *mut ffi::sqlite3_file) -> c_int {
    let file = file.cast::<CellFile>();
    // SAFETY: takes back the reference of `x_open`; null methods keep SQLite from a second close.
    let state = unsafe {
        (*file).base.pMethods = ptr::null();
        Rc::from_raw((*file).state)
    };
    catch_unwind(AssertUnwindSafe(|| drop(state)))
        .map_or(ffi::SQLITE_IOERR_CLOSE, |()| ffi::SQLITE_OK)
}

unsafe extern "C" fn x_read(
    file: *mut ffi::sqlite3_file,
    target: *mut c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    let (Ok(amount), Ok(offset)) = (usize::try_from(amount), u64::try_from(offset)) else {
        return ffi::SQLITE_IOERR_READ;
    };
    // SAFETY: SQLite gives a buffer of `amount` bytes.
    let target = unsafe {
        ptr::write_bytes(target.cast::<u8>(), 0, amount);
        std::slice::from_raw_parts_mut(target.cast::<u8>(), amount)
    };
    // SAFETY: the file is open.
    unsafe {
        with_state(file, ffi::SQLITE_IOERR_READ, |state| match state.image.read(offset, target) {
            Ok(count) if count == amount => ffi::SQLITE_OK,
            Ok(_) => ffi::SQLITE_IOERR_SHORT_READ,
            Err(_) => ffi::SQLITE_IOERR_READ,
        })
    }
}

unsafe extern "C" fn x_write(
    file: *mut ffi::sqlite3_file,
    source: *const c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    let page = u64::try_from(offset).ok().filter(|at| at % PAGE_BYTES as u64 == 0);
    let pgno = page.and_then(|at| u32::try_from(at / PAGE_BYTES as u64 + 1).ok());
    let (Some(pgno), true) = (pgno, amount as usize == PAGE_BYTES) else {
        // Only a database with another page size asks for this.
        return ffi::SQLITE_IOERR_WRITE;
    };
    // SAFETY: SQLite gives `amount` bytes, which is a page.
    let data = unsafe { &*source.cast::<[u8; PAGE_BYTES]>() };
    if pgno == 1 && data[16..18] != PAGE_SIZE_FIELD {
        // `VACUUM` with another page size copies in pieces of the old one, and then cannot write.
        return ffi::SQLITE_IOERR_WRITE;
    }
    // SAFETY: the file is open.
    unsafe {
        with_state(file, ffi::SQLITE_IOERR_WRITE, |state| match state.write(pgno, data) {
            Ok(()) => ffi::SQLITE_OK,
            Err(error) => state.fail(&error, ffi::SQLITE_IOERR_WRITE),
        })
    }
}

unsafe extern "C" fn x_truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    let pages = u64::try_from(size).ok().map(|size| size.div_ceil(PAGE_BYTES as u64));
    let Some(pages) = pages.and_then(|pages| u32::try_from(pages).ok()) else {
        return ffi::SQLITE_IOERR_TRUNCATE;
    };
    // SAFETY: the file is open.
    unsafe {
        with_state(file, ffi::SQLITE_IOERR_TRUNCATE, |state| match state.set_pages(pages) {
            Ok(()) => ffi::SQLITE_OK,
            Err(error) => state.fail(&error, ffi::SQLITE_IOERR_TRUNCATE),
        })
    }
}

/// What is durable is decided by LTX files, not here.
unsafe extern "C" fn x_sync(_file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn x_file_size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    // SAFETY: the file is open, and SQLite gives a place for the size.
    unsafe {
        with_state(file, ffi::SQLITE_IOERR_FSTAT, |state| {
            *size = state.image.bytes() as i64;
            ffi::SQLITE_OK
        })
    }
}

/// Nobody else can open the image.
unsafe extern "C" fn x_lock(_file: *mut ffi::sqlite3_file, _level: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn x_check_reserved_lock(
    _file: *mut ffi::sqlite3_file,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives a place for the answer.
    unsafe { *out = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn x_file_control(
    file: *mut ffi::sqlite3_file,
    operation: c_int,
    _argument: *mut c_void,
) -> c_int {
    if operation != ffi::SQLITE_FCNTL_COMMIT_PHASETWO {
        return ffi::SQLITE_NOTFOUND;
    }
    // SAFETY: the file is open.
    unsafe {
        with_state(file, ffi::SQLITE_IOERR, |state| {
            state.commit();
            ffi::SQLITE_OK
        })
    }
}

unsafe extern "C" fn x_sector_size(_file: *mut ffi::sqlite3_file) -> c_int {
    PAGE_BYTES as c_int
}

unsafe extern "C" fn x_device_characteristics(_file: *mut ffi::sqlite3_file) -> c_int {
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE | ffi::SQLITE_IOCAP_UNDELETABLE_WHEN_OPEN
}

unsafe extern "C" fn x_fetch(
    file: *mut ffi::sqlite3_file,
    offset: i64,
    amount: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite gives a place for the answer; null means: use `xRead`.
    unsafe { *out = ptr::null_mut() };
    let page = u64::try_from(offset).ok().filter(|at| at % PAGE_BYTES as u64 == 0);
    let pgno = page.and_then(|at| u32::try_from(at / PAGE_BYTES as u64 + 1).ok());
    let (Some(pgno), true) = (pgno, amount as usize == PAGE_BYTES) else { return ffi::SQLITE_OK };
    // SAFETY: the file is open, `out` as above.
    unsafe {
        with_state(file, ffi::SQLITE_IOERR_MMAP, |state| {
            if let Some(page) = state.image.lend(pgno) {
                *out = page.as_ptr().cast();
            }
            ffi::SQLITE_OK
        })
    }
}

unsafe extern "C" fn x_unfetch(
    file: *mut ffi::sqlite3_file,
    _offset: i64,
    page: *mut c_void,
) -> c_int {
    if page.is_null() {
        // "Drop every mapping": ours are the pages themselves.
        return ffi::SQLITE_OK;
    }
    // SAFETY: the file is open.
    unsafe {
        with_state(file, ffi::SQLITE_IOERR_MMAP, |state| {
            state.image.give_back();
            ffi::SQLITE_OK
        })
    }
}

unsafe extern "C" fn x_delete(
    _vfs: *mut ffi::sqlite3_vfs,
    _name: *const c_char,
    _sync: c_int,
) -> c_int {
    ffi::SQLITE_OK
}

/// There are no other files, above all no journal that would have to be played back.
unsafe extern "C" fn x_access(
    _vfs: *mut ffi::sqlite3_vfs,
    _name: *const c_char,
    _flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives a place for the answer.
    unsafe { *out = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn x_full_pathname(
    _vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: a name is a C string.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    if bytes.len() > room as usize {
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: `out` has `room` bytes, and does not overlap the name.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len()) };
    ffi::SQLITE_OK
}
