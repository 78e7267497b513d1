//! Tests of programs that are much larger than their layers.

use std::cell::Cell;
use std::io::Read;

use super::*;

/// More than is written between two checks of the disk.
const LARGE: u64 = 20 << 20;

/// A small image with a large program.
fn packed(world: &ImagesWorld, pins: &Pins) -> ImageTree {
    let blobs = world.images.blobs().unwrap();
    let mut new = NewBin {
        name: "rg".into(),
        description: None,
        usage: None,
        labels: BTreeMap::new(),
        programs: Vec::new(),
    };
    let program = new.pack_program(blobs, pins, LARGE, &mut std::io::repeat(0).take(LARGE)).unwrap();
    new.programs.push((Platform::here(), program));
    let packed = pack_bin(&new).unwrap();
    world.images.store_packed(pins, &packed).unwrap();
    ImageTree::load_complete(blobs, pins, &packed.digest).unwrap()
}

#[test]
fn unpacking_stops_when_the_disk_has_no_space_to_spare_and_leaves_nothing() {
    let world = ImagesWorld::new();
    let blobs = world.images.blobs().unwrap();
    let pins = blobs.pins();
    let tree = packed(&world, &pins);
    assert!(tree.bytes() < LARGE / 100);
    let bin = tree.bin(blobs).unwrap();
    for spared in 0..2 {
        let asked = Cell::new(0);
        let room = |_: u64| asked.replace(asked.get() + 1) < spared;
        let error = world.images.programs.unpack(blobs, &pins, &bin, &room).unwrap_err();
        assert_eq!((error.code(), asked.get()), ("image.no_room", spared + 1));
        assert!(error.cause().unwrap().contains("the tool `rg`") && error.hint().is_some());
        let owners = std::fs::read_dir(world.dir.path().join("registry/programs")).unwrap();
        let left = owners.flat_map(|owner| std::fs::read_dir(owner.unwrap().path()).unwrap()).count();
        assert_eq!(left, 0);
    }
    let program = world.images.programs.unpack(blobs, &pins, &bin, &|_| true).unwrap();
    assert_eq!(std::fs::metadata(program.path).unwrap().len(), LARGE);
}
