//! Tools as clients see them.

use lodge_core::record::BinImageRecord;
use lodge_image::oci::Platform;
use lodge_proto::{BinDetail, BinProgramView, BinView, ImageView};
use lodge_store::ImageSummary;

use super::images;

/// A tool by what is known of its image. `used` counts the images and agents that need it.
pub fn new_bin(image: ImageView, record: &BinImageRecord, used: u64) -> BinView {
    let suited: Vec<Platform> = Platform::here().suited().collect();
    let runs = |text: &str| Platform::read(text).is_ok_and(|platform| suited.contains(&platform));
    BinView {
        digest: image.digest,
        refs: image.refs,
        named: image.named,
        name: record.name.clone(),
        description: record.description.clone(),
        platforms: record.platforms.iter().map(|program| program.platform.clone()).collect(),
        runs_here: record.platforms.iter().any(|program| runs(&program.platform)),
        size_bytes: image.size_bytes,
        used,
        created_at: image.created_at,
    }
}

pub fn bin(found: ImageSummary, record: &BinImageRecord) -> BinView {
    let used = found.agents + found.needed_by;
    new_bin(images::image(found), record, used)
}

pub fn bin_detail(found: ImageSummary, record: BinImageRecord) -> BinDetail {
    BinDetail {
        bin: bin(found, &record),
        usage: record.usage,
        labels: record.labels,
        programs: record
            .platforms
            .into_iter()
            .map(|program| BinProgramView {
                platform: program.platform,
                digest: program.manifest,
                path: program.path,
                size_bytes: program.size,
            })
            .collect(),
    }
}
