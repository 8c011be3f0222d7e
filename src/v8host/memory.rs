//! The memory of a realm: what happens at its limits, so that no script can abort the process.
//!
//! - V8's heap: at the limit V8 asks before it gives up; the turn is then ended, and the heap may
//!   grow by [`HEADROOM`] so that V8 gets as far as the next check for termination. The realm is
//!   spent: its heap is full of what filled it.
//! - `ArrayBuffer`s are ours to allocate: beyond their limit there is none, and V8 throws a
//!   `RangeError` that the script may catch. On the way there V8 collects all garbage and asks for a
//!   larger heap too: that question is answered with yes, and the heap's limit is put back when the
//!   turn is over.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::limits::Limits;

/// What V8 may still allocate on the way to the end of the turn, each time that it asks: one array of
/// the greatest length (2^27 elements of 8 bytes). Refusing memory would end the process.
const HEADROOM: usize = 1100 << 20;

/// `malloc` aligns so, and V8 counts on it for typed arrays.
const ALIGN: usize = 16;

/// Shared by the realm and by V8, which may free a buffer on another thread.
pub(crate) struct Memory {
    buffer_bytes: AtomicUsize,
    buffer_bytes_max: usize,
    exceeded: AtomicBool,
    /// A buffer was refused since V8 last asked for a larger heap.
    refused: AtomicBool,
    /// The heap was allowed to grow in this turn because of that.
    raised: AtomicBool,
    isolate: std::sync::OnceLock<v8::IsolateHandle>,
}

impl Memory {
    pub fn new(limits: Limits) -> Arc<Memory> {
        Arc::new(Memory {
            buffer_bytes: AtomicUsize::new(0),
            buffer_bytes_max: limits.buffer_bytes_max,
            exceeded: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            raised: AtomicBool::new(false),
            isolate: std::sync::OnceLock::new(),
        })
    }

    /// The allocator of `ArrayBuffer`s that counts in `memory`.
    pub fn allocator(memory: &Arc<Memory>) -> v8::UniqueRef<v8::Allocator> {
        // SAFETY: the handle is a counted reference which `drop` gives back; the functions of the
        // table take it as what it is.
        unsafe { v8::new_rust_allocator(Arc::into_raw(Arc::clone(memory)), &TABLE) }
    }

    /// Ends the turn when the heap is full.
    pub fn watch_heap(memory: &Arc<Memory>, isolate: &mut v8::Isolate) {
        let _ = memory.isolate.set(isolate.thread_safe_handle());
        // The realm keeps `memory` until its isolate is gone.
        isolate.add_near_heap_limit_callback(
            near_heap_limit,
            Arc::as_ptr(memory).cast_mut().cast::<c_void>(),
        );
    }

    /// A turn is over: puts the heap's limit back if a refused buffer had raised it.
    pub fn end_turn(&self, isolate: &mut v8::Isolate, limits: Limits) {
        if !self.raised.swap(false, Ordering::AcqRel) {
            return;
        }
        if isolate.get_heap_statistics().used_heap_size() > limits.heap_bytes_max {
            self.exceeded.store(true, Ordering::Release);
            return;
        }
        isolate.remove_near_heap_limit_callback(near_heap_limit, limits.heap_bytes_max);
        isolate.add_near_heap_limit_callback(
            near_heap_limit,
            std::ptr::from_ref(self).cast_mut().cast::<c_void>(),
        );
    }

    /// The heap limit was met.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Acquire)
    }

    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes.load(Ordering::Relaxed)
    }

    /// Counts `length` more bytes, unless they are too many.
    fn reserve(&self, length: usize) -> bool {
        let before = self.buffer_bytes.fetch_add(length, Ordering::Relaxed);
        let fits = before.checked_add(length).is_some_and(|sum| sum <= self.buffer_bytes_max);
        if !fits {
            self.release(length);
        }
        fits
    }

    fn release(&self, length: usize) {
        self.buffer_bytes.fetch_sub(length, Ordering::Relaxed);
    }

    fn allocate(&self, length: usize, make: unsafe fn(Layout) -> *mut u8) -> *mut c_void {
        let Ok(layout) = Layout::from_size_align(length.max(1), ALIGN) else {
            return std::ptr::null_mut();
        };
        if !self.reserve(length) {
            self.refused.store(true, Ordering::Release);
            return std::ptr::null_mut();
        }
        // SAFETY: the size of the layout is not zero.
        let data = unsafe { make(layout) };
        if data.is_null() {
            self.release(length);
        }
        data.cast::<c_void>()
    }
}

static TABLE: v8::RustAllocatorVtable<Memory> = v8::RustAllocatorVtable {
    allocate: allocate_zeroed,
    allocate_uninitialized,
    free,
    drop: drop_handle,
};

unsafe extern "C" fn allocate_zeroed(memory: &Memory, length: usize) -> *mut c_void {
    memory.allocate(length, alloc_zeroed)
}

unsafe extern "C" fn allocate_uninitialized(memory: &Memory, length: usize) -> *mut c_void {
    memory.allocate(length, alloc)
}

unsafe extern "C" fn free(memory: &Memory, data: *mut c_void, length: usize) {
    memory.release(length);
    let Ok(layout) = Layout::from_size_align(length.max(1), ALIGN) else { return };
    // SAFETY: V8 gives back what `allocate` made, with the length it asked for.
    unsafe { dealloc(data.cast::<u8>(), layout) };
}

unsafe extern "C" fn drop_handle(memory: *const Memory) {
    // SAFETY: `allocator` turned one reference into this pointer, and V8 drops it once.
    drop(unsafe { Arc::from_raw(memory) });
}

unsafe extern "C" fn near_heap_limit(data: *mut c_void, current: usize, _initial: usize) -> usize {
    // SAFETY: `watch_heap` passed a reference that outlives the isolate.
    let memory = unsafe { &*data.cast::<Memory>() };
    if memory.refused.swap(false, Ordering::AcqRel) && !memory.raised.swap(true, Ordering::AcqRel) {
        return current.saturating_add(HEADROOM);
    }
    memory.exceeded.store(true, Ordering::Release);
    if let Some(isolate) = memory.isolate.get() {
        isolate.terminate_execution();
    }
    current.saturating_add(HEADROOM)
}
