// four = packed: four codes in their word, for adapters that multiply these
alias Four = u32;

fn four(word: u32) -> Four { return word; }

fn dot4(a: Four, b: Four) -> i32 { return dot4I8Packed(a, b); }
