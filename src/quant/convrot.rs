//! ComfyUI's `int8_tensorwise` weights: what the marker of a layer says, and what lies in the scales.
//!
//! A layer `P` is `P.weight` of I8 codes, `P.weight_scale` and a marker: JSON in a U8 tensor `P.comfy_quant`, or in the file's
//! `__metadata__` under [`HEADER_KEY`]. With `convrot` the codes are those of the weight rotated as in [`rotation`].

use super::rotation;
use half::f16;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Key of the header form in `__metadata__`.
pub const HEADER_KEY: &str = "_quantization_metadata";

/// The format that is read.
pub const FORMAT: &str = "int8_tensorwise";

/// Group size of markers that name none.
pub const DEFAULT_GROUP: usize = 256;

/// Bytes of the longest marker that is read.
pub const MAX_MARKER: usize = 64 << 10;

/// What a marker says of its layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marker {
    /// Elements of a rotated group; `None` for codes in the true basis.
    pub group: Option<usize>,
    /// The layer wants products of floats, not of codes.
    pub full_precision: bool,
    /// Matrices that the weight `[experts, n, k]` stacks.
    pub experts: Option<usize>,
}

/// What is wrong with a layer: the key, its value, and what would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Key in the marker, or part of the layer.
    pub key: String,
    /// What it is.
    pub value: String,
    /// What would be accepted.
    pub accepted: String,
}

impl Refusal {
    pub(crate) fn new(key: impl Into<String>, value: impl fmt::Display, accepted: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: shortened(&value.to_string()),
            accepted: accepted.into(),
        }
    }
}

/// The start of a text that may be long and have line breaks.
fn shortened(text: &str) -> String {
    const MOST: usize = 80;
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let mut short: String = text.chars().take(MOST).map(shown).collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}

/// The members of an object, all of them: `serde_json`'s own map keeps the last of a name.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, Value>()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// An object whose repeated keys agree.
fn object(text: &[u8]) -> Result<Map<String, Value>, Refusal> {
    let Members(members) = serde_json::from_slice(text)
        .map_err(|e| Refusal::new("marker", format!("no JSON object ({e})"), "a JSON object in UTF-8"))?;
    let mut map = Map::new();
    for (key, value) in members {
        match map.get(&key) {
            Some(other) if *other != value => {
                return Err(Refusal::new(key, format!("{other} and {value}"), "one value for a key"));
            }
            _ => map.insert(key, value),
        };
    }
    Ok(map)
}

impl Marker {
    /// Reads the bytes of a marker.
    ///
    /// # Errors
    /// If they are no JSON object, name another format, or a key has a value that no loader can act on.
    pub fn parse(text: &[u8]) -> Result<Self, Refusal> {
        if text.len() > MAX_MARKER {
            let found = format!("{} bytes long", text.len());
            return Err(Refusal::new("marker", found, format!("at most {MAX_MARKER} bytes")));
        }
        Self::of_map(&object(text)?)
    }

    /// Reads a marker that is parsed already.
    ///
    /// # Errors
    /// As [`Marker::parse`].
    pub fn of_json(json: &Value) -> Result<Self, Refusal> {
        match json {
            Value::Object(map) => Self::of_map(map),
            other => Err(Refusal::new("marker", other, "a JSON object")),
        }
    }

    fn of_map(map: &Map<String, Value>) -> Result<Self, Refusal> {
        let nested = match map.get("params") {
            None | Some(Value::Null) => None,
            Some(Value::Object(nested)) => Some(nested),
            Some(other) => return Err(Refusal::new("params", other, "an object")),
        };
        let keys = Keys { map, nested };
        let rotated = keys.agreeing("convrot", "quarot", Keys::flag)?;
        let per_row = keys.flag("per_row")?;
        match keys.get("format")? {
            Some(Value::String(format)) if format == FORMAT => {}
            Some(other) => return Err(Refusal::new("format", other, format!("\"{FORMAT}\""))),
            // Savers that leave it out write one of these.
            None if rotated.is_some() || per_row.is_some() => {}
            None => return Err(Refusal::new("format", "missing", format!("\"{FORMAT}\""))),
        }
        let group = match rotated {
            Some(true) => {
                let group = keys.agreeing("convrot_groupsize", "quarot_groupsize", Keys::size)?;
                let group = group.unwrap_or(DEFAULT_GROUP);
                if !rotation::is_group(group) {
                    return Err(Refusal::new("convrot_groupsize", group, "a power of 4 from 4 on"));
                }
                Some(group)
            }
            // As ComfyUI does, a size without a rotation means nothing.
            _ => None,
        };
        Ok(Self {
            group,
            full_precision: keys.flag("full_precision_matrix_mult")?.unwrap_or(false),
            experts: keys.size("num_experts")?,
        })
    }

    /// The marker as ComfyUI writes it.
    pub fn to_json(&self) -> String {
        let mut map = Map::new();
        map.insert("format".into(), FORMAT.into());
        if self.full_precision {
            map.insert("full_precision_matrix_mult".into(), true.into());
        }
        if let Some(group) = self.group {
            map.insert("convrot".into(), true.into());
            map.insert("convrot_groupsize".into(), group.into());
        }
        if let Some(experts) = self.experts {
            map.insert("num_experts".into(), experts.into());
        }
        Value::Object(map).to_string()
    }

    /// Rows of codes of a weight of this shape; the last extent is the length of each.
    ///
    /// # Errors
    /// If the shape is no matrix, nor a stack of as many as the marker says, or groups do not fill a row.
    pub fn rows(&self, shape: &[usize]) -> Result<usize, Refusal> {
        let shown = || format!("{shape:?}");
        let (rows, k) = match (shape, self.experts) {
            ([n, k], None) => (*n, *k),
            ([experts, n, k], Some(wanted)) if *experts == wanted => (experts * n, *k),
            (_, Some(wanted)) => return Err(Refusal::new("weight", shown(), format!("a shape [{wanted}, n, k]"))),
            (_, None) => {
                return Err(Refusal::new(
                    "weight",
                    shown(),
                    "a shape [n, k], or num_experts in the marker",
                ));
            }
        };
        match self.group {
            Some(group) if !k.is_multiple_of(group) => Err(Refusal::new(
                "convrot_groupsize",
                format!("{group} for rows of {k}"),
                "a power of 4 that divides the length of a row",
            )),
            _ => Ok(rows),
        }
    }
}

/// Looks keys up in a marker and in its `params`, where some savers have them.
struct Keys<'a> {
    map: &'a Map<String, Value>,
    nested: Option<&'a Map<String, Value>>,
}

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Result<Option<&'a Value>, Refusal> {
        match (self.map.get(key), self.nested.and_then(|nested| nested.get(key))) {
            (Some(a), Some(b)) if a != b => Err(Refusal::new(key, format!("{a} and {b}"), "one value for a key")),
            (a, b) => Ok(a.or(b)),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, Refusal> {
        match self.get(key)? {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(Refusal::new(key, other, "true or false")),
        }
    }

    fn size(&self, key: &str) -> Result<Option<usize>, Refusal> {
        let Some(value) = self.get(key)? else { return Ok(None) };
        let size = value.as_u64().and_then(|n| usize::try_from(n).ok());
        size.map_or_else(|| Err(Refusal::new(key, value, "a whole number")), |n| Ok(Some(n)))
    }

    /// The value of two keys that mean the same.
    fn agreeing<T: Copy + PartialEq + fmt::Display>(
        &self,
        key: &str,
        other: &str,
        read: impl Fn(&Self, &str) -> Result<Option<T>, Refusal>,
    ) -> Result<Option<T>, Refusal> {
        match (read(self, key)?, read(self, other)?) {
            (Some(a), Some(b)) if a != b => {
                let found = format!("{a} and `{other}` is {b}");
                Err(Refusal::new(key, found, "the same in both"))
            }
            (a, b) => Ok(a.or(b)),
        }
    }
}

/// The markers of the header form, by layer.
///
/// # Errors
/// If the text is no JSON object with an object `layers`, or says two things of one layer.
pub fn header_layers(text: &str) -> Result<Map<String, Value>, Refusal> {
    let map = object(text.as_bytes())?;
    match map.get("layers") {
        Some(Value::Object(layers)) => Ok(layers.clone()),
        Some(other) => Err(Refusal::new("layers", other, "an object of markers by layer")),
        None => Err(Refusal::new("layers", "missing", "an object of markers by layer")),
    }
}

/// What becomes of a layer's scales in half precision, as blocks of Q8_0 hold them. rotile keeps them in single precision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Audit {
    /// Rows.
    pub rows: usize,
    /// Rows whose scale is subnormal in F16.
    pub subnormal: usize,
    /// Rows whose scale is zero in F16.
    pub zero: usize,
    /// Rows whose scale is infinite in F16.
    pub infinite: usize,
    /// Largest relative error among rows whose scale stays finite and above zero.
    pub worst: f32,
}

impl Audit {
    /// Looks at the scales of a layer; those of rows of zeros, 1e-30 and below, do not count as lost.
    pub fn of(scales: &[f32]) -> Self {
        let mut audit = Self {
            rows: scales.len(),
            ..Self::default()
        };
        for &scale in scales.iter().filter(|&&s| s > rotation::MIN_SCALE) {
            let half = f16::from_f32(scale);
            if half.to_f32() == 0.0 {
                audit.zero += 1;
            } else if half.is_infinite() {
                audit.infinite += 1;
            } else {
                audit.subnormal += usize::from(half < f16::MIN_POSITIVE);
                audit.worst = audit.worst.max(((half.to_f32() - scale) / scale).abs());
            }
        }
        audit
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            subnormal: self.subnormal + other.subnormal,
            zero: self.zero + other.zero,
            infinite: self.infinite + other.infinite,
            worst: self.worst.max(other.worst),
        }
    }
}

/// Codes `[rows, k]` and their scales, one for each row or one for all, as values in the true basis.
///
/// # Panics
/// If there are neither as many scales as rows nor one, or groups do not fill a row.
pub fn reconstruct(codes: &[u8], k: usize, scales: &[f32], group: Option<usize>) -> Vec<f32> {
    let mut values = Vec::with_capacity(codes.len());
    let rows = codes.len() / k.max(1);
    assert!(
        scales.len() == rows || scales.len() == 1,
        "a scale for each row, or one"
    );
    for (i, row) in codes.chunks_exact(k.max(1)).enumerate() {
        let scale = scales[i % scales.len()];
        values.extend(row.iter().map(|&code| f32::from(code as i8) * scale));
    }
    if let Some(group) = group {
        rotation::rotate(&mut values, group);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn markers_survive_being_written() {
        for group in [None, Some(16), Some(4096)] {
            for (full_precision, experts) in [(false, None), (true, Some(3))] {
                let marker = Marker {
                    group,
                    full_precision,
                    experts,
                };
                assert_eq!(Marker::parse(marker.to_json().as_bytes()), Ok(marker));
            }
        }
    }

    #[test]
    fn refusals_name_key_and_value() {
        let refusal = |json: &str| {
            let Refusal { key, value, accepted } = Marker::parse(json.as_bytes()).expect_err(json);
            format!("{key}: {value}; {accepted}")
        };
        assert_eq!(
            refusal(r#"{"format":"convrot_w4a4"}"#),
            r#"format: "convrot_w4a4"; "int8_tensorwise""#
        );
        assert_eq!(
            refusal(r#"{"convrot":true,"convrot_groupsize":512}"#),
            "convrot_groupsize: 512; a power of 4 from 4 on"
        );
        assert_eq!(
            refusal(r#"{"convrot":true,"quarot":false}"#),
            "convrot: true and `quarot` is false; the same in both"
        );
        assert_eq!(
            refusal(r#"{"convrot":true,"params":{"convrot":false}}"#),
            "convrot: true and false; one value for a key"
        );
    }

    #[test]
    fn rows_of_zeros_are_not_lost() {
        let audit = Audit::of(&[1.0, 1e-6, 1e-9, 1e5, 1e-30, -3.0]);
        assert_eq!((audit.rows, audit.subnormal, audit.zero, audit.infinite), (6, 1, 1, 1));
        assert!(audit.worst > 1e-3 && audit.worst < 0.1, "{}", audit.worst);
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            prop::sample::select(vec![0u64, 1, 2, 4, 16, 128, 256, 512, u64::MAX]).prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            Just(Value::from(FORMAT)),
        ];
        let key = prop::sample::select(vec![
            "format",
            "convrot",
            "quarot",
            "convrot_groupsize",
            "quarot_groupsize",
            "params",
            "per_row",
            "num_experts",
            "full_precision_matrix_mult",
            "layers",
        ]);
        leaf.prop_recursive(3, 32, 8, move |inner| {
            let members = prop::collection::vec((key.clone(), inner.clone()), 0..8);
            prop_oneof![
                prop::collection::vec(inner, 0..4).prop_map(Value::from),
                members.prop_map(|m| Value::Object(m.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_json_panics(value in json(), shape in prop::collection::vec(0usize..600, 0..4)) {
            let text = value.to_string();
            if let Ok(marker) = Marker::parse(text.as_bytes()) {
                prop_assert!(marker.group.is_none_or(rotation::is_group));
                prop_assert_eq!(Marker::of_json(&value), Ok(marker));
                let _ = marker.rows(&shape);
            }
            let _ = header_layers(&text);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..90) {
            let _ = Marker::parse(&bytes);
            let whole = br#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":256,"params":{"per_row":true}}"#;
            let _ = Marker::parse(&whole[..cut.min(whole.len())]);
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let text = "{\"params\":".repeat(100_000);
        assert!(Marker::parse(&text.as_bytes()[..MAX_MARKER]).is_err());
        assert!(header_layers(&text).is_err());
    }
}
