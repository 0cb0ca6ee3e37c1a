//! The graph that model code builds: a list of nodes in order, each an op over earlier values.

use crate::checkpoint::{CheckpointError, Part, Weights};
use crate::error::{AdapterError, Result, ShapeError};
use crate::models::TileNorms;
use crate::op::Op;
use crate::tensor::{DType, Shape, Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// No machine holds more, and with this many no sum of strides or bytes overflows. Counts of elements saturate.
const MAX_ELEMENTS: u64 = 1 << 48;

/// Handle to a tensor in a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub(crate) usize);

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Given before each run; keeps its contents until it is given again.
    Input(String),
    /// Known when the graph is built, such as a table of angles.
    Constant(Arc<Tensor>),
    /// A tensor of the checkpoint, by full name, or a [`Part`] of it.
    Weight(String),
    /// The result of a node.
    Node(usize),
    /// The same elements in another shape: no copy.
    Reshape(Value),
}

/// An op with its inputs.
#[derive(Debug)]
pub struct Node {
    /// What to compute.
    pub op: Arc<dyn Op>,
    /// From what.
    pub inputs: Vec<Value>,
    /// Into what.
    pub output: Value,
    /// Where in the model, for messages: `layers.3.attention`.
    pub path: String,
}

/// A computation under construction. Values exist only in the graph that made them.
#[derive(Debug)]
pub struct Graph {
    dtype: DType,
    types: Vec<TensorType>,
    sources: Vec<Source>,
    nodes: Vec<Node>,
    outputs: Vec<(String, Value)>,
    path: String,
    taps: bool,
    norms: usize,
    tile: Option<(TileNorms, Option<Value>)>,
    reached: BTreeSet<String>,
    made: BTreeMap<(Option<Value>, String), [Value; 2]>,
}

impl Graph {
    /// An empty graph whose activations are stored as `dtype` ([`DType::F32`] or [`DType::F16`]); arithmetic is always `f32`.
    pub fn new(dtype: DType) -> Self {
        Self {
            dtype,
            types: Vec::new(),
            sources: Vec::new(),
            nodes: Vec::new(),
            outputs: Vec::new(),
            path: String::new(),
            taps: false,
            norms: 0,
            tile: None,
            reached: BTreeSet::new(),
            made: BTreeMap::new(),
        }
    }

    /// Makes it a graph for tiles of a picture: see [`TileNorms`].
    pub fn for_tiles(mut self, norms: TileNorms) -> Self {
        let core = (!norms.collected.is_empty()).then(|| self.input("core", TensorType::new(DType::U32, [4])));
        self.tile = Some((norms, core));
        self
    }

    /// Number of group norms so far.
    pub fn norms(&self) -> usize {
        self.norms
    }

    /// Counts a group norm over `x`; gives its statistics where they come from outside.
    pub(crate) fn enter_norm(&mut self, x: Value, groups: usize) -> Result<Option<Value>, ShapeError> {
        let index = self.norms;
        self.norms += 1;
        let Some((norms, core)) = self.tile.clone() else {
            return Ok(None);
        };
        if let Some(core) = core.filter(|_| norms.collected.contains(&index)) {
            let stats = self.group_stats(x, core, groups, norms.units)?;
            self.output(&Self::norm_output(index), stats);
        }
        let rows = self.shape(x).first().map_or(groups, |n| n * groups);
        let ty = TensorType::new(DType::F32, [rows, 3]);
        Ok((index < norms.given).then(|| self.input(&Self::norm_input(index), ty)))
    }

    /// Turns every [`Graph::tap`] into an output: for tests that compare intermediate values.
    pub fn with_taps(mut self) -> Self {
        self.taps = true;
        self
    }

    /// Element type of activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.types[value.0]
    }

    /// Shape of a value.
    pub fn shape(&self, value: Value) -> &Shape {
        &self.types[value.0].shape
    }

    /// Where a value comes from.
    pub fn source(&self, value: Value) -> &Source {
        &self.sources[value.0]
    }

    /// Every value, in order of creation.
    pub fn values(&self) -> impl ExactSizeIterator<Item = Value> + use<> {
        (0..self.types.len()).map(Value)
    }

    /// Nodes in the order of construction, which is an order of execution.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Named results.
    pub fn outputs(&self) -> &[(String, Value)] {
        &self.outputs
    }

    /// The value whose storage `value` shares: itself, or what it reshapes.
    pub fn root(&self, value: Value) -> Value {
        match self.source(value) {
            Source::Reshape(of) => self.root(*of),
            _ => value,
        }
    }

    /// Sets the path that messages about the following nodes name: that of the weights in use.
    pub fn enter(&mut self, weights: &Weights) {
        self.path = weights.path().to_owned();
    }

    /// A value that is given before a run.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Value {
        self.define(ty, Source::Input(name.to_owned()))
    }

    /// A value known now. Its element type stays as it is.
    pub fn constant(&mut self, mut tensor: Tensor) -> Value {
        // The plan counts elements, not what the vector has in reserve.
        tensor.data.shrink_to_fit();
        self.define(tensor.ty.clone(), Source::Constant(Arc::new(tensor)))
    }

    /// A weight of exactly this shape, stored on the device as it is in the file: matrices, filters, tables. Only matrices stay
    /// packed: others are decoded to F32, and so are codes of int8 layers, whose scales are a weight of their own.
    ///
    /// # Errors
    /// If the checkpoint has no such tensor, or one of another shape or an unusable type.
    pub fn weight(&mut self, weights: &Weights, name: &str, shape: impl Into<Shape>) -> Result<Value> {
        let (_, dtype) = self.look_up(weights, name, &shape.into())?;
        let shape = weights.info(name)?.shape.clone();
        self.weight_as(weights, name, shape, dtype)
    }

    /// As [`Graph::weight`], stored on the device as `dtype`.
    ///
    /// # Errors
    /// As [`Graph::weight`].
    pub fn weight_as(&mut self, weights: &Weights, name: &str, shape: impl Into<Shape>, dtype: DType) -> Result<Value> {
        let shape = shape.into();
        let (full, _) = self.look_up(weights, name, &shape)?;
        self.enter(weights);
        Ok(self.define(TensorType { dtype, shape }, Source::Weight(full)))
    }

    /// The weight `[n, k]` of an int8 layer as it is in the file: codes, and the `f32` scale of each row.
    ///
    /// # Errors
    /// As [`Graph::weight`], or if the weight has no scales.
    pub fn codes(&mut self, weights: &Weights, name: &str, [n, k]: [usize; 2]) -> Result<(Value, Value)> {
        let codes = self.weight_as(weights, name, [n, k], DType::I8)?;
        Ok((codes, self.vector(weights, &format!("{name}_scale"), n)?))
    }

    /// What `key` says is made of `x`, or of nothing: the first who asks has it made.
    pub(crate) fn once(
        &mut self,
        x: Option<Value>,
        key: String,
        make: impl FnOnce(&mut Self) -> Result<[Value; 2], ShapeError>,
    ) -> Result<[Value; 2], ShapeError> {
        let key = (x, key);
        if let Some(made) = self.made.get(&key) {
            return Ok(*made);
        }
        let made = make(self)?;
        self.made.insert(key, made);
        Ok(made)
    }

    /// A range of one axis of a weight that has exactly this shape; the rest is never brought to the device.
    ///
    /// # Errors
    /// As [`Graph::weight`], or if the weight does not reach so far.
    pub fn weight_part(
        &mut self,
        weights: &Weights,
        name: &str,
        whole: impl Into<Shape>,
        axis: usize,
        range: Range<usize>,
    ) -> Result<Value> {
        let whole = whole.into();
        let (name, dtype) = self.look_up(weights, name, &whole)?;
        self.enter(weights);
        let mut shape = whole.to_vec();
        if axis >= shape.len() || range.start >= range.end || range.end > shape[axis] {
            let ty = TensorType { dtype, shape: whole };
            let rule = format!("has no part {range:?} of axis {axis}");
            return Err(ShapeError {
                node: self.path.clone(),
                ..ShapeError::new("weight", &[ty], rule)
            }
            .into());
        }
        shape[axis] = range.len();
        // Rows are whole blocks, parts of them are not.
        let dtype = if dtype.is_blocks() && axis > 0 {
            DType::F32
        } else {
            dtype
        };
        let part = Part { name, axis, range };
        Ok(self.define(TensorType::new(dtype, shape), Source::Weight(part.to_string())))
    }

    /// A small weight of `len` elements that is widened to `f32` when loaded: biases, scales of norms.
    ///
    /// # Errors
    /// As [`Graph::weight`].
    pub fn vector(&mut self, weights: &Weights, name: &str, len: usize) -> Result<Value> {
        let (full, _) = self.look_up(weights, name, &Shape::from([len]))?;
        self.enter(weights);
        Ok(self.define(TensorType::new(DType::F32, [len]), Source::Weight(full)))
    }

    /// Notes that the layer at `path` adds what adapters add to its output.
    pub(crate) fn reach(&mut self, path: &str) {
        self.reached.insert(path.to_owned());
    }

    fn look_up(&self, weights: &Weights, name: &str, wanted: &Shape) -> Result<(String, DType)> {
        let info = weights.info(name)?;
        // An adapter must not be lost in silence.
        if let Some(module) = info.name.strip_suffix(".weight")
            && weights.checkpoint().site(module).is_some()
            && !self.reached.contains(module)
        {
            let (file, module) = (weights.checkpoint().name().to_owned(), module.to_owned());
            return Err(AdapterError::NotReached { file, module }.into());
        }
        if info.shape != *wanted {
            return Err(CheckpointError::Shape {
                file: weights.checkpoint().name().to_owned(),
                name: info.name.clone(),
                found: info.shape.clone(),
                wanted: wanted.clone(),
            }
            .into());
        }
        let dtype = info.device()?;
        if dtype == DType::I8 && !info.is_int8_tensorwise() {
            return Err(CheckpointError::DType {
                file: weights.checkpoint().name().to_owned(),
                name: info.name.clone(),
                found: "I8 codes without scales".into(),
                wanted: "F32, F16, BF16 or blocks from Q8_0 to Q6_K".into(),
            }
            .into());
        }
        // Only matmul and embedding read packed weights, and only rows of whole blocks.
        let keep = !dtype.is_packed()
            || (dtype.is_blocks() && wanted.len() == 2 && wanted.last().is_multiple_of(dtype.block().0));
        Ok((info.name.clone(), if keep { dtype } else { DType::F32 }))
    }

    /// Adds a node. Model code calls the methods that the ops define.
    ///
    /// # Errors
    /// If the inputs do not fit or are empty; the message names the path of the node.
    pub fn push(&mut self, op: impl Op, inputs: &[Value]) -> Result<Value, ShapeError> {
        self.push_shared(Arc::new(op), inputs)
    }

    /// As [`Graph::push`], for an op whose type is erased.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn push_shared(&mut self, op: Arc<dyn Op>, inputs: &[Value]) -> Result<Value, ShapeError> {
        let types: Vec<_> = inputs.iter().map(|v| self.ty(*v).clone()).collect();
        let inferred = match types.iter().any(|ty| ty.count() == 0) {
            true => Err(ShapeError::new(op.name(), &types, "no input may be empty")),
            false => op.infer(&types),
        };
        let too_large = |ty: &TensorType| ty.count() == usize::MAX || ty.count() as u64 > MAX_ELEMENTS;
        let ty = match inferred {
            Ok(ty) if types.iter().chain([&ty]).any(too_large) => {
                let rule = format!("makes {ty}; no tensor may have more than {MAX_ELEMENTS} elements");
                Err(ShapeError::new(op.name(), &types, rule))
            }
            inferred => inferred,
        };
        let ty = ty.map_err(|e| ShapeError {
            node: self.path.clone(),
            ..e
        })?;
        let output = self.define(ty, Source::Node(self.nodes.len()));
        self.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            output,
            path: self.path.clone(),
        });
        Ok(output)
    }

    /// The same elements in another shape, without a copy.
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshape(&mut self, value: Value, shape: impl Into<Shape>) -> Result<Value, ShapeError> {
        let ty = self.ty(value).clone();
        let shape = shape.into();
        if shape.count() != ty.count() {
            return Err(ShapeError {
                node: self.path.clone(),
                ..ShapeError::new("reshape", &[ty], format!("cannot become {shape}"))
            });
        }
        let ty = TensorType { dtype: ty.dtype, shape };
        Ok(self.define(ty, Source::Reshape(value)))
    }

    /// Names a result of the graph.
    pub fn output(&mut self, name: &str, value: Value) {
        self.outputs.push((name.to_owned(), value));
    }

    /// Names an intermediate value, which becomes a result in a graph made [`Graph::with_taps`].
    pub fn tap(&mut self, name: &str, value: Value) {
        if self.taps {
            self.output(name, value);
        }
    }

    fn define(&mut self, ty: TensorType, source: Source) -> Value {
        self.types.push(ty);
        self.sources.push(source);
        Value(self.types.len() - 1)
    }
}
