//! `rotile`: makes pictures from the command line.

mod args;
mod bench;
mod calibrate;
mod compare;
mod convert;
mod decode;
mod devices;
mod encode;
mod generate;
mod heap;
mod inspect;
mod kernels;
mod latent;
mod lora;
mod memory;
mod output;
mod progress;
mod roundtrip;
mod vae;

use anyhow::Result;
use args::{Cli, Command};
use clap::Parser as _;
use rotile::engine::Cancel;
use rotile::error::{Error, PlanError};
use std::io::IsTerminal as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    heap::give_back();
    let cli = Cli::parse();
    log(cli.verbose);
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", describe(&error));
            ExitCode::from(code(&error))
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    match &cli.command {
        Command::Generate(args) => generate::run(args, cli.json, cli.verbose > 0),
        Command::Decode(args) => decode::run(args, cli.json),
        Command::Encode(args) => encode::run(args, cli.json),
        Command::Roundtrip(args) => roundtrip::run(args, cli.json),
        Command::Inspect(args) => inspect::run(args, cli.json),
        Command::Convert(args) => convert::run(args, cli.json),
        Command::Compare(args) => compare::run(args, cli.json),
        Command::Devices(args) => devices::run(args, cli.json, cli.verbose > 0),
        Command::Kernels(args) => kernels::run(args, cli.json),
        Command::Bench(args) => bench::run(args, cli.json),
        Command::Calibrate(args) => calibrate::run(args, cli.json),
    }
}

/// A request that cannot be carried out as asked, whatever the machine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// 130 after Ctrl-C, 2 where another request would do, else 1.
fn code(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<Usage>().is_some() {
        return 2;
    }
    let mut error = error.downcast_ref::<Error>();
    while let Some(Error::Undecoded { source, .. }) = error {
        error = Some(source);
    }
    match error {
        Some(Error::Cancelled) => 130,
        Some(Error::Request(_)) => 2,
        Some(Error::Plan(PlanError::UnknownWay { .. } | PlanError::NoF16(_) | PlanError::Unpriced { .. })) => 2,
        _ => 1,
    }
}

/// The error and its causes, each said once: some messages quote their cause already.
fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}

fn log(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = ["warn", "rotile=info,warn", "rotile=debug,warn", "debug"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_env("ROTILE_LOG").unwrap_or_else(|_| EnvFilter::new(level));

    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .init();
}

/// Ctrl-C asks to stop; a second one stops at once.
fn cancel_on_signal() -> Result<Cancel> {
    let cancel = Cancel::new();
    let shared = cancel.clone();
    // Also SIGTERM, where there is one.
    ctrlc::set_handler(move || {
        if shared.is_cancelled() {
            output::exit(130);
        }
        shared.cancel();
    })?;
    Ok(cancel)
}

/// Stops between two stages.
fn proceed(cancel: &Cancel) -> rotile::Result<()> {
    if cancel.is_cancelled() {
        Err(Error::Cancelled)
    } else {
        Ok(())
    }
}
