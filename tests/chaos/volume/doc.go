// Package volume has the parts of the fault matrix of replicated volumes, except for its processes:
// plans of faults, each from a seed; an NBD client that keeps a history; and the checker of
// histories.
package volume
