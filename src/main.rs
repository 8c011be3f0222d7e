//! celld.
fn main() {}
