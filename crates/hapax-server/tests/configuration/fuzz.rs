//! Any text that a user may write gets an answer.

use std::path::Path;

use hapax_server::config::file::{self, Overrides};

use crate::{example, upstream};

/// Fragments that are hard to parse.
const PIECES: [&str; 18] = [
    "\"",
    "'",
    "\"\"\"",
    "\n",
    "[",
    "]]",
    "{",
    "}",
    "é",
    "\u{202e}",
    "\u{0}",
    " = ",
    "=",
    "0",
    "-1",
    "99999999999999999999",
    "[[routes]]\n",
    "admin_token = \"",
];

/// A small random generator; its seed is printed, so that a failure can be reproduced.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }
}

fn place(text: &str, dice: &mut Dice) -> usize {
    let at = dice.roll(text.len() + 1);
    text.floor_char_boundary(at)
}

#[test]
fn no_file_makes_the_reader_panic() {
    let mut dice = Dice(0x5eed_c0ff_ee00_0001);
    let example = example();
    for _ in 0..1_500 {
        let mut text = example.clone();
        for _ in 0..=dice.roll(4) {
            let at = place(&text, &mut dice);
            match dice.roll(4) {
                0 => text.truncate(at),
                1 => text.insert_str(at, PIECES[dice.roll(PIECES.len())]),
                2 => {
                    let end = text.ceil_char_boundary((at + dice.roll(30)).min(text.len()));
                    text.replace_range(at..end, "");
                }
                _ => {
                    let end = text.ceil_char_boundary((at + dice.roll(60)).min(text.len()));
                    let piece = text[at..end].to_owned();
                    let to = place(&text, &mut dice);
                    text.insert_str(to, &piece);
                }
            }
        }
        if let Err(error) = file::parse(Path::new("hapax.toml"), &text, &Overrides::default()) {
            let _ = format!("{error} {error:?}");
        }
    }
}

#[test]
fn no_variable_makes_the_reader_panic() {
    let mut dice = Dice(0x5eed_c0ff_ee00_0002);
    let words = [
        "HAPAX",
        "__",
        "_",
        "ROUTES",
        "UPSTREAM",
        "0",
        "1",
        "18446744073709551616",
        "URL",
        "PATH",
        "é",
        "VELOCITY",
        "ADMIN_TOKEN",
        "listen",
    ];
    let values = [
        "",
        "/v1",
        "[",
        "{",
        "[{ by = 1 }]",
        "true",
        "5",
        "\"x\"",
        "é\u{0}",
        "\n\n",
        "1979-05-27",
        "http://a:b@c",
    ];
    for _ in 0..3_000 {
        let name: String = (0..=dice.roll(8))
            .map(|_| words[dice.roll(words.len())])
            .collect();
        let name = if dice.roll(3) == 0 {
            name
        } else {
            format!("HAPAX__{name}")
        };
        let environment = [(name, values[dice.roll(values.len())])]
            .into_iter()
            .collect();
        if let Err(error) = file::load(
            None,
            &Overrides {
                environment,
                ..upstream()
            },
        ) {
            let _ = format!("{error} {error:?}");
        }
    }
}
