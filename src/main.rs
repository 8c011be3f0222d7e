//! The program `celld`: one call, one exit code. All that it does is in [`cli`].

// They panic when the reader is gone: `celld_rt::log!` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod cli;

/// One thread allocates and frees nearly everything that it touches, which is what mimalloc is for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main(std::env::args_os().skip(1))
}
