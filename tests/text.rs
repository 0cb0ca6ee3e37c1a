//! Token ids against transformers.

#[path = "support/fixtures.rs"]
mod fixtures;

use rotile::text::{TextError, Tokenizer, prompt};
use serde_json::Value;
use std::fs;

fn tokenizer(path: std::path::PathBuf) -> Tokenizer {
    Tokenizer::from_bytes("tokenizer.json", &fs::read(path).expect("there")).expect("valid")
}

#[test]
fn ids_equal_transformers() {
    let tokenizer = tokenizer(fixtures::scenes("tokenizer/tokenizer.json"));
    let text = fs::read_to_string(fixtures::path("scenes-tiny/tokens.json")).expect("there");
    let cases: Vec<Value> = serde_json::from_str(&text).expect("valid");
    assert_eq!(cases.len(), 20);
    for case in cases {
        let text = case["prompt"].as_str().expect("text");
        let tokens = prompt::z_image(&tokenizer, text).expect("any text can be encoded");
        let ids: Vec<_> = case["ids"]
            .as_array()
            .expect("ids")
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        assert_eq!(prompt::qwen3_chat(text), case["text"].as_str().expect("text"));
        assert_eq!(
            tokens.ids.iter().map(|&id| u64::from(id)).collect::<Vec<_>>(),
            ids,
            "{text}"
        );
        assert_eq!(tokens.note(), None);
    }
}

#[test]
fn ids_equal_transformers_for_the_random_model() {
    let tokenizer = tokenizer(fixtures::path("pipe_zimage/tokenizer/tokenizer.json"));
    let io = fixtures::Fixture::open("text_qwen3/io.safetensors");
    let prompts = [
        "a photo of a cat",
        "An astronaut riding a horse on Mars, highly detailed, 4k!  It's   raining.",
    ];
    let (shape, ids) = io.ids("input_ids");
    let (_, mask) = io.ids("attention_mask");
    for (i, text) in prompts.iter().enumerate() {
        let row = i * shape[1]..(i + 1) * shape[1];
        let length = mask[row.clone()].iter().sum::<u32>() as usize;
        assert_eq!(
            prompt::z_image(&tokenizer, text).expect("valid").ids,
            ids[row][..length],
            "{text}"
        );
    }
}

#[test]
fn special_tokens_in_a_prompt_are_special() {
    let tokenizer = tokenizer(fixtures::scenes("tokenizer/tokenizer.json"));
    assert_eq!(tokenizer.encode("<|im_end|><think>", 9).expect("valid").ids, [902, 903]);
}

#[test]
fn long_prompts_are_cut_and_reported() {
    let tokenizer = tokenizer(fixtures::scenes("tokenizer/tokenizer.json"));
    let tokens = prompt::z_image(&tokenizer, &"sea ".repeat(2000)).expect("valid");
    assert_eq!(tokens.ids.len(), prompt::Z_IMAGE_TOKENS);
    assert!(tokens.dropped > 0);
    let note = tokens.note().expect("a note");
    assert!(note.contains("the first 512 of"), "{note}");
    assert!(matches!(
        tokens.check(100),
        Err(TextError::Vocabulary { rows: 100, .. })
    ));
    assert_eq!(tokens.check(905), Ok(()));
}

#[test]
fn other_files_are_typed_errors() {
    for bytes in [&b""[..], b"{}", b"[1]", b"\xff\xfe"] {
        assert!(matches!(
            Tokenizer::from_bytes("x.json", bytes),
            Err(TextError::Tokenizer { .. })
        ));
    }
}
