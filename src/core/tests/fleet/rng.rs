//! Random numbers of a simulation: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
//! number generators", OOPSLA 2014). The same seed and stream give the same numbers everywhere.

/// One stream of random numbers.
pub struct Rng(u64);

impl Rng {
    /// Stream `stream` of `seed`: what one stream draws does not shift another one.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (stream << 56));
        rng.next();
        rng
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// From `low` on, below `high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }
    /// True `of` times in 10,000.
    pub fn chance(&mut self, of: u64) -> bool {
        self.range(0, 10_000) < of
    }
}
