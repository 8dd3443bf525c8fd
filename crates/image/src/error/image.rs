//! Errors of images in a layout or archive.

use bulkhead_core::error::Code;
use bulkhead_core::reason::Reason;

/// Why an image cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// A document is malformed.
    #[error("{document} cannot be parsed: {cause}")]
    Document {
        /// `index.json`, or a digest.
        document: String,
        /// The error of the parser.
        cause: String,
    },
    /// A document exceeds the size limit.
    #[error("{0} is too large")]
    TooLarge(String),
    /// The documents exceed the total size limit.
    #[error("its indexes and manifests are too large in total")]
    TooMany,
    /// It exceeds the limit of layers.
    #[error("the image has {found} layers; at most {most} are supported")]
    Layers {
        /// Number of layers.
        found: usize,
        /// The limit.
        most: usize,
    },
    /// A digest is malformed.
    #[error("\"{0}\" is not a sha256 digest")]
    BadDigest(String),
    /// A blob is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// A blob does not match its digest.
    #[error("{wanted} is damaged: its digest is {found}")]
    WrongDigest {
        /// The expected digest.
        wanted: String,
        /// The digest of its content.
        found: String,
    },
    /// A blob does not have the expected size.
    #[error("{digest} is damaged: it should have {wanted} bytes and has {found}")]
    WrongSize {
        /// Its digest.
        digest: String,
        /// The size in its descriptor, bytes.
        wanted: u64,
        /// The actual size, bytes.
        found: u64,
    },
    /// The media type of a layer is not supported.
    #[error("layer {digest} is of type \"{media_type}\", which is not supported")]
    MediaType {
        /// Digest of the layer.
        digest: String,
        /// Its media type.
        media_type: String,
    },
    /// A layer is encrypted.
    #[error("layer {0} is encrypted")]
    Encrypted(String),
    /// A layer is not part of the layout (non-distributable).
    #[error("layer {0} is not distributed with the image")]
    Foreign(String),
    /// No image runs on the selected platform.
    #[error("it has no image for {wanted}, only for {found}")]
    NoPlatform {
        /// The selection.
        wanted: String,
        /// The images found.
        found: String,
    },
    /// No image has the selected name.
    #[error("it has no image named \"{wanted}\", only {found}")]
    NoReference {
        /// The selection.
        wanted: String,
        /// The images found.
        found: String,
    },
    /// There is no image.
    #[error("it has no image")]
    Empty,
    /// Several images match the selection.
    #[error("it has several images: {0}")]
    Ambiguous(String),
    /// Indexes are nested beyond the limit.
    #[error("its indexes are nested too deeply")]
    Depth,
}

impl ImageError {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Document { .. }
            | Self::TooLarge(_)
            | Self::TooMany
            | Self::BadDigest(_)
            | Self::Missing(_)
            | Self::WrongDigest { .. }
            | Self::WrongSize { .. }
            | Self::Depth => Code::Corrupt,
            Self::MediaType { .. } | Self::Encrypted(_) | Self::Foreign(_) | Self::Layers { .. } => Code::Unsupported,
            Self::NoPlatform { .. } | Self::NoReference { .. } | Self::Empty => Code::NotFound,
            Self::Ambiguous(_) => Code::InvalidArgument,
        }
    }

    pub(super) fn reason(&self) -> Option<Reason> {
        match self {
            Self::NoPlatform { .. } => Some(Reason::NoSuchPlatform),
            Self::NoReference { .. } | Self::Ambiguous(_) => Some(Reason::ImageAmbiguous),
            Self::TooMany => Some(Reason::TooManyImages),
            _ => None,
        }
    }

    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::MediaType { .. } => "save the image again, with layers that are tar archives (plain, gzip or zstd)",
            Self::Encrypted(_) => "decrypt the image first",
            Self::Foreign(_) => "save the image again, with all of its layers",
            Self::NoPlatform { .. } | Self::NoReference { .. } | Self::Ambiguous(_) | Self::TooMany => "",
            Self::Empty => "save an image into it first",
            Self::Layers { .. } => "squash its layers into fewer",
            _ => "get or save the image again",
        }
    }
}
