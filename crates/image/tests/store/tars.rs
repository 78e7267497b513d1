//! Malformed tar files.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use lodge_image::oci::Descriptor;

use crate::TestStore;

pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A tar file that is built entry by entry, with arbitrary headers.
#[derive(Default, Clone)]
pub(crate) struct TarBuilder(pub(crate) Vec<u8>);

impl TarBuilder {
    pub(crate) fn file(self, name: &str, contents: &[u8]) -> TarBuilder {
        self.entry(b'0', name, contents)
    }

    pub(crate) fn dir(self, name: &str) -> TarBuilder {
        self.entry(b'5', name, b"")
    }

    pub(crate) fn link(self, kind: u8, name: &str, to: &str) -> TarBuilder {
        self.raw(kind, name, to, b"", 0)
    }

    /// With its contents, for all kinds.
    pub(crate) fn entry(self, kind: u8, name: &str, contents: &[u8]) -> TarBuilder {
        self.raw(kind, name, "", contents, contents.len() as u64)
    }

    pub(crate) fn raw(mut self, kind: u8, name: &str, link: &str, contents: &[u8], size: u64) -> TarBuilder {
        let mut header = tar::Header::new_gnu();
        let bytes = header.as_mut_bytes();
        let name = &name.as_bytes()[..name.len().min(100)];
        bytes[..name.len()].copy_from_slice(name);
        bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
        bytes[156] = kind;
        header.set_size(size);
        header.set_mode(0o4777);
        header.set_mtime(7);
        header.set_uid(1);
        header.set_gid(1);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(contents);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// A header that describes the next entry.
    pub(crate) fn pax(self, kind: u8, records: &[(&str, &str)]) -> TarBuilder {
        let mut text = String::new();
        for (key, value) in records {
            let rest = format!(" {key}={value}\n");
            let len = (rest.len() + 1..).find(|len| rest.len() + len.to_string().len() == *len).unwrap();
            text += &format!("{len}{rest}");
        }
        self.entry(kind, "././@PaxHeader", text.as_bytes())
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1_024, 0);
        self.0
    }

    pub(crate) fn gzip(self) -> Vec<u8> {
        gzip(&self.end())
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// Puts something into the store, as a layer is named.
pub(crate) fn layer(store: &TestStore, bytes: &[u8]) -> Descriptor {
    let digest = store.blobs.put(&store.blobs.pins(), bytes).unwrap();
    Descriptor::new(LAYER, digest, bytes.len() as u64)
}
