use super::Caps;
use crate::error::GpuError;

/// Which adapter to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// A discrete GPU, else an integrated one, else a virtual one, else a software one.
    #[default]
    Best,
    /// The n-th of [`adapters`].
    Index(usize),
    /// The first whose name contains this, whatever the case.
    Name(String),
}

/// An adapter of this machine.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// What it can do.
    pub caps: Caps,
    /// Kind: discrete, integrated, virtual, software or unknown.
    pub kind: AdapterKind,
    pub(super) handle: Option<wgpu::Adapter>,
}

/// Kind of an adapter, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterKind {
    /// A card of its own.
    Discrete,
    /// Part of the processor.
    Integrated,
    /// Handed through by a virtual machine.
    Virtual,
    /// The driver does not say: as a browser.
    Unknown,
    /// A layer over another API, such as Vulkan over DX12, that is also there directly or slow.
    Layered,
    /// Computes on the CPU.
    Software,
}

impl AdapterKind {
    /// Word for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Unknown => "unknown kind",
            Self::Layered => "layered",
            Self::Software => "software",
        }
    }
}

/// Every adapter of this machine, in the order of their indices.
pub async fn adapters() -> Vec<Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::PRIMARY;
    let instance = wgpu::Instance::new(descriptor);
    let found = instance.enumerate_adapters(wgpu::Backends::PRIMARY).await;
    let language = instance.wgsl_language_features();
    found.into_iter().map(|adapter| describe(adapter, &language)).collect()
}

fn describe(adapter: wgpu::Adapter, language: &wgpu::WgslLanguageFeatures) -> Adapter {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    // Dozen is Vulkan over DX12: the same card is also listed directly, and it compiles very slowly there.
    let layered = info.name.contains("Microsoft Direct3D12") || info.driver.eq_ignore_ascii_case("dozen");
    let kind = match info.device_type {
        _ if layered => AdapterKind::Layered,
        wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
        wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
        wgpu::DeviceType::Cpu => AdapterKind::Software,
        wgpu::DeviceType::Other => AdapterKind::Unknown,
    };
    let driver = [info.driver.as_str(), info.driver_info.as_str()];
    let caps = Caps {
        adapter: info.name.clone(),
        driver: driver
            .into_iter()
            .filter(|s| !s.is_empty())
            .collect::<Vec<_>>()
            .join(" "),
        backend: info.backend.to_str(),
        software: kind == AdapterKind::Software,
        f16: features.contains(wgpu::Features::SHADER_F16),
        subgroups: features.contains(wgpu::Features::SUBGROUP),
        // On DX12 it takes a shader model that wgpu does not tell of.
        packed_dot: language.contains(wgpu::WgslLanguageFeatures::Packed4x8IntegerDotProduct)
            && info.backend != wgpu::Backend::Dx12,
        subgroup_size: (info.subgroup_min_size, info.subgroup_max_size),
        max_workgroups: limits.max_compute_workgroups_per_dimension.min(65_535),
        max_buffer: limits.max_buffer_size,
        max_binding: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
        workgroup_memory: limits.max_compute_workgroup_storage_size,
        workgroup_invocations: limits.max_compute_invocations_per_workgroup,
    };
    Adapter {
        caps,
        kind,
        handle: Some(adapter),
    }
}

/// Index of the adapter to open, and why that one.
///
/// # Errors
/// If nothing fits; the message lists what is there.
pub fn choose(adapters: &[Adapter], choice: &AdapterChoice) -> Result<(usize, String), GpuError> {
    let refuse = |wanted: String| GpuError::NoAdapter {
        wanted,
        found: match adapters {
            [] => "none".into(),
            _ => adapters
                .iter()
                .enumerate()
                .map(|(i, a)| format!("{i}: {}", a.caps.adapter))
                .collect::<Vec<_>>()
                .join(", "),
        },
    };
    match choice {
        AdapterChoice::Index(index) if *index < adapters.len() => Ok((*index, "asked for by index".into())),
        AdapterChoice::Index(index) => Err(refuse(format!(" with index {index}"))),
        AdapterChoice::Name(name) => {
            let wanted = name.to_lowercase();
            let found = adapters
                .iter()
                .position(|a| a.caps.adapter.to_lowercase().contains(&wanted));
            found
                .map(|i| (i, "asked for by name".into()))
                .ok_or_else(|| refuse(format!(" whose name contains `{name}`")))
        }
        AdapterChoice::Best => {
            // Among equals the first wins, which is the system's own order.
            let best = adapters.iter().enumerate().min_by_key(|(_, a)| a.kind);
            let (index, adapter) = best.ok_or_else(|| refuse(String::new()))?;
            let reason = match adapter.kind {
                AdapterKind::Software => "software adapter: nothing else is there, and it is slow".into(),
                kind => format!("the best of {}: {}", adapters.len(), kind.name()),
            };
            Ok((index, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(name: &str, kind: AdapterKind) -> Adapter {
        let caps = Caps {
            adapter: name.into(),
            ..Caps::baseline()
        };
        Adapter {
            caps,
            kind,
            handle: None,
        }
    }

    #[test]
    fn prefers_the_discrete_card_and_takes_software_only_last() {
        let list = [
            fake("llvmpipe", AdapterKind::Software),
            fake("Microsoft Direct3D12 (card)", AdapterKind::Layered),
            fake("iGPU", AdapterKind::Integrated),
            fake("dGPU", AdapterKind::Discrete),
        ];
        let best = |list: &[Adapter]| choose(list, &AdapterChoice::Best).map(|(i, _)| list[i].caps.adapter.clone());
        assert_eq!(best(&list).as_deref(), Ok("dGPU"));
        assert_eq!(best(&list[..3]).as_deref(), Ok("iGPU"));
        assert_eq!(best(&list[..2]).as_deref(), Ok("Microsoft Direct3D12 (card)"));
        let (_, reason) = choose(&list[..1], &AdapterChoice::Best).expect("one adapter");
        assert!(reason.contains("software"), "{reason}");
    }

    #[test]
    fn finds_by_index_and_name_and_lists_what_is_there() {
        let list = [
            fake("Radeon A", AdapterKind::Integrated),
            fake("GeForce B", AdapterKind::Discrete),
        ];
        let index = |choice| choose(&list, &choice).map(|(i, _)| i);
        assert_eq!(index(AdapterChoice::Index(0)), Ok(0));
        assert_eq!(index(AdapterChoice::Name("geforce".into())), Ok(1));
        let error = index(AdapterChoice::Name("arc".into()))
            .expect_err("no such adapter")
            .to_string();
        assert!(error.contains("Radeon A") && error.contains("arc"), "{error}");
        assert!(index(AdapterChoice::Index(2)).is_err());
        assert!(choose(&[], &AdapterChoice::Best).is_err());
    }
}
