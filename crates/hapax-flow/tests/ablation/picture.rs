//! The picture in docs/inbox.md.

use std::fmt::Write as _;
use std::path::Path;

use super::{Harm, ORDERS};

const FILE: &str = "../../docs/pictures/ablation.svg";
const COLUMNS: [&str; 3] = ["placed twice", "never shipped", "shipped twice"];
/// Where the first column begins, and how wide each is.
const LEFT: usize = 190;
const WIDTH: usize = 170;
const BAR_MAX: usize = 110;
const TOP: usize = 62;
const ROW: usize = 34;

/// Draws what went wrong in each storm. `HAPAX_BLESS=1` keeps the picture.
pub(crate) fn draw(harms: &[(&str, Harm)]) {
    let mut most = 1;
    for (_, harm) in harms {
        most = counts(harm).into_iter().fold(most, usize::max);
    }
    let (width, height) = (LEFT + 3 * WIDTH, TOP + harms.len() * ROW + 12);
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">
  <title>Of {ORDERS} orders in a storm: with key, outbox and receipts nothing goes wrong; without any one of them something does</title>
  <style>
    text {{ font: 14px system-ui, sans-serif; fill: #d6deeb; }}
    .head {{ fill: #8796a5; }}
    .good {{ fill: #56d364; }}
    .bad {{ fill: #ff7b72; font-weight: bold; }}
  </style>
  <rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
  <text x="20" y="36" class="head">of {ORDERS} orders</text>
"##
    );
    for (place, name) in COLUMNS.iter().enumerate() {
        let x = LEFT + place * WIDTH;
        let _ = writeln!(svg, r#"  <text x="{x}" y="36" class="head">{name}</text>"#);
    }
    for (row, (name, harm)) in harms.iter().enumerate() {
        let y = TOP + row * ROW;
        let _ = writeln!(svg, r#"  <text x="20" y="{}">{name}</text>"#, y + 15);
        for (place, count) in counts(harm).into_iter().enumerate() {
            let x = LEFT + place * WIDTH;
            let bar = count * BAR_MAX / most;
            if count > 0 {
                let _ = writeln!(
                    svg,
                    r##"  <rect x="{x}" y="{y}" width="{bar}" height="20" fill="#da3633"/>"##
                );
            }
            let (text, class) = if count > 0 {
                (x + bar + 8, "bad")
            } else {
                (x, "good")
            };
            let _ = writeln!(
                svg,
                r#"  <text x="{text}" y="{}" class="{class}">{count}</text>"#,
                y + 15
            );
        }
    }
    svg.push_str("</svg>\n");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os("HAPAX_BLESS").is_some() {
        std::fs::write(&file, svg).expect("the picture can be written");
    }
    assert!(file.exists(), "HAPAX_BLESS=1 draws {FILE}");
}

fn counts(harm: &Harm) -> [usize; 3] {
    [harm.placed_twice, harm.never_shipped, harm.shipped_twice]
}
