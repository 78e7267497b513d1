//! Programs that unpack to more than their layers say.

use std::cell::Cell;
use std::io::Read;

use super::*;

/// More than is written between two looks at the disk.
const LARGE: u64 = 20 << 20;

/// The image of a tool that is small, and whose program is not.
fn packed(world: &ImagesWorld, pins: &Pins) -> Whole {
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
    world.images.keep(pins, &packed).unwrap();
    Whole::find(blobs, pins, &packed.digest).unwrap()
}

#[test]
fn a_program_that_unpacks_to_more_than_the_disk_can_spare_is_given_up_in_the_middle_and_leaves_nothing() {
    let world = ImagesWorld::new();
    let blobs = world.images.blobs().unwrap();
    let pins = blobs.pins();
    let whole = packed(&world, &pins);
    assert!(whole.bytes() < LARGE / 100);
    let bin = whole.bin(blobs).unwrap();
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
