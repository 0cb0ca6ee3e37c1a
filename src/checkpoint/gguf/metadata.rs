use super::reader::Reader;
use crate::checkpoint::CheckpointError;
use std::collections::BTreeMap;
use std::fmt;

/// Numbers of the two kinds that have a length (`gguf_type` in gguf.h).
const TEXT: u32 = 8;
const LIST: u32 = 9;
/// Lists of lists and so on: no file has more than one level.
const MAX_DEPTH: u32 = 4;
/// Longest text that messages show.
const SHOWN: usize = 40;

/// Metadata of a GGUF file, by key, such as `general.architecture`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(BTreeMap<String, MetaValue>);

/// A value of metadata.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MetaValue {
    /// Of 8 to 64 bits.
    Unsigned(u64),
    /// Of 8 to 64 bits.
    Signed(i64),
    /// Of 32 or 64 bits.
    Float(f64),
    /// True or false.
    Flag(bool),
    /// UTF-8; what is not is replaced.
    Text(String),
    /// Values of one kind.
    List(List),
}

/// A list in metadata. It is kept as the bytes of the file: vocabularies have many thousands of words.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    kind: u32,
    count: usize,
    bytes: Vec<u8>,
}

impl Metadata {
    pub(super) fn read(reader: &mut Reader<'_>, count: u64) -> Result<Self, CheckpointError> {
        let mut values = BTreeMap::new();
        for _ in 0..count {
            let key = reader.name()?;
            let kind = reader.u32()?;
            let value = MetaValue::read(reader, kind, &key)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(reader.invalid(format!("`{key}` is there twice")));
            }
        }
        Ok(Self(values))
    }

    /// Every key with its value.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &MetaValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A value, if it is there.
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.0.get(key)
    }

    /// A text, if one is there.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            MetaValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number of 0 or more, if one is there.
    pub fn count(&self, key: &str) -> Option<u64> {
        self.get(key)?.count()
    }

    /// A number, if one is there.
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            MetaValue::Float(v) => Some(*v),
            MetaValue::Unsigned(v) => Some(*v as f64),
            MetaValue::Signed(v) => Some(*v as f64),
            _ => None,
        }
    }

    /// A flag, if one is there.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            MetaValue::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// What model the file says it holds: `lumina2`, `qwen3`, `wan`.
    pub fn architecture(&self) -> Option<&str> {
        self.text("general.architecture")
    }
}

impl MetaValue {
    fn read(reader: &mut Reader<'_>, kind: u32, key: &str) -> Result<Self, CheckpointError> {
        Ok(match kind {
            0 => Self::Unsigned(u8::from_le_bytes(reader.array()?).into()),
            1 => Self::Signed(i8::from_le_bytes(reader.array()?).into()),
            2 => Self::Unsigned(u16::from_le_bytes(reader.array()?).into()),
            3 => Self::Signed(i16::from_le_bytes(reader.array()?).into()),
            4 => Self::Unsigned(u32::from_le_bytes(reader.array()?).into()),
            5 => Self::Signed(i32::from_le_bytes(reader.array()?).into()),
            6 => Self::Float(f32::from_le_bytes(reader.array()?).into()),
            7 => match reader.array::<1>()? {
                [flag @ (0 | 1)] => Self::Flag(flag == 1),
                [other] => return Err(reader.invalid(format!("`{key}` is the flag {other}, not 0 or 1"))),
            },
            TEXT => Self::Text(String::from_utf8_lossy(reader.text()?).into_owned()),
            LIST => Self::List(List::read(reader, key)?),
            10 => Self::Unsigned(reader.u64()?),
            11 => Self::Signed(i64::from_le_bytes(reader.array()?)),
            12 => Self::Float(f64::from_le_bytes(reader.array()?)),
            other => return Err(reader.invalid(format!("`{key}` is of the unknown kind {other}"))),
        })
    }

    /// A number of 0 or more, if it is one.
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Unsigned(v) => Some(*v),
            Self::Signed(v) => u64::try_from(*v).ok(),
            _ => None,
        }
    }

    /// A list of at most `most` sizes, if it is one.
    pub(super) fn sizes(&self, most: usize) -> Option<Vec<usize>> {
        let Self::List(list) = self else { return None };
        let size = |value: Self| usize::try_from(value.count()?).ok();
        (list.len() <= most).then(|| list.iter().map(size).collect())?
    }
}

impl List {
    /// Checks every item, but keeps bytes only.
    fn read(reader: &mut Reader<'_>, key: &str) -> Result<Self, CheckpointError> {
        let (kind, count) = (reader.u32()?, reader.u64()?);
        let from = reader.at();
        skip(reader, kind, count, 0, key)?;
        Ok(Self {
            kind,
            count: count as usize,
            bytes: reader.since(from).to_vec(),
        })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Every value.
    pub fn iter(&self) -> impl Iterator<Item = MetaValue> {
        let mut reader = Reader::new("", &self.bytes);
        // They have been checked.
        (0..self.count).map_while(move |_| MetaValue::read(&mut reader, self.kind, "").ok())
    }
}

/// Goes past `count` values of a kind.
fn skip(reader: &mut Reader<'_>, kind: u32, count: u64, depth: u32, key: &str) -> Result<(), CheckpointError> {
    let size = match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        TEXT => {
            reader.expect(count, 8)?;
            for _ in 0..count {
                reader.text()?;
            }
            return Ok(());
        }
        LIST if depth < MAX_DEPTH => {
            reader.expect(count, 12)?;
            for _ in 0..count {
                let (kind, count) = (reader.u32()?, reader.u64()?);
                skip(reader, kind, count, depth + 1, key)?;
            }
            return Ok(());
        }
        LIST => return Err(reader.invalid(format!("`{key}` has lists in lists more than {MAX_DEPTH} deep"))),
        other => return Err(reader.invalid(format!("`{key}` is a list of the unknown kind {other}"))),
    };
    let bytes = reader.take(count.saturating_mul(size))?;
    match bytes.iter().find(|&&flag| kind == 7 && flag > 1) {
        Some(flag) => Err(reader.invalid(format!("`{key}` has the flag {flag}, not 0 or 1"))),
        None => Ok(()),
    }
}

impl fmt::Display for MetaValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(v) => v.fmt(f),
            Self::Signed(v) => v.fmt(f),
            Self::Float(v) => v.fmt(f),
            Self::Flag(v) => v.fmt(f),
            Self::Text(text) => match text.char_indices().nth(SHOWN) {
                Some((end, _)) => write!(f, "{:?}…", &text[..end]),
                None => write!(f, "{text:?}"),
            },
            Self::List(list) => {
                const MOST: usize = 8;
                let items: Vec<_> = list.iter().take(MOST).map(|v| v.to_string()).collect();
                let rest = if list.len() > MOST { ", …" } else { "" };
                write!(f, "[{}{rest}]", items.join(", "))
            }
        }
    }
}
