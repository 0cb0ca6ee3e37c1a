//! What is refused before anything moves, and which weights are one.

use crate::fake::{World, file, weights};
use rotile::Error;
use rotile::checkpoint::Checkpoint;
use rotile::convert::WeightType;
use rotile::error::ResidencyError;
use rotile::memory::residency::{Home, Residency, WeightRef};
use rotile::tensor::{DType, TensorType};
use std::sync::Arc;

fn checkpoint() -> Arc<Checkpoint> {
    Arc::new(Checkpoint::from_bytes("w.gguf", file().into()).expect("a file"))
}

#[test]
fn weights_are_one_if_their_bytes_and_types_are() {
    let first = checkpoint();
    // Another view of the same bytes, and the same file once more.
    let retyped = Arc::new(first.retyped(WeightType::Plain(DType::F16)));
    let again = checkpoint();
    let of = |checkpoint: &Arc<Checkpoint>, name: &str, dtype, shape: &[usize]| {
        WeightRef::new(checkpoint, name, TensorType::new(dtype, shape)).expect("in the file")
    };
    let a = of(&first, "a", DType::F32, &[4, 8]);
    let cases = [
        (of(&first, "a[0:0..4]", DType::F32, &[4, 8]), true),
        (of(&retyped, "a", DType::F32, &[4, 8]), true),
        (of(&retyped, "a[0:0..4]", DType::F32, &[4, 8]), true),
        (of(&again, "a", DType::F32, &[4, 8]), false),
        (of(&first, "a", DType::F16, &[4, 8]), false),
        (of(&first, "a", DType::F32, &[32]), false),
        (of(&first, "a[0:0..3]", DType::F32, &[3, 8]), false),
        (of(&first, "b", DType::F32, &[3, 8]), false),
    ];
    for (other, tied) in &cases {
        assert_eq!(a.is_tied_to(other), *tied, "{other:?}");
    }
    let rows = of(&first, "a[0:1..3]", DType::F32, &[2, 8]);
    assert!(!rows.is_tied_to(&of(&first, "a[0:0..2]", DType::F32, &[2, 8])));
    // Columns are no range of bytes.
    let columns = of(&first, "a[1:0..4]", DType::F32, &[4, 4]);
    assert!(columns.is_tied_to(&columns.clone()));
    assert!(!columns.is_tied_to(&of(&first, "a[1:4..8]", DType::F32, &[4, 4])));
    // Rows of blocks are.
    let whole = of(&first, "q", DType::Q8_0, &[2, 32]);
    assert!(whole.is_tied_to(&of(&first, "q[0:0..2]", DType::Q8_0, &[2, 32])));
    assert!(WeightRef::new(&first, "c", TensorType::new(DType::F32, [1])).is_err());
    assert!(WeightRef::new(&first, "a[0:2..5]", TensorType::new(DType::F32, [3, 8])).is_err());
}

#[test]
fn reassigning_asks_for_room_and_for_a_source_first() {
    let world = Arc::new(World::default());
    let (host, device) = (world.store(Home::Host), world.store(Home::Device));
    let residency = Residency::keeping();
    let weights = weights(&checkpoint());
    drop(residency.lock(&weights, Home::Device, &device).expect("fits"));

    // The tied weight counts once. Equality fits.
    *world.free.lock().expect("no panic") = Some(259);
    let error = residency.reassign(&weights, Home::Host, &host).expect_err("no room");
    let Error::Residency(ResidencyError::NoRoom { wanted, free, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!((wanted, free), (260, 259));
    assert_eq!(Home::ALL.map(|home| residency.bytes(home)), [0, 260]);
    *world.free.lock().expect("no panic") = Some(260);
    residency.reassign(&weights, Home::Host, &host).expect("fits");
    assert_eq!(Home::ALL.map(|home| residency.bytes(home)), [260, 0]);
    // What is there takes no room.
    *world.free.lock().expect("no panic") = Some(0);
    residency.reassign(&weights, Home::Host, &host).expect("is there");

    let described = Checkpoint::describe("d.json", r#"{"tensors": {"a": ["F32", [4, 8]]}}"#);
    let described = Arc::new(described.expect("valid"));
    let absent = WeightRef::new(&described, "a", TensorType::new(DType::F32, [4, 8])).expect("described");
    let both = [weights[1].clone(), absent];
    let error = residency.reassign(&both, Home::Device, &device).expect_err("no values");
    assert!(error.to_string().contains("`a` is only described"), "{error}");
    assert_eq!(Home::ALL.map(|home| residency.bytes(home)), [260, 0]);
}
