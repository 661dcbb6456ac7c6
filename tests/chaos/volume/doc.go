// Package volume is what the fault matrix of replicated volumes consists of, but for its processes: plans of faults,
// each from a seed; a client of NBD that keeps a history; and the judge of histories.
package volume
