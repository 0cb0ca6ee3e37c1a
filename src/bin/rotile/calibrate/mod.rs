//! `rotile calibrate`.

mod point;
mod resident;

use crate::args::ModelArgs;
use anyhow::Result;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    #[arg(long, hide = true)]
    point: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn run(args: &CalibrateArgs, _as_json: bool) -> Result<()> {
    if let Some(spec) = &args.point {
        let found = point::probe(spec, args.model.source(None)?, &args.model.device.options())?;
        crate::output::line(found)?;
    }
    Ok(())
}
