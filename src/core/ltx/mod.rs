//! LTX v3.
