//! Drawing.

#![allow(dead_code, reason = "whoever draws uses its own part of this module")]

// Okabe and Ito's, which people tell apart whatever colours they see.
pub(crate) const BLUE: &str = "#0072B2";
pub(crate) const VERMILION: &str = "#D55E00";
pub(crate) const INK: &str = "#1f2328";
pub(crate) const FAINT: &str = "#59636e";
pub(crate) const GRID: &str = "#dde1e6";
pub(crate) const SHADE: &str = "#f1ede4";

/// How text is set.
#[derive(Clone, Copy)]
pub(crate) struct Type {
    size: f64,
    weight: u32,
    colour: &'static str,
    anchor: &'static str,
    /// A white edge, so that it can be read on top of something.
    halo: bool,
}

/// The running text.
pub(crate) const PLAIN: Type = Type {
    size: 13.0,
    weight: 400,
    colour: INK,
    anchor: "start",
    halo: false,
};

impl Type {
    pub(crate) const fn size(self, size: f64) -> Self {
        Self { size, ..self }
    }

    pub(crate) const fn bold(self) -> Self {
        Self {
            weight: 700,
            ..self
        }
    }

    pub(crate) const fn colour(self, colour: &'static str) -> Self {
        Self { colour, ..self }
    }

    pub(crate) const fn anchor(self, anchor: &'static str) -> Self {
        Self { anchor, ..self }
    }

    pub(crate) const fn halo(self) -> Self {
        Self { halo: true, ..self }
    }
}

/// The lines of an SVG document.
#[derive(Default)]
pub(crate) struct Canvas(pub(crate) String);

impl Canvas {
    pub(crate) fn put(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    pub(crate) fn text(&mut self, (x, y): (f64, f64), text: &str, look: Type) {
        let Type {
            size,
            weight,
            colour,
            anchor,
            halo,
        } = look;
        let halo = match halo {
            true => {
                r##" stroke="#ffffff" stroke-width="4" stroke-linejoin="round" paint-order="stroke""##
            }
            false => "",
        };
        self.put(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="{anchor}"{halo}>{}</text>"#,
            escape(text)
        ));
    }

    pub(crate) fn rule(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, more: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(&format!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" {more}/>"#
        ));
    }
}

/// Text that is safe between tags.
pub(crate) fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;")
}
