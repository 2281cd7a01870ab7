//! Histories written by hand, each broken in one way, and small random ones against brute force.
