//! One measurement, in a process of its own.

use super::resident::{Sampler, anonymous};
use anyhow::Result;
use rotile::backend::{Device, Planner};
use rotile::diffusion::pipeline::{Models, Task};
use rotile::diffusion::tiled::{Half, Room, Route, TileOptions, route};
use rotile::engine::{Options, Source};
use rotile::models::Side;
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor};
use serde_json::{Value, json};

pub(crate) fn probe(spec: &str, source: Source, options: &Options) -> Result<Value> {
    let mut words = spec.split(':');
    let what = words.next().unwrap_or("");
    let size: usize = words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
    let models = Models::read(&source.parts)?;
    let (device, _) = pollster::block_on(options.device.open(&options.limits))?;
    let dtype = options.dtype.unwrap_or(DType::F32);
    let policy = Policy {
        forced: options.kernels.clone(),
        convrot: options.convrot,
    };
    let factor = models.vae.0.factor();
    let (h, w) = (size / factor, size / factor);
    let base = anonymous();
    let alloc = match &device {
        Device::Gpu(g) => {
            pollster::block_on(g.idle())?;
            g.watch().peak()
        }
        Device::Cpu(_) => None,
    };
    let sampler = Sampler::start();
    let mut runs = Vec::new();
    let mut planned = 0;
    let mut planned_host = 0;
    for _ in 0..2 {
        let watch = match &device {
            Device::Gpu(g) => Some(g.watch()),
            Device::Cpu(_) => None,
        };
        let mut marks = Vec::new();
        if let Some(side) = match what {
            "decode-tiled" => Some(Side::Decoder),
            "encode-tiled" => Some(Side::Encoder),
            _ => None,
        } {
            let half = Half {
                vae: &models.vae.0,
                weights: &models.vae.1,
                side,
            };
            let tile = Some(TileOptions {
                size: (size / 2 + 32) as u32,
                overlap: 0,
            });
            let planner = Planner::of(&device, &policy);
            let Route::Tiled(schedule, note) = route(half, [h, w], dtype, planner, tile, Room::here(None))? else {
                anyhow::bail!("whole")
            };
            eprintln!("{note}");
            let plans = schedule.plans(half, planner)?;
            let f = schedule.footprint(&plans, planner);
            planned = f.device;
            planned_host = f.host;
            let scale = match side {
                Side::Decoder => 1,
                Side::Encoder => factor,
            };
            let channels = half.vae.channels(side);
            let input = Tensor::new(
                [1, channels, h * scale, w * scale],
                vec![0.0; channels * h * w * scale * scale],
            );
            let mut kept = Vec::new();
            pollster::block_on(schedule.run(half, (&device, &policy), &mut kept, &input, |_| (), || Ok(())))?;
        } else {
            let task = match what {
                "decode" => Task::Decode { height: h, width: w },
                "encode" => Task::Encode { height: h, width: w },
                "denoise" => Task::Denoise {
                    tokens: 32,
                    height: h,
                    width: w,
                },
                _ => Task::Text { tokens: size },
            };
            let (graph, weights) = models.graph(task, dtype)?;
            let mut session = pollster::block_on(device.prepare(&graph, weights, &policy))?;
            marks.push(anonymous());
            planned = session.planned().total();
            {
                let ks: std::collections::HashSet<_> = session.plan().steps.iter().map(|s| &s.kernel).collect();
                let len: usize = ks.iter().map(|k| k.link().map_or(0, |l| l.text.len())).sum();
                eprintln!("kernels {} text {} steps {}", ks.len(), len, session.plan().steps.len());
            }
            let inputs: Vec<(String, Tensor)> = session
                .plan()
                .inputs
                .iter()
                .map(|i| {
                    (
                        i.name.clone(),
                        Tensor {
                            ty: i.ty.clone(),
                            data: vec![0.0; i.ty.count()],
                            blocks: Vec::new(),
                        },
                    )
                })
                .collect();
            let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let _ = pollster::block_on(session.run(&given))?;
            marks.push(anonymous());
        }
        let rss = sampler.as_ref().map(Sampler::take);
        let peak = watch.and_then(|w| w.peak());
        runs.push(json!({
            "rss": rss.zip(base).map(|(a, b)| a as i64 - b as i64),
            "allocated": peak.zip(alloc).map(|(a, b)| a.allocated - b.allocated),
            "reserved": peak.zip(alloc).map(|(a, b)| a.reserved - b.reserved),
            "marks": marks.iter().map(|m| m.zip(base).map(|(a, b)| a as i64 - b as i64)).collect::<Vec<_>>(),
        }));
        if let Device::Gpu(g) = &device {
            pollster::block_on(g.idle())?;
        }
    }
    Ok(json!({"spec": spec, "planned": planned, "host": planned_host, "runs": runs}))
}
