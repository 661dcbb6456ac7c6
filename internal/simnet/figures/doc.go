// Package figures has the papers' experiments that the simulator reproduces: their fabrics, their
// parameters, and the published values. docs/simulation.md compares them.
//
// Parameters are the papers' where these state them. Otherwise they are [simnet.Defaults], or are
// given here with the reason, and were fixed before any comparison.
package figures
