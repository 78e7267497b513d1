//! What a cut leaves: the choices worth trying, and those that a seed picks.

use super::disk::{Disk, Growth, Image, Unit};

/// One choice of what survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// What was synced and nothing else.
    Nothing,
    Everything,
    /// The files grew, and no data arrived.
    SizesOnly,
    /// The first sectors and names, in the order of writing.
    First(usize),
    /// Everything but one sector or name.
    AllBut(usize),
    /// Only what happened to one file or directory; the others wait.
    OnlyOf(usize),
    /// Anything, by this number.
    Drawn(u64),
}

/// As many prefixes are a few.
const FEW: usize = 4;

/// How thoroughly one moment is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cuts {
    /// Subsets drawn by the seed.
    pub drawn: u64,
    /// Whether every prefix is tried.
    pub prefixes: Prefixes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefixes {
    Every,
    /// A few of them, evenly spread.
    Few,
}

impl Cuts {
    /// The choices for a disk as it is now.
    pub fn of(self, disk: &Disk, rng: &mut Rng) -> Vec<Cut> {
        let units = disk.units();
        if units.is_empty() {
            return vec![Cut::Nothing];
        }
        let mut cuts = vec![Cut::Nothing, Cut::Everything, Cut::SizesOnly];
        let step = match self.prefixes {
            Prefixes::Every => 1,
            Prefixes::Few => units.len().div_ceil(FEW),
        };
        cuts.extend((1..units.len()).step_by(step).map(Cut::First));
        let mut nodes: Vec<usize> = units.iter().map(|unit| unit.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() > 1 {
            cuts.extend(nodes.into_iter().map(Cut::OnlyOf));
        }
        for _ in 0..self.drawn {
            cuts.push(Cut::AllBut(rng.below(units.len())));
            cuts.push(Cut::Drawn(rng.next()));
        }
        cuts
    }
}

impl Cut {
    /// The disk after this cut.
    pub fn image(self, disk: &Disk) -> Image {
        let units = disk.units();
        let pick = |keep: &mut dyn FnMut(usize, &Unit) -> bool| -> Vec<Unit> {
            units.iter().enumerate().filter(|(at, unit)| keep(*at, unit)).map(|(_, unit)| *unit).collect()
        };
        match self {
            Cut::Nothing => disk.image(&[], Growth::WithData),
            Cut::Everything => disk.image(&units, Growth::WithData),
            Cut::SizesOnly => disk.image(&pick(&mut |_, unit| !unit.is_data()), Growth::BeforeData),
            Cut::First(end) => disk.image(&pick(&mut |at, _| at < end), Growth::WithData),
            Cut::AllBut(one) => disk.image(&pick(&mut |at, _| at != one), Growth::WithData),
            Cut::OnlyOf(node) => disk.image(&pick(&mut |_, unit| unit.node == node), Growth::WithData),
            Cut::Drawn(seed) => {
                let mut rng = Rng::new(seed);
                let often = *rng.pick(&[5, 30, 60, 90, 98]);
                let growth = *rng.pick(&[Growth::WithData, Growth::BeforeData]);
                disk.image(&pick(&mut |_, _| rng.percent(often)), growth)
            }
        }
    }
}

/// SplitMix64: every choice follows from one number.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }

    fn percent(&mut self, often: usize) -> bool {
        self.below(100) < often
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
