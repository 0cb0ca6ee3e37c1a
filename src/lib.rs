//! Diffusion inference on any GPU, in one crate.
//!
//! Every operator is a WGSL shader that runs through [wgpu](https://wgpu.rs) on Vulkan, Metal, DX12 and WebGPU, with a CPU
//! backend beside it. Every kernel is compared with a reference in plain Rust, and every picture with what an independent
//! implementation computes from the same weights.
//!
//! ```no_run
//! # #[cfg(all(feature = "native", feature = "scenes-tiny"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rotile::engine::{Cancel, Engine, Options, Request};
//! use rotile::media::Format;
//!
//! let mut engine = pollster::block_on(Engine::embedded(&Options::default()))?;
//! let request = Request::new("a red lighthouse by the sea at night").seed(3);
//! let pictures = engine.generate_blocking(&request, |event| println!("{event:?}"), &Cancel::new())?;
//! let png = pictures[0].image.to_bytes(Format::Png, &pictures[0].settings)?;
//! std::fs::write("lighthouse.png", png)?;
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "native", feature = "scenes-tiny")))]
//! # fn main() {}
//! ```
//!
//! # Layers
//!
//! An app needs only [`engine`]. Below it, one layer a module, all public:
//!
//! | module | what |
//! |---|---|
//! | [`engine`] | [`Engine`](engine::Engine), [`Request`](engine::Request), [`Event`](engine::Event): prompt to picture |
//! | [`diffusion`] | pipeline, scheduler, guidance, noise |
//! | [`models`] | functions that build a [`Graph`](graph::Graph) from the weights of a checkpoint |
//! | [`backend`] | [`Device`](backend::Device) and [`Session`](backend::Session): a graph, ready to run on a GPU or the CPU |
//! | [`plan`] | order, ways, shared buffers: every byte known before anything is allocated |
//! | [`ops`], [`op`] | the operators: shape rule, kernels, reference and test cases of each in one file |
//! | [`adapter`] | LoRA and its kin on a checkpoint |
//! | [`checkpoint`] | safetensors and GGUF files and folders, mapped or from bytes |
//!
//! # Failures
//!
//! Nothing panics on bad input. Each layer has its own error enum under [`Error`], whose messages name the file, tensor, shapes
//! and the remedy. A NaN or infinity in an embedding, latent or picture is [`Error::NonFinite`], never a picture.
//!
//! # Features
//!
//! - `native` (default): files, memory mapping, threads. Without it the library builds for `wasm32-unknown-unknown`.
//! - `scenes-tiny` (default): embeds a small trained text-to-image model, 23 MB, as the default.
//! - `cli` (default): the `rotile` binary.

pub mod adapter;
pub mod backend;
pub mod checkpoint;
pub mod convert;
pub mod cpu;
pub mod diffusion;
pub mod engine;
pub mod error;
pub mod gpu;
pub mod graph;
pub mod media;
pub mod memory;
pub mod models;
pub mod op;
pub mod ops;
pub mod plan;
pub mod quant;
pub mod tensor;
pub mod text;
pub mod tiling;

pub use error::{Error, Result};
