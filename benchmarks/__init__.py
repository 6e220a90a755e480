"""One file per workload; peers run beside us in the same run, and ratios are printed."""
