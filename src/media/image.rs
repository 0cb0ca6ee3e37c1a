//! A picture in memory, and its PNG, JPEG and WebP bytes.

use crate::error::{Error, MediaError, Result, ShapeError};
use crate::tensor::Tensor;
use ::image::codecs::jpeg::JpegEncoder;
use ::image::codecs::webp::WebPEncoder;
use ::image::imageops::{self, FilterType};
use ::image::{DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder, ImageReader, RgbImage};
use std::io::Cursor;

/// A picture of 8-bit RGB pixels, row by row.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: u32,
    height: u32,
    rgb8: Vec<u8>,
}

/// How a picture is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lossless, with text chunks.
    Png,
    /// Lossy, quality 95, without text.
    Jpeg,
    /// Lossless, without text.
    WebP,
}

impl Format {
    /// The format that a file name asks for: `.png`, `.jpg`, `.jpeg`, `.webp`.
    ///
    /// # Errors
    /// If the name ends otherwise.
    pub fn of(name: &str) -> Result<Self, MediaError> {
        let ending = name
            .rsplit_once('.')
            .map_or(String::new(), |(_, e)| e.to_ascii_lowercase());
        match ending.as_str() {
            "png" => Ok(Self::Png),
            "jpg" | "jpeg" => Ok(Self::Jpeg),
            "webp" => Ok(Self::WebP),
            _ => Err(format_error(
                name,
                "cannot tell the format: end the name in .png, .jpg or .webp",
            )),
        }
    }
}

impl Image {
    /// Pixels of a picture that is read or brought to another size, at most: running out of memory ends a program without a word.
    pub const MAX_PIXELS: u64 = 1 << 28;

    /// A picture from its pixels.
    ///
    /// # Panics
    /// If a side is 0 or there are not `3 * width * height` bytes.
    pub fn new(width: u32, height: u32, rgb8: Vec<u8>) -> Self {
        assert!(width > 0 && height > 0, "a side of {width}x{height} is 0");
        assert_eq!(
            rgb8.len(),
            3 * width as usize * height as usize,
            "bytes do not fill {width}x{height}"
        );
        Self { width, height, rgb8 }
    }

    /// Pixels of a row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Red, green, blue of each pixel, row by row.
    pub fn rgb8(&self) -> &[u8] {
        &self.rgb8
    }

    /// From a tensor `[1, 3, h, w]` in 0..=1: `round(255 x)`, halves to even as numpy rounds; what lies outside is clamped.
    ///
    /// # Errors
    /// If the shape is another one or a value is NaN or infinite.
    pub fn from_tensor(tensor: &Tensor) -> Result<Self> {
        let &[1, 3, height, width] = &tensor.ty.shape[..] else {
            let rule = "wants a picture [1, 3, h, w]";
            return Err(ShapeError::new("image", std::slice::from_ref(&tensor.ty), rule).into());
        };
        if width == 0 || height == 0 || u32::try_from(width.max(height)).is_err() {
            return Err(ShapeError::new("image", std::slice::from_ref(&tensor.ty), "has an unusable side").into());
        }
        if let Some(index) = tensor.first_non_finite() {
            return Err(Error::NonFinite {
                stage: "picture".into(),
                count: tensor.data.iter().filter(|v| !v.is_finite()).count(),
                total: tensor.data.len(),
                index,
                remedy: String::new(),
            });
        }
        let plane = width * height;
        let byte = |v: f32| (v * 255.0).round_ties_even() as u8;
        let rgb8 = (0..plane)
            .flat_map(|i| [0, 1, 2].map(|c| byte(tensor.data[c * plane + i])))
            .collect();
        Ok(Self::new(width as u32, height as u32, rgb8))
    }

    /// As a tensor `[1, 3, h, w]` in 0..=1.
    pub fn to_tensor(&self) -> Tensor {
        let channel = |c: usize| self.rgb8.iter().skip(c).step_by(3).map(|&v| f32::from(v) / 255.0);
        let data = (0..3).flat_map(channel).collect();
        Tensor::new([1, 3, self.height as usize, self.width as usize], data)
    }

    /// Decodes PNG, JPEG or WebP bytes, turned as their Exif orientation says. Alpha is dropped, as PIL's `convert("RGB")` does.
    ///
    /// # Errors
    /// If the bytes are no such file, or a damaged or absurdly large one; `name` says whose they are.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, MediaError> {
        let fail = |e: ::image::ImageError| format_error(name, &e.to_string());
        let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
        let reader = reader.map_err(|e| format_error(name, &e.to_string()))?;
        if reader.format().is_none() {
            return Err(format_error(name, "not a PNG, JPEG or WebP picture"));
        }
        let mut decoder = reader.into_decoder().map_err(fail)?;
        let (width, height) = decoder.dimensions();
        if u64::from(width) * u64::from(height) > Self::MAX_PIXELS {
            let reason = format!("{width}x{height} is more than {} pixels", Self::MAX_PIXELS);
            return Err(format_error(name, &reason));
        }
        let orientation = decoder.orientation().map_err(fail)?;
        let mut picture = DynamicImage::from_decoder(decoder).map_err(fail)?;
        picture.apply_orientation(orientation);
        let rgb = picture.into_rgb8();
        if rgb.width() == 0 || rgb.height() == 0 {
            return Err(format_error(name, "the picture has no pixels"));
        }
        Ok(Self::new(rgb.width(), rgb.height(), rgb.into_raw()))
    }

    /// Encodes the picture. `text` goes into the chunks of a PNG (`tEXt`, or `iTXt` for what is not ASCII); other formats leave it
    /// out. The same picture and text give the same bytes.
    ///
    /// # Errors
    /// If a keyword is not 1 to 79 printable ASCII characters, or the format cannot hold the size.
    pub fn to_bytes(&self, format: Format, text: &[(String, String)]) -> Result<Vec<u8>, MediaError> {
        let mut bytes = Vec::new();
        let (w, h, rgb) = (self.width, self.height, ExtendedColorType::Rgb8);
        let result = match format {
            Format::Png => return self.to_png(text),
            Format::Jpeg => JpegEncoder::new_with_quality(&mut bytes, 95).write_image(&self.rgb8, w, h, rgb),
            Format::WebP => WebPEncoder::new_lossless(&mut bytes).write_image(&self.rgb8, w, h, rgb),
        };
        result.map_err(|e| format_error("picture", &e.to_string()))?;
        Ok(bytes)
    }

    fn to_png(&self, text: &[(String, String)]) -> Result<Vec<u8>, MediaError> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let fail = |e: png::EncodingError| format_error("PNG", &e.to_string());
        for (keyword, text) in text {
            if !(1..=79).contains(&keyword.len()) || !keyword.bytes().all(|b| (b' '..=b'~').contains(&b)) {
                return Err(format_error("PNG", &format!("`{keyword}` cannot be a keyword")));
            }
            // A NUL would end the text.
            let (keyword, text) = (keyword.clone(), text.replace('\0', " "));
            if text.is_ascii() {
                encoder.add_text_chunk(keyword, text).map_err(fail)?;
            } else {
                encoder.add_itxt_chunk(keyword, text).map_err(fail)?;
            }
        }
        let mut writer = encoder.write_header().map_err(fail)?;
        writer.write_image_data(&self.rgb8).map_err(fail)?;
        writer.finish().map_err(fail)?;
        Ok(bytes)
    }

    /// The text chunks of PNG bytes, first those in ASCII.
    ///
    /// # Errors
    /// If the bytes are no PNG, or a damaged one.
    pub fn png_text(bytes: &[u8], name: &str) -> Result<Vec<(String, String)>, MediaError> {
        let fail = |e: png::DecodingError| format_error(name, &e.to_string());
        let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info().map_err(fail)?;
        // Chunks may follow the pixels.
        reader.finish().map_err(fail)?;
        let info = reader.info();
        let latin = info.uncompressed_latin1_text.iter();
        let mut found: Vec<_> = latin.map(|t| (t.keyword.clone(), t.text.clone())).collect();
        for chunk in &info.compressed_latin1_text {
            found.push((chunk.keyword.clone(), chunk.get_text().map_err(fail)?));
        }
        for chunk in &info.utf8_text {
            found.push((chunk.keyword.clone(), chunk.get_text().map_err(fail)?));
        }
        Ok(found)
    }

    /// The picture with its last column and row repeated up to a size, where that is larger.
    #[must_use]
    pub fn pad(&self, width: u32, height: u32) -> Self {
        self.window(width.max(self.width), height.max(self.height))
    }

    /// The upper left part of the picture, where it is larger than this size.
    ///
    /// # Panics
    /// If a side is 0.
    #[must_use]
    pub fn crop(&self, width: u32, height: u32) -> Self {
        self.window(width.min(self.width), height.min(self.height))
    }

    /// The pixels from the upper left corner on; beyond an edge, that of the edge.
    fn window(&self, width: u32, height: u32) -> Self {
        let mut rgb8 = Vec::with_capacity(3 * width as usize * height as usize);
        for y in 0..height.min(self.height) as usize {
            let row = &self.rgb8[3 * y * self.width as usize..][..3 * self.width as usize];
            rgb8.extend_from_slice(&row[..3 * width.min(self.width) as usize]);
            for _ in self.width..width {
                rgb8.extend_from_slice(&row[row.len() - 3..]);
            }
        }
        let last = rgb8.len() - 3 * width as usize;
        for _ in self.height..height {
            rgb8.extend_from_within(last..last + 3 * width as usize);
        }
        Self::new(width, height, rgb8)
    }

    /// The picture at another size (Lanczos, 3 lobes); the aspect ratio is not kept.
    ///
    /// # Panics
    /// If a side is 0.
    pub fn resize(&self, width: u32, height: u32) -> Self {
        if (width, height) == (self.width, self.height) {
            return self.clone();
        }
        let source = RgbImage::from_raw(self.width, self.height, self.rgb8.clone()).expect("bytes fill the picture");
        let resized = imageops::resize(&source, width, height, FilterType::Lanczos3);
        Self::new(width, height, resized.into_raw())
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({}x{})", self.width, self.height)
    }
}

pub(super) fn format_error(file: &str, reason: &str) -> MediaError {
    MediaError::Format {
        file: file.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(width: u32, height: u32) -> Image {
        let pixel = |i: u32| [i % width * 7, i / width * 5, i].map(|v| (v % 256) as u8);
        Image::new(width, height, (0..width * height).flat_map(pixel).collect())
    }

    #[test]
    fn rounds_halves_to_even_and_clamps() {
        let values = [0.5 / 255.0, 1.5 / 255.0, 2.5 / 255.0, 1.0, 1.5, -1.0];
        let image = Image::from_tensor(&Tensor::new([1, 3, 1, 2], values.to_vec())).expect("a picture");
        // Planes become pixels: (r0, g0, b0), (r1, g1, b1).
        assert_eq!(image.rgb8(), [0, 2, 255, 2, 255, 0]);
    }

    #[test]
    fn refuses_nan_and_odd_shapes() {
        let error = Image::from_tensor(&Tensor::new([1, 3, 1, 1], vec![0.0, f32::NAN, 0.0])).expect_err("NaN");
        assert!(matches!(error, Error::NonFinite { index: 1, count: 1, .. }), "{error}");
        for shape in [vec![3, 1, 1], vec![1, 1, 3, 1], vec![2, 3, 1, 1], vec![1, 3, 0, 4]] {
            let count = shape.iter().product();
            assert!(Image::from_tensor(&Tensor::new(shape, vec![0.0; count])).is_err());
        }
    }

    #[test]
    fn tensors_round_trip() {
        let image = gradient(17, 9);
        assert_eq!(Image::from_tensor(&image.to_tensor()).expect("a picture"), image);
    }

    #[test]
    fn files_round_trip() {
        let image = gradient(33, 7);
        for format in [Format::Png, Format::WebP] {
            let bytes = image.to_bytes(format, &[]).expect("bytes");
            assert_eq!(Image::from_bytes(&bytes, "x").expect("a picture"), image);
        }
        let bytes = image.to_bytes(Format::Jpeg, &[]).expect("bytes");
        assert_eq!(Image::from_bytes(&bytes, "x").expect("a picture").width(), 33);
        for bytes in [&b"GIF89a"[..], b"", &bytes[..bytes.len() / 3]] {
            assert!(matches!(Image::from_bytes(bytes, "x"), Err(MediaError::Format { .. })));
        }
    }

    #[test]
    fn a_header_that_promises_too_much_is_refused() {
        let mut bytes = gradient(33, 7).to_bytes(Format::Png, &[]).expect("bytes");
        // Width and height of the first chunk, and its checksum.
        bytes[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0]);
        let crc = bytes[12..29].iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |c, _| (c >> 1) ^ (0xedb8_8320 * (c & 1)))
        });
        bytes[29..33].copy_from_slice(&(!crc).to_be_bytes());
        let error = Image::from_bytes(&bytes, "x").expect_err("too large").to_string();
        assert_eq!(error, "x: 100000x100000 is more than 268435456 pixels");
    }

    #[test]
    fn text_round_trips_and_bytes_are_stable() {
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        let text = [
            pair("seed", "3"),
            pair("settings", "steps 20\nguidance 3"),
            pair("prompt", "ein Schiff, \u{8239} \u{1f6a2}"),
        ];
        let bytes = gradient(5, 4).to_bytes(Format::Png, &text).expect("bytes");
        assert_eq!(Image::png_text(&bytes, "x").expect("text"), text);
        let has = |name: &[u8]| bytes.windows(4).any(|w| w == name);
        assert!(has(b"tEXt") && has(b"iTXt"));
        assert_eq!(gradient(5, 4).to_bytes(Format::Png, &text).expect("bytes"), bytes);
        for keyword in ["", "Schl\u{fc}ssel", &"k".repeat(80)] {
            assert!(gradient(5, 4).to_bytes(Format::Png, &[pair(keyword, "")]).is_err());
        }
        let nul = gradient(5, 4)
            .to_bytes(Format::Png, &[pair("prompt", "a\0b")])
            .expect("bytes");
        assert_eq!(Image::png_text(&nul, "x").expect("text"), [pair("prompt", "a b")]);
        assert!(Image::png_text(&bytes[..40], "x").is_err());
    }

    #[test]
    fn resizes() {
        let flat = Image::new(8, 8, vec![77; 192]);
        assert_eq!(flat.resize(3, 5), Image::new(3, 5, vec![77; 45]));
        assert_eq!(flat.resize(8, 8), flat);
    }

    #[test]
    fn pads_with_the_edges_and_crops() {
        let image = Image::new(2, 2, (0..12).collect());
        let padded = image.pad(3, 4);
        let rows: Vec<_> = padded.rgb8().chunks(9).collect();
        assert_eq!(rows[0], [0, 1, 2, 3, 4, 5, 3, 4, 5]);
        assert_eq!(rows[1], [6, 7, 8, 9, 10, 11, 9, 10, 11]);
        assert!(rows.len() == 4 && rows[2] == rows[1] && rows[3] == rows[1]);
        assert_eq!(padded.crop(2, 2), image);
        assert_eq!(gradient(9, 7).pad(16, 8).crop(9, 7), gradient(9, 7));
        assert_eq!(image.pad(1, 1), image);
    }

    #[test]
    fn formats_by_name() {
        assert_eq!(Format::of("a.b.PNG").ok(), Some(Format::Png));
        assert_eq!(Format::of("x.jpeg").ok(), Some(Format::Jpeg));
        assert!(Format::of("png").is_err() && Format::of("x.gif").is_err());
    }
}
