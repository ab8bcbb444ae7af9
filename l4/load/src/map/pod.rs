//! The one place with `unsafe`: it tells aya that the types of l4-abi may be read and written as bytes.
#![expect(unsafe_code, reason = "the map layer is a named module for it")]

use l4_abi::{
    Config, FlowSet, Owner, OwnerCounts, QuicConfig, RescueCounts, Rule, ServerIdKey, Settings, TablePage,
    Vip4Key, Vip6Key, VipBucket, VipCounts,
};

/// A type of l4-abi as a map's key or value.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain<T>(pub(crate) T);

/// Types that are plain in the sense of the SAFETY note below.
trait Layout: Copy + 'static {}

macro_rules! plain {
    ($($type:ident),* $(,)?) => { $(impl Layout for $type {})* };
}

plain! {
    Config, FlowSet, Owner, OwnerCounts, QuicConfig, RescueCounts, Rule, ServerIdKey, Settings, TablePage, VipCounts,
}

impl Layout for VipBucket<Vip4Key> {}
impl Layout for VipBucket<Vip6Key> {}

// SAFETY: each listed type is repr(C), made of integers and arrays of integers for which every bit pattern is a value,
// and has no padding: l4-abi's test `both_sides_have_one_layout` adds up its fields. Plain is transparent.
unsafe impl<T: Layout> aya::Pod for Plain<T> {}
