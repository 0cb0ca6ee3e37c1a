//! What the command line understands.

use crate::Usage;
use crate::calibrate::CalibrateArgs;
use crate::lora::LoraArgs;
use crate::memory::{MaxMemoryArgs, MemoryArgs};
use crate::vae::VaeArgs;
use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use rotile::checkpoint::Checkpoint;
use rotile::convert::WeightType;
use rotile::diffusion::Rng;
use rotile::engine::{Autoencoder, DeviceChoice, Engine, Files, Options, Source};
use rotile::gpu::Limits;
use rotile::plan::ConvrotMode;
use rotile::tensor::DType;
use std::path::PathBuf;
use std::sync::Arc;

/// Makes pictures with diffusion models on any GPU, or on the CPU.
#[derive(Debug, Parser)]
#[command(name = "rotile", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print one JSON object on standard output
    #[arg(long, global = true, display_order = 900)]
    pub(crate) json: bool,
    /// Say more (-vv: still more)
    #[arg(short, long, global = true, display_order = 901, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make pictures from a prompt
    Generate(Box<GenerateArgs>),
    /// Turn a latent into a picture
    Decode(DecodeArgs),
    /// Turn a picture into a latent
    Encode(EncodeArgs),
    /// Send a picture through an autoencoder and back, and measure what is lost
    Roundtrip(RoundtripArgs),
    /// Show what a model consists of and needs, or what is written in a PNG
    Inspect(InspectArgs),
    /// Write the weights of a model in another element type
    Convert(ConvertArgs),
    /// Measure how far two pictures are apart
    Compare(CompareArgs),
    /// List the adapters, and which one is used and why
    Devices(DevicesArgs),
    /// List the kernels, or show the WGSL of one
    Kernels(KernelsArgs),
    /// Measure a model, stage by stage, and the operators
    Bench(BenchArgs),
    /// Measure what an adapter and its driver add to what is planned
    Calibrate(CalibrateArgs),
}

/// Which model, and where it runs.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Model folder in diffusers layout [default: the embedded model]
    #[arg(long, value_name = "FOLDER", env = "ROTILE_MODEL", hide_env_values = true)]
    model: Option<PathBuf>,
    /// Text encoder in place of the folder's: safetensors or GGUF file, or folder
    #[arg(long, value_name = "PATH", help_heading = PARTS)]
    text_encoder: Option<PathBuf>,
    /// Transformer in place of the folder's
    #[arg(long, value_name = "PATH", help_heading = PARTS)]
    transformer: Option<PathBuf>,
    /// Autoencoder in place of the folder's
    #[arg(long, value_name = "PATH", help_heading = PARTS)]
    vae: Option<PathBuf>,
    /// Tokenizer in place of the folder's: tokenizer.json, or its folder
    #[arg(long, value_name = "PATH", help_heading = PARTS)]
    tokenizer: Option<PathBuf>,
    /// Scheduler in place of the folder's: scheduler_config.json, or its folder
    #[arg(long, value_name = "PATH", help_heading = PARTS)]
    scheduler: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

const PARTS: &str = "Parts of the model";

/// Which autoencoder, and where it runs.
#[derive(Debug, Args)]
pub(crate) struct AutoencoderArgs {
    /// Autoencoder: safetensors or GGUF file or its folder, or a model folder with one [default: the embedded model's]
    #[arg(long, value_name = "PATH", env = "ROTILE_MODEL", hide_env_values = true)]
    model: Option<PathBuf>,
    /// Autoencoder in place of the model folder's
    #[arg(long, value_name = "PATH")]
    vae: Option<PathBuf>,
    #[command(flatten)]
    vae_options: VaeArgs,
    #[command(flatten)]
    memory: MaxMemoryArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl AutoencoderArgs {
    pub(crate) fn open(&self) -> Result<Autoencoder> {
        let whole = |folder: &PathBuf| folder.join("model_index.json").is_file();
        let checkpoint = match (&self.vae, &self.model) {
            (Some(vae), _) => Arc::new(Checkpoint::open(vae)?),
            (None, Some(folder)) if whole(folder) => Arc::new(Checkpoint::open(folder.join("vae"))?),
            (None, Some(path)) => Arc::new(Checkpoint::open(path)?),
            (None, None) => embedded()?.parts.vae,
        };
        let options = Options {
            vae: self.vae_options.options(),
            memory: self.memory.options(),
            ..self.device.options()
        };
        Ok(pollster::block_on(Autoencoder::new(checkpoint, &options))?)
    }
}

/// Where to compute.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// auto, cpu, gpu, an index of `rotile devices`, or part of an adapter's name
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        env = "ROTILE_DEVICE",
        hide_env_values = true
    )]
    device: DeviceChoice,
    /// How activations are stored; the CPU has f32 only [default: f32]
    #[arg(long, value_name = "TYPE", env = "ROTILE_DTYPE", hide_env_values = true)]
    dtype: Option<Storage>,
    /// Run an operator in a given way on the GPU, for diagnosis; may be repeated
    #[arg(long, value_name = "OP=WAY", value_parser = op_way, value_delimiter = ',', env = "ROTILE_KERNEL", hide_env_values = true)]
    kernel: Vec<(String, String)>,
    /// How int8 layers run: auto, native, op, dense or compat
    #[arg(
        long,
        value_name = "MODE",
        default_value = "auto",
        env = "ROTILE_CONVROT_MODE",
        hide_env_values = true
    )]
    convrot_mode: ConvrotMode,
    /// Largest buffer of the GPU, for diagnosis; no more than its own
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    max_buffer: Option<u32>,
    /// Largest storage binding of the GPU, for diagnosis; no more than its own
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    max_binding: Option<u32>,
}

impl DeviceArgs {
    pub(crate) fn options(&self) -> Options {
        let bytes = |mib: u32| u64::from(mib) << 20;
        Options {
            device: self.device.clone(),
            dtype: self.dtype.map(|storage| match storage {
                Storage::F32 => DType::F32,
                Storage::F16 => DType::F16,
            }),
            kernels: self.kernel.clone(),
            convrot: self.convrot_mode,
            limits: Limits {
                max_buffer: self.max_buffer.map(bytes),
                max_binding: self.max_binding.map(bytes),
            },
            ..Options::default()
        }
    }
}

impl ModelArgs {
    /// Opens the files; nothing is put on a device yet.
    pub(crate) fn source(&self, folder: Option<&PathBuf>) -> Result<Source> {
        let files = Files {
            folder: folder.or(self.model.as_ref()).cloned(),
            text_encoder: self.text_encoder.clone(),
            transformer: self.transformer.clone(),
            vae: self.vae.clone(),
            tokenizer: self.tokenizer.clone(),
            scheduler: self.scheduler.clone(),
        };
        if files == Files::default() {
            embedded()
        } else {
            Ok(Source::open(&files)?)
        }
    }

    pub(crate) fn open(&self) -> Result<Engine> {
        Ok(pollster::block_on(Engine::new(
            self.source(None)?,
            &self.device.options(),
        ))?)
    }
}

#[cfg(feature = "scenes-tiny")]
fn embedded() -> Result<Source> {
    Ok(Source::embedded()?)
}

#[cfg(not(feature = "scenes-tiny"))]
fn embedded() -> Result<Source> {
    Err(Usage("this build has no embedded model: use --model FOLDER".into()).into())
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Storage {
    F32,
    F16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Generator {
    Torch,
    Philox,
}

impl From<Generator> for Rng {
    fn from(generator: Generator) -> Self {
        match generator {
            Generator::Torch => Self::Torch,
            Generator::Philox => Self::Philox,
        }
    }
}

fn op_way(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((op, way)) if !op.is_empty() && !way.is_empty() => Ok((op.to_owned(), way.to_owned())),
        _ => Err("wanted OP=WAY, such as matmul=baseline".into()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// What the picture shows
    #[arg(
        value_name = "PROMPT",
        required_unless_present = "prompt_option",
        conflicts_with = "prompt_option"
    )]
    prompt: Option<String>,
    /// The same as an option
    #[arg(long = "prompt", value_name = "PROMPT")]
    prompt_option: Option<String>,
    /// What it does not show; counts with guidance only
    #[arg(short, long, value_name = "PROMPT", default_value = "", hide_default_value = true)]
    pub(crate) negative_prompt: String,
    /// Denoising steps [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: Option<u32>,
    /// Strength of classifier-free guidance, 0 is off [default: the model's]
    #[arg(long, value_name = "G", value_parser = guidance, allow_negative_numbers = true)]
    pub(crate) guidance: Option<f32>,
    /// Largest norm of a guided prediction, as a multiple of the positive one's; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) cfg_normalization: f32,
    /// Model time (0 noise, 1 picture) above which guidance is off
    #[arg(long, value_name = "T", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) cfg_truncation: f32,
    /// Seed of the noise, or `random`
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = seed, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Pixels of a row [default: the model's]
    #[arg(short = 'W', long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) width: Option<u32>,
    /// Rows [default: the model's]
    #[arg(short = 'H', long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) height: Option<u32>,
    /// Pictures, with the seed and those that follow it
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) batch: u32,
    /// Picture to start from; it is brought to the size asked for
    #[arg(short, long, value_name = "FILE")]
    pub(crate) init_image: Option<PathBuf>,
    /// How much of the initial picture is made anew, above 0 to 1
    #[arg(long, value_name = "S", default_value_t = 0.6, value_parser = strength, allow_negative_numbers = true, requires = "init_image")]
    pub(crate) strength: f32,
    /// Where the picture goes (.png, .jpg, .webp); several are numbered [default: rotile-SEED.png]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Keep the latent too, for `rotile decode`: in FILE, or beside the picture. Where a picture cannot be decoded its latent is
    /// kept without being asked for
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) save_latent: Option<PathBuf>,
    /// Generator of the noise: that of PyTorch on the CPU, or on CUDA
    #[arg(long, value_name = "RNG", value_enum, default_value_t = Generator::Torch)]
    pub(crate) rng: Generator,
    /// What weights of transformer and text encoder become when they are loaded: f32, f16, bf16, q8_0, q4_k, … [default: as in
    /// their files]; packed types leave packed weights as they are
    #[arg(long = "type", value_name = "TYPE", value_parser = load_type)]
    weight_type: Option<WeightType>,
    #[command(flatten)]
    pub(crate) lora: LoraArgs,
    #[command(flatten)]
    pub(crate) vae: VaeArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

impl GenerateArgs {
    /// Puts the model, with its adapters, on a device.
    pub(crate) fn open(&self) -> Result<Engine> {
        let source = self.lora.on(self.model.source(None)?)?;
        let options = Options {
            vae: self.vae.options(),
            memory: self.memory.options(),
            calibration: self.memory.calibration()?,
            weight_type: self.weight_type,
            ..self.model.device.options()
        };
        Ok(pollster::block_on(Engine::new(source, &options))?)
    }

    pub(crate) fn prompt(&self) -> Result<&str> {
        let prompt = self.prompt.as_deref().or(self.prompt_option.as_deref());
        prompt.ok_or_else(|| Usage("no prompt".into()).into())
    }
}

#[derive(Debug, Args)]
pub(crate) struct DecodeArgs {
    /// Safetensors file that holds the latent [1, c, h, w] as the denoising model has it
    #[arg(value_name = "LATENT")]
    pub(crate) latent: PathBuf,
    /// Name of the tensor in it
    #[arg(long, value_name = "NAME", default_value = "latent")]
    pub(crate) tensor: String,
    /// Where the picture goes (.png, .jpg, .webp)
    #[arg(short, long, value_name = "FILE", default_value = "decoded.png")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) model: AutoencoderArgs,
}

#[derive(Debug, Args)]
pub(crate) struct EncodeArgs {
    /// Picture file (PNG, JPEG, WebP)
    #[arg(value_name = "IMAGE")]
    pub(crate) image: PathBuf,
    /// Where the latent goes
    #[arg(short, long, value_name = "FILE", default_value = "latent.safetensors")]
    pub(crate) out: PathBuf,
    /// Brings the picture to this width first
    #[arg(short = 'W', long, value_name = "PIXELS", requires = "height", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) width: Option<u32>,
    /// Brings the picture to this height first
    #[arg(short = 'H', long, value_name = "PIXELS", requires = "width", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) height: Option<u32>,
    #[command(flatten)]
    pub(crate) model: AutoencoderArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RoundtripArgs {
    /// Picture file (PNG, JPEG, WebP)
    #[arg(value_name = "PHOTO")]
    pub(crate) image: PathBuf,
    /// Writes the picture that comes back (.png, .jpg, .webp)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Writes the difference picture, eight times as strong
    #[arg(long, value_name = "FILE")]
    pub(crate) diff: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: AutoencoderArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Model folder, safetensors or GGUF file, header-only description (JSON), or PNG picture [default: the embedded model]
    #[arg(value_name = "PATH", conflicts_with = "model")]
    pub(crate) path: Option<PathBuf>,
    /// Plan for this width [default: 1024, or the model's only size]
    #[arg(short = 'W', long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) width: Option<u32>,
    /// Plan for this height [default: 1024, or the model's only size]
    #[arg(short = 'H', long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) height: Option<u32>,
    #[command(flatten)]
    pub(crate) vae: VaeArgs,
    #[command(flatten)]
    pub(crate) memory: MaxMemoryArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Weights: safetensors or GGUF file, index of a sharded one, or the folder of a model's part
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// New file; blocks go to .gguf, convrot-int8 to .safetensors, plain types to either
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// What matrices become: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k or convrot-int8
    #[arg(long, value_name = "TYPE")]
    pub(crate) to: WeightType,
    /// Largest group of inputs that convrot-int8 rotates together, a power of 4; smaller ones where it does not divide a layer
    /// [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) group_size: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// First picture
    #[arg(value_name = "A")]
    pub(crate) a: PathBuf,
    /// Second picture, of the same size
    #[arg(value_name = "B")]
    pub(crate) b: PathBuf,
    /// Writes the difference picture, eight times as strong
    #[arg(long, value_name = "FILE")]
    pub(crate) diff: Option<PathBuf>,
    /// Fails (exit code 1) below this PSNR
    #[arg(long, value_name = "DB")]
    pub(crate) min_psnr: Option<f64>,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KernelsArgs {
    #[command(subcommand)]
    pub(crate) action: Option<KernelsAction>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KernelsAction {
    /// Print the linked WGSL of a kernel
    Show {
        /// As `rotile kernels` lists it, or the beginning of that
        #[arg(value_name = "SPEC", required = true, num_args = 1..)]
        spec: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Only operators whose name contains this, and no model
    #[arg(value_name = "OPERATOR")]
    pub(crate) filter: Option<String>,
    /// Every case of each operator, not only its last three
    #[arg(long)]
    pub(crate) all: bool,
    /// Only the model, or only the operators
    #[arg(long, value_name = "WHAT", conflicts_with = "filter")]
    pub(crate) only: Option<BenchWhat>,
    /// Pixels of a row for the model [default: its own]
    #[arg(short = 'W', long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) width: Option<u32>,
    /// Rows for the model [default: its own]
    #[arg(short = 'H', long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) height: Option<u32>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchWhat {
    Model,
    Ops,
}

fn load_type(text: &str) -> Result<WeightType, String> {
    match text.parse()? {
        WeightType::ConvrotInt8 { .. } => {
            Err("rotated int8 is made by `rotile convert`, not when weights are loaded".into())
        }
        target => Ok(target),
    }
}

fn seed(text: &str) -> Result<u64, String> {
    if text == "random" {
        use std::hash::{BuildHasher as _, RandomState};
        // Half the range, so that seeds stay short to type.
        return Ok(RandomState::new().hash_one(std::process::id()) >> 32);
    }
    text.parse()
        .map_err(|_| "wanted a number from 0 to 2^64 - 1, or `random`".into())
}

fn guidance(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|g: &f32| g.is_finite() && *g >= 0.0);
    number.ok_or_else(|| "wanted a number of at least 0".into())
}

fn strength(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|s: &f32| *s > 0.0 && *s <= 1.0);
    number.ok_or_else(|| "wanted a number above 0, at most 1".into())
}
