//! Errors of images in a layout or archive.

use bulkhead_core::error::Code;
use bulkhead_core::reason::Reason;

/// What is wrong with an OCI image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// A document cannot be read.
    #[error("{document} cannot be understood: {cause}")]
    Document {
        /// `index.json`, or a digest.
        document: String,
        /// Where it is wrong.
        cause: String,
    },
    /// A document is larger than any image has.
    #[error("{0} is larger than any such document")]
    TooLarge(String),
    /// Documents are larger together than those of any image.
    #[error("its indexes and manifests are too large in total")]
    TooMany,
    /// It has more layers than any image.
    #[error("the image has {found} layers, and {most} are imported at most")]
    Layers {
        /// How many.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A digest that is none.
    #[error("\"{0}\" is not a sha256 digest")]
    BadDigest(String),
    /// A blob is not there.
    #[error("{0} is missing")]
    Missing(String),
    /// A blob is not what it is called.
    #[error("{wanted} is damaged: its digest is {found}")]
    WrongDigest {
        /// Its name.
        wanted: String,
        /// What its name would be.
        found: String,
    },
    /// A blob has another size.
    #[error("{digest} is damaged: it should have {wanted} bytes and has {found}")]
    WrongSize {
        /// Its name.
        digest: String,
        /// The size in its descriptor.
        wanted: u64,
        /// The size that it has.
        found: u64,
    },
    /// What a layer is cannot be read.
    #[error("layer {digest} is of type \"{media_type}\", which is not supported")]
    MediaType {
        /// The layer.
        digest: String,
        /// Its type.
        media_type: String,
    },
    /// A layer cannot be read without a key.
    #[error("layer {0} is encrypted")]
    Encrypted(String),
    /// A layer is to be had elsewhere.
    #[error("layer {0} is not distributed with the image")]
    Foreign(String),
    /// There is no image for the platform.
    #[error("it has no image for {wanted}, only for {found}")]
    NoPlatform {
        /// What was looked for.
        wanted: String,
        /// What is there.
        found: String,
    },
    /// There is no image of the name.
    #[error("it has no image named \"{wanted}\", only {found}")]
    NoReference {
        /// What was looked for.
        wanted: String,
        /// What is there.
        found: String,
    },
    /// There is no image at all.
    #[error("it has no image")]
    Empty,
    /// There are several.
    #[error("it has several images: {0}")]
    Ambiguous(String),
    /// Indexes in indexes.
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
